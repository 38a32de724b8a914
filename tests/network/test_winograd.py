"""Convolutions with fewer multiplications are convolutions, and only where shapes say so."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from tulip_ood.network import winograd
from tulip_ood.network.fast import FastOptions
from tulip_ood.network.network import Network
from tulip_ood.network.partition import Partition
from tulip_ood.network.ready import Lowering
from tulip_ood.numerics.tasks import make_task


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def worst(found: Tensor, true: Tensor) -> float:
    return float((found - true).abs().max() / true.std())


# ----------------------------------------------------------------------------- one convolution


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize(
    ("rows", "size"),
    [(1, (3, 3)), (1, (7, 7)), (2, (4, 4)), (3, (9, 5)), (2, (16, 13)), (5, (3, 20))],
)
def test_any_size_is_convolved(rows: int, size: tuple[int, int], padding: int) -> None:
    x, weight = drawn(rows, 8, *size), drawn(6, 8, 3, 3, seed=1)
    true = torch.conv2d(x.double(), weight.double(), padding=padding)
    found = winograd.convolve(x, weight, padding=padding)
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert found.shape == true.shape
    assert float((found - true).abs().max()) < 1e-5 * float(true.abs().max())


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_bias_sum_and_relu(has_bias: bool, joins: bool, relu: bool) -> None:
    x, weight = drawn(3, 16, 8, 8), drawn(8, 16, 3, 3, seed=1)
    bias = drawn(8, seed=2) if has_bias else None
    z = drawn(3, 8, 8, 8, seed=3) if joins else None
    true = torch.conv2d(x.double(), weight.double(), padding=1)
    true = true + (0 if bias is None else bias[:, None, None]) + (0 if z is None else z)
    kept = None if z is None else z.clone()
    found = winograd.convolve(x, weight, bias, added=z, relu=relu)
    assert worst(found, true.relu() if relu else true) < 1e-5
    assert z is None or torch.equal(z, kept)


@pytest.mark.parametrize(
    ("channels", "size", "rows"), [(128, 16, 40), (256, 8, 60), (256, 7, 60), (512, 4, 70)]
)
def test_rounding_is_that_of_a_direct_convolution(channels: int, size: int, rows: int) -> None:
    """In several parts, with kernels in several groups."""
    x = drawn(rows, channels, size, size).relu()
    weight = drawn(channels, channels, 3, 3, seed=1) / (3 * channels**0.5)
    true = torch.conv2d(x[-4:].double(), weight.double(), padding=1)
    apart = [
        float((found[-4:] - true).std() / true.std())
        for found in (torch.conv2d(x, weight, padding=1), winograd.convolve(x, weight))
    ]
    assert apart[1] < max(3 * apart[0], 2e-6)


def test_an_image_is_not_touched_by_others() -> None:
    x, weight = drawn(9, 8, 8, 8), drawn(8, 8, 3, 3, seed=1)
    alone = winograd.convolve(x[4:5], weight)
    others = torch.full_like(x, torch.nan)
    others[4] = x[4]
    assert worst(winograd.convolve(others, weight)[4:5], alone) < 1e-5


def test_outputs_do_not_lie_in_memory_that_is_kept() -> None:
    """Of every size: with whole tiles outputs are written in place, else cut out."""
    for size in (8, 7):
        weight = drawn(8, 8, 3, 3, seed=1)
        first = winograd.convolve(drawn(3, 8, size, size), weight)
        before = first.clone()
        winograd.convolve(drawn(3, 8, size, size, seed=2), weight)
        assert torch.equal(first, before)


def test_threads_do_not_disturb_each_other() -> None:
    weight = drawn(32, 32, 3, 3, seed=1)
    inputs = [drawn(4 + i % 3, 32, 9 + i % 4, 8, seed=i) for i in range(24)]
    alone = [winograd.convolve(x, weight, relu=True) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: winograd.convolve(x, weight, relu=True), inputs))
    assert all(worst(one, true) < 1e-5 for one, true in zip(found, alone, strict=True))


def test_memory_kept_by_inference_serves_elsewhere() -> None:
    def convolve() -> Tensor:
        return winograd.convolve(drawn(2, 40, 12, 12), drawn(8, 40, 3, 3, seed=1))

    with ThreadPoolExecutor(1) as pool:  # a thread that has kept nothing yet

        def inside() -> Tensor:
            with torch.inference_mode():
                return convolve()

        one, two = pool.submit(inside).result(), pool.submit(convolve).result()
    assert torch.equal(one, two)


# ------------------------------------------------------------------------------------ the rule


@pytest.mark.parametrize(
    ("shape", "outputs", "padding", "expected"),
    [
        ((100, 512, 4, 4), 512, 1, True),
        ((100, 256, 8, 8), 256, 1, True),
        ((16, 512, 7, 7), 512, 1, True),
        ((100, 256, 6, 6), 256, 0, True),
        ((100, 128, 16, 16), 128, 1, True),
        ((100, 128, 28, 28), 128, 1, True),
        ((4, 256, 14, 14), 256, 1, True),
        ((63, 512, 4, 4), 512, 1, False),  # too few tiles for the kernels' transform
        ((100, 64, 8, 8), 64, 1, False),  # too narrow
        ((100, 128, 40, 40), 128, 1, False),  # too large
        ((100, 64, 8, 8), 128, 1, False),
        ((100, 256, 5, 5), 256, 1, False),  # half of the tiles' outputs would be thrown away
        ((100, 256, 2, 2), 256, 1, False),
        ((100, 256, 2, 2), 256, 0, False),  # nothing comes out
        ((100, 256, 8, 8), 256, 2, False),
    ],
)
def test_shapes_decide(shape: tuple[int, ...], outputs: int, padding: int, expected: bool) -> None:
    x, weight = torch.empty(shape), torch.empty(outputs, shape[1], 3, 3)
    assert winograd.pays(x, weight, padding) is expected
    assert not winograd.pays(x.double(), weight.double(), padding)
    assert not winograd.pays(x, torch.empty(outputs, shape[1], 1, 1), padding)


# -------------------------------------------------------------------------------- in a network


class Wide(nn.Module):
    """Convolutions of all kinds, four of them with many channels on few positions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 128, 3, stride=2, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(128) for _ in range(3))
        self.one, self.two = (nn.Conv2d(128, 128, 3, padding=1, bias=False) for _ in range(2))
        self.bare = nn.Conv2d(128, 128, 3, padding=1, bias=False)
        self.valid = nn.Conv2d(128, 128, 3)
        self.wide = nn.Conv2d(128, 128, 3, padding=2, dilation=2)
        self.grouped = nn.Conv2d(128, 128, 3, padding=1, groups=4)
        self.fc = nn.Linear(128, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norms[0](self.stem(x)))
        inner = torch.relu(self.norms[1](self.one(x)))
        x = torch.relu(self.norms[2](self.two(inner)) + x)
        x = torch.sigmoid(self.bare(x)) + torch.relu(self.wide(x)) + torch.tanh(self.grouped(x))
        return self.fc(nn.functional.gelu(self.valid(x)).mean((2, 3)))


@pytest.fixture(scope="module")
def network() -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Wide()
        for _ in range(3):
            model(drawn(8, 3, 16, 16))
    return Network(model.eval(), make_task("classification"))


def lowerings(network: Network) -> list[Lowering]:
    texts = ("", "winograd=0", "channels_last=0", "fuse=0,fold=0")
    return [FastOptions.from_text(text).lowering(network) for text in texts]


def test_one_switch(network: Network) -> None:
    network.probe(drawn(2, 3, 16, 16))
    has_kernels = torch.backends.mkl.is_available()
    assert [one.winograd for one in lowerings(network)] == [has_kernels, False, False, has_kernels]
    assert not FastOptions.from_text("compile=1").lowering(network).winograd
    assert not Lowering().winograd


@pytest.mark.parametrize("fuse", [False, True])
def test_passes_are_those_of_the_network(
    network: Network, fuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    convolved: list[tuple[int, ...]] = []
    convolve = winograd.convolve

    def noted(x: Tensor, weight: Tensor, *more: object, **options: object) -> Tensor:
        convolved.append(tuple(x.shape))
        return convolve(x, weight, *more, **options)

    monkeypatch.setattr(winograd, "convolve", noted)
    x = drawn(16, 3, 16, 16, seed=5)
    lowering = Lowering(channels_last=True, fuse=fuse, winograd=True)
    partition = Partition.of(network, ["fc.bias", "one.weight"], x, lowering)
    moved = {**network.parameters, "one.weight": network.parameters["one.weight"] * 1.1}
    convolved.clear()
    frontier = partition.trunk(x)
    for parameters in (None, moved):
        found = partition.tail(frontier, parameters).logits
        true = network.run(x, parameters).logits
        assert float((found - true).abs().max()) <= 2e-6 * float(true.abs().max())
    # Of the seven: neither the one with a stride nor the dilated nor the grouped one; twice, since
    # all of them are behind what is perturbed. 8 × 8 in, and 6 × 6 out, is left alone.
    assert convolved == [(16, 128, 8, 8)] * 6
    convolved.clear()
    partition.tail(partition.trunk(x[:15]))
    assert not convolved
