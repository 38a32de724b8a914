"""Passes through a partition are the plain passes, for every kind of network and scope."""

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tulip_ood.errors import InputError, ModelError
from tulip_ood.models.resnet import ResNet18Small
from tulip_ood.network import exporting, partitioned
from tulip_ood.network.exporting import PartitionError
from tulip_ood.network.initial_mean import InitialMean
from tulip_ood.network.inputs import Inputs, take
from tulip_ood.network.measures import Measure
from tulip_ood.network.network import Network
from tulip_ood.network.partition import Partition
from tulip_ood.network.partitioned import run_partitioned
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.rows import collect_rows
from tulip_ood.network.running import Needs, forward, run_passes
from tulip_ood.network.scope import Scope, parameters_in_scope
from tulip_ood.numerics.tasks import make_task

SETTINGS = PassSettings(0.02, n_samples=2)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------ networks


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(inplace=True), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    )


class Block(nn.Module):
    """A residual block that writes to what it was handed, as some do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.conv(x))
        x += out
        return self.act(x)


class Stages(nn.Module):
    """Two stages of blocks; BatchNorm has statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.layer1 = nn.Sequential(Block(8), Block(8))
        self.down = nn.Conv2d(8, 12, 1, stride=2)
        self.layer2 = nn.Sequential(Block(12), Block(12))
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.down(self.layer1(self.stem(x))))
        return self.fc(x.mean(dim=(2, 3)))


def vgg() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.ReLU(inplace=True),
        nn.Dropout(inplace=True),
        nn.Linear(16, 4),
    )


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.embed = nn.Embedding(20, 16)
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(3)])
        self.classifier = nn.Linear(16, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.classifier(x[:, 0])


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Linear(6, 8)
        self.text = nn.Embedding(10, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.out(torch.relu(self.image(x)) + self.text(tokens).mean(1))


class HuggingFaceLike(nn.Module):
    """A mapping in, `.logits` out, tied weights inside, a constant tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.middle = nn.Linear(8, 8)
        self.classifier = nn.Linear(8, 12)
        self.classifier.weight = self.embed.weight
        self.shift = torch.linspace(0, 1, 8)

    def forward(self, *, ids: Tensor, mask: Tensor, scale: float = 1.0) -> SimpleNamespace:
        with torch.no_grad():
            weights = mask / mask.sum(dim=1, keepdim=True)
        x = (self.embed(ids) * weights.unsqueeze(-1)).sum(1) * scale + self.shift
        return SimpleNamespace(logits=self.classifier(torch.relu(self.middle(x))))


class Decoder(nn.Module):
    """Classifies every token, and returns the last one's logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.middle = nn.Linear(8, 8)
        self.score = nn.Linear(8, 3, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        scores = self.score(torch.relu(self.middle(self.embed(ids)).cumsum(1)))
        return scores[torch.arange(ids.shape[0]), (ids > 3).sum(1) % 4]


class Views(nn.Module):
    """A write that is seen through another name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        left = x[:, :4]
        left.relu_()
        return self.last(x)


class Rounded(nn.Module):
    """A write to a tensor of another dtype, which stays what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        rounded = torch.zeros(8, dtype=torch.bfloat16, device=x.device) * 2
        rounded = rounded.expand_as(x).clone()
        rounded += x
        return self.last(rounded.to(x.dtype))


class Normed(nn.Module):
    """The last layer's weight is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


def tokens(rows: int, length: int, most: int) -> Tensor:
    return (random(rows, length).abs() * 10).long() % most


def dictionary(rows: int) -> dict[str, Any]:
    mask = torch.ones(rows, 5, dtype=torch.long)
    mask[::2, 3:] = 0
    return {"mask": mask, "ids": tokens(rows, 5, 12), "scale": 2.0}


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    scopes: tuple[Scope, ...]
    task: str = "classification"


CASES = {
    "mlp": Case(mlp, lambda n: random(n, 6), ("all", "head", "2.*", ["*.bias"])),
    "stages": Case(
        Stages,
        lambda n: random(n, 3, 8, 8),
        ("all", "head", "last-block", "last-stage", "layer1.1.norm.*"),
    ),
    "vgg": Case(vgg, lambda n: random(n, 3, 9, 9), ("all", "head", "3.weight")),
    "encoder": Case(
        Encoder, lambda n: tokens(n, 7, 20), ("all", "head", "last-block", "layers.1.*")
    ),
    "two inputs": Case(
        TwoInputs, lambda n: (random(n, 6), tokens(n, 4, 10)), ("all", "head", "text.*")
    ),
    "mapping": Case(HuggingFaceLike, dictionary, ("all", "head", "middle.*", "classifier.bias")),
    "decoder": Case(Decoder, lambda n: tokens(n, 6, 12), ("all", "head", "middle.weight")),
    "views": Case(Views, lambda n: random(n, 6), ("all", "last.*", "first.bias")),
    "rounded": Case(Rounded, lambda n: random(n, 6), ("all", "last.*")),
    "normed": Case(Normed, lambda n: random(n, 6), ("all", "last.*", "first.*")),
    "dense": Case(
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 1)),
        lambda n: random(n, 3, 6, 6),
        ("all", "2.*"),
        "dense",
    ),
    "one number": Case(
        lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1), nn.Flatten(0)),
        lambda n: random(n, 3),
        ("2.*",),
        "regression",
    ),
}


def trained(make: Callable[[], nn.Module]) -> nn.Module:
    """With BatchNorm statistics that are not those of a new network."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                nn.init.normal_(part.running_mean)
                nn.init.uniform_(part.running_var, 0.5, 2.0)
    return model


def narrow(network: Network, inputs: Inputs) -> Network:
    """The same in float32, as large networks are run."""
    network._may_widen = False
    network.dtype = network._pass_dtype()
    network.refresh()
    network.probe(inputs)
    return network


def perturbed(network: Network, scope: Scope = "all", **options: Any) -> Perturbation:
    probe = network.known_probe
    names = parameters_in_scope(network.module, network.parameters, scope, probe.calls, probe.head)
    settings = options.pop("settings", SETTINGS)
    scales = dict.fromkeys(names, 1.0)
    return Perturbation(network, scales, InitialMean({}, ()), settings, **options)


def assert_same(fast: Passes, plain: Passes, part: float) -> None:
    """Field by field; `part` is of the range of each."""
    for name in ("base", "noisy", "drift", "features", "noisy_features", "drift_features"):
        one, two = getattr(fast, name), getattr(plain, name)
        assert (one is None) == (two is None), name
        if one is not None:
            assert one.shape == two.shape, name
            assert one.dtype == two.dtype, name
            if not one.numel():
                continue
            apart, size = float((one - two).abs().max()), float(two.max() - two.min())
            assert apart <= part * size, (name, apart, size)
    assert len(fast.heads) == len(plain.heads)
    for mine, theirs in zip(fast.heads, plain.heads, strict=True):
        assert torch.allclose(mine.weight, theirs.weight, rtol=1e-5, atol=1e-7)
        assert torch.allclose(mine.bias, theirs.bias, rtol=1e-5, atol=1e-7)
    assert set(fast.extras) == set(plain.extras)
    assert (fast.settings, fast.key, fast.ids) == (plain.settings, plain.key, plain.ids)


# ------------------------------------------------------------------------- the same passes


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_passes_are_the_plain_ones(name: str, precision: torch.dtype) -> None:
    case = CASES[name]
    inputs = case.inputs(6)
    network = Network(trained(case.make), make_task(case.task))
    if precision == torch.float32:
        narrow(network, inputs)
    network.probe(inputs)
    assert network.dtype == precision
    needs = Needs(SETTINGS, noisy_features=True)
    for scope in case.scopes:
        perturbation = perturbed(network, scope)
        partition = Partition.of(network, perturbation.scales, take(inputs, slice(0, 3)))
        for batch_size in (4, 1):  # of 4 and 2 rows, and alone
            options: dict[str, Any] = {"batch_size": batch_size, "needs": needs, "keyed": True}
            fast = run_partitioned(partition, perturbation, inputs, **options)
            plain = run_passes(perturbation, inputs, **options)
            assert_same(fast, plain, 1e-6 if precision == torch.float32 else 1e-12)
        assert 0.0 <= partition.trunk_share <= 1.0


def test_every_call_may_be_told_what_plain_passes_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held rows, a base pass, another ε, dense positions, measures, progress, weights not held."""

    class Norm(Measure):
        key = "norm"

        def __call__(self, network: Network, inputs: Inputs) -> Tensor:
            return network.run(inputs).logits.norm(dim=-1)

    network = Network(trained(Stages), make_task("classification"))
    rows = collect_rows([(random(9, 3, 8, 8), torch.arange(9) % 5)])
    network.probe(rows.first(4))
    needs = Needs(SETTINGS, noisy_features=True, measures=(Norm(),))
    for hold in (True, False):
        perturbation = perturbed(network, "last-stage", hold=hold)
        partition = Partition.of(network, perturbation.scales, rows.first(2))
        base = forward(network, rows, batch_size=9, features=True)
        for options in (
            {"needs": needs, "labels": rows.labels, "keyed": True},
            {"base": base, "epsilon": 0.05},
            {"needs": Needs(SETTINGS)},
        ):
            done: tuple[list[int], list[int]] = ([], [])
            fast = run_partitioned(
                partition, perturbation, rows, batch_size=4, progress=done[0].append, **options
            )
            plain = run_passes(perturbation, rows, batch_size=4, progress=done[1].append, **options)
            assert_same(fast, plain, 1e-12)
            assert sum(done[0]) == sum(done[1])
    monkeypatch.setattr(partitioned, "_FRONTIERS", 1)
    again = run_partitioned(partition, perturbation, rows, batch_size=4)
    assert torch.equal(again.noisy, fast.noisy)


def test_without_noise_or_drift() -> None:
    network = Network(mlp(), make_task("classification"))
    x = random(5, 6)
    network.probe(x)
    for settings in (SETTINGS.with_(drift=False), SETTINGS.with_(n_samples=0)):
        perturbation = perturbed(network, "head", settings=settings)
        partition = Partition.of(network, perturbation.scales, x)
        needs = Needs(settings, noisy_features=True)
        fast = run_partitioned(partition, perturbation, x, batch_size=2, needs=needs)
        assert fast.drift is None
        assert_same(fast, run_passes(perturbation, x, batch_size=2, needs=needs), 1e-12)


def test_positions_of_dense_outputs() -> None:
    case = CASES["dense"]
    network, x = Network(trained(case.make), make_task("dense")), case.inputs(5)
    network.probe(x)
    perturbation = perturbed(network, "2.*")
    partition = Partition.of(network, perturbation.scales, x)
    where = torch.rand(5, 7, generator=torch.Generator().manual_seed(0))
    fast = run_partitioned(partition, perturbation, x, batch_size=2, positions=where)
    assert_same(fast, run_passes(perturbation, x, batch_size=2, positions=where), 1e-12)


def test_a_whole_resnet() -> None:
    model, x = trained(lambda: ResNet18Small(10)), random(3, 3, 32, 32)
    network = Network(model, make_task("classification"))
    network.probe(x)
    shares = []
    for scope in ("last-stage", "last-block", "head"):
        perturbation = perturbed(network, scope)
        partition = Partition.of(network, perturbation.scales, x[:2])
        fast = run_partitioned(partition, perturbation, x, batch_size=2)
        assert_same(fast, run_passes(perturbation, x, batch_size=2), 1e-6)
        shares.append(partition.trunk_share)
    assert [round(share, 2) for share in shares] == [0.76, 0.86, 1.0]
    whole = Partition.of(network, network.parameters, x)
    assert whole.trunk_share == 0.0
    assert whole.row_bytes == 4 * 3 * 32 * 32


# ---------------------------------------------------------------------------- how it works


def test_the_trunk_runs_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(trained(Stages), make_task("classification"))
    x = random(7, 3, 8, 8)
    network.probe(x)
    perturbation = perturbed(network, "head")
    partition = Partition.of(network, perturbation.scales, x)
    calls: list[str] = []
    for name in ("trunk", "tail"):
        inner = getattr(partition, name)

        def counted(*args: Any, name: str = name, inner: Any = inner) -> Any:
            calls.append(name)
            return inner(*args)

        monkeypatch.setattr(partition, name, counted)
    monkeypatch.setattr(network, "run", None)  # the whole network is not run at all
    run_partitioned(partition, perturbation, x, batch_size=4)
    assert (calls.count("trunk"), calls.count("tail")) == (2, 2 * SETTINGS.n_passes)


def test_what_the_tail_is_handed_is_not_written_to() -> None:
    """`Block` adds to its input in place: a second pass would find another frontier."""
    network = Network(trained(Stages), make_task("classification"))
    x = random(3, 3, 8, 8)
    kept = x.clone()
    partition = Partition.of(network, ["layer2.1.conv.weight"], x)
    frontier = partition.trunk(x)
    before = [v.clone() for v in frontier.values if isinstance(v, Tensor)]
    first, second = partition.tail(frontier).logits, partition.tail(frontier).logits
    assert torch.equal(first, second)
    assert torch.equal(x, kept)
    after = [v for v in frontier.values if isinstance(v, Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_users_module_is_left_alone() -> None:
    model = trained(Stages).train()
    state = {name: t.clone() for name, t in model.state_dict().items()}
    objects = {name: id(p) for name, p in [*model.named_parameters(), *model.named_buffers()]}
    heard: list[int] = []
    model.fc.register_forward_hook(lambda *_: heard.append(1))
    hooks = {name: len(part._forward_hooks) for name, part in model.named_modules()}
    network = Network(model, make_task("classification"))
    x = random(3, 3, 8, 8)
    network.probe(x)
    heard.clear()
    perturbation = perturbed(network, "last-block")
    partition = Partition.of(network, perturbation.scales, x)
    run_partitioned(partition, perturbation, x, batch_size=2)
    assert heard == []
    assert model.training
    assert all(part.training for part in model.modules())
    assert {name: len(part._forward_hooks) for name, part in model.named_modules()} == hooks
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    now = {name: id(p) for name, p in [*model.named_parameters(), *model.named_buffers()]}
    assert now == objects
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    # Nor does the private copy keep anything: its passes are what they were.
    assert torch.equal(network.run(x).logits, partition.network.run(x).logits)
    assert all(p.device.type == "meta" for p in network.module.parameters())


def test_new_weights_and_statistics_are_taken_up() -> None:
    model, x = trained(Stages), random(3, 3, 8, 8)
    network = Network(model, make_task("classification"))
    partition = Partition.of(network, ["fc.weight"], x)
    with torch.no_grad():
        model.stem[1].running_mean.add_(1.0)
        model.down.weight.mul_(0.5)
    network.refresh()
    found = partition.tail(partition.trunk(x)).logits
    torch.testing.assert_close(found, network.run(x).logits, rtol=1e-12, atol=1e-12)


def test_inputs_of_another_kind_go_through_the_whole_network() -> None:
    network = Network(trained(Stages), make_task("classification"))
    small, large = random(4, 3, 8, 8), random(4, 3, 12, 12)
    network.probe(small)
    perturbation = perturbed(network, "head")
    partition = Partition.of(network, perturbation.scales, small)
    assert partition.fits(random(1, 3, 8, 8).double())
    assert not partition.fits(large)
    with pytest.raises(InputError, match="another kind"):
        partition.trunk(large)
    fast = run_partitioned(partition, perturbation, large, batch_size=3)
    assert_same(fast, run_passes(perturbation, large, batch_size=3), 1e-12)


def test_channels_last_inputs() -> None:
    network = Network(
        trained(vgg).to(memory_format=torch.channels_last), make_task("classification")
    )
    x = random(4, 3, 9, 9).to(memory_format=torch.channels_last)
    network.probe(x)
    perturbation = perturbed(network, "head")
    partition = Partition.of(network, perturbation.scales, x.contiguous())
    fast = run_partitioned(partition, perturbation, x, batch_size=3)
    assert_same(fast, run_passes(perturbation, x, batch_size=3), 1e-12)


def test_batches_that_do_not_fit_in_memory_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(mlp(), make_task("classification"))
    x = random(11, 6)
    network.probe(x)
    perturbation = perturbed(network, "2.*", hold=False)
    partition = Partition.of(network, perturbation.scales, x)
    inner = partition.tail

    def small(frontier: Any, parameters: Any = None) -> Any:
        if frontier.rows > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return inner(frontier, parameters)

    monkeypatch.setattr(partition, "tail", small)
    done: list[int] = []
    options: dict[str, Any] = {"batch_size": 6, "needs": Needs(SETTINGS, noisy_features=True)}
    fast = run_partitioned(partition, perturbation, x, progress=done.append, **options)
    assert sum(done) == 11 * SETTINGS.n_passes
    assert_same(fast, run_passes(perturbation, x, **options), 1e-12)
    monkeypatch.setattr(partition, "tail", lambda *_: small(SimpleNamespace(rows=9)))
    with pytest.raises(torch.OutOfMemoryError):
        run_partitioned(partition, perturbation, x, **options)


def test_two_threads() -> None:
    """Each exports, runs and gets what it would get alone, beside the user's own passes."""
    model, x = trained(Stages).eval(), random(6, 3, 8, 8)
    expected = model(x).detach()
    network = Network(model, make_task("classification"))
    network.probe(x)
    perturbation = perturbed(network, "last-stage")
    plain = run_passes(perturbation, x, batch_size=4)
    stop, wrong = threading.Event(), []

    def user() -> None:
        while not stop.is_set():
            # Not to the last bit: which kernels run is a matter of switches of the process.
            if not torch.allclose(model(x).detach(), expected, atol=1e-5):
                wrong.append("the user's own pass")

    def ours() -> None:
        try:
            partition = Partition.of(network, perturbation.scales, x)
            for _ in range(5):
                assert_same(run_partitioned(partition, perturbation, x, batch_size=4), plain, 1e-12)
        except BaseException as error:
            wrong.append(repr(error))

    beside = threading.Thread(target=user)
    threads = [threading.Thread(target=ours) for _ in range(2)]
    for thread in (beside, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    beside.join()
    assert wrong == []


def test_a_graph_is_made_once_for_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = Network(mlp(), make_task("classification")), random(3, 6)
    Partition.of(network, ["0.weight"], x)
    monkeypatch.setattr(torch.export, "export", None)
    other = Partition.of(network, ["4.weight"], x[:1])
    assert other.tail(other.trunk(x)).logits.shape == (3, 4)


def test_usual_writes_are_taken_out_without_tracing_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
    for make, x in ((Stages, random(3, 3, 8, 8)), (vgg, random(3, 3, 9, 9)), (mlp, random(3, 6))):
        network = Network(trained(make), make_task("classification"))
        Partition.of(network, network.parameters, x)
    with pytest.raises(PartitionError):
        Partition.of(Network(Views(), make_task("classification")), [], random(3, 6))


@pytest.mark.parametrize(
    "mode", [lambda: torch.autocast("cpu", torch.bfloat16), torch.inference_mode, torch.no_grad]
)
def test_the_users_modes_do_not_reach_the_graph(mode: Callable[[], Any]) -> None:
    model, x = trained(mlp), random(4, 6)
    with mode():
        network = Network(model, make_task("classification"))
        network.probe(x)
        perturbation = perturbed(network, "head")
        partition = Partition.of(network, perturbation.scales, x)
        inside = run_partitioned(partition, perturbation, x, batch_size=3)
    plain = run_passes(perturbation, x, batch_size=3)
    assert_same(inside, plain, 1e-12)
    assert_same(run_partitioned(partition, perturbation, x, batch_size=3), plain, 1e-12)


# -------------------------------------------------------------------------- what is refused


class Moody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = [self.one(row) if row.sum() > 0 else self.two(row) for row in x.unbind()]
        return torch.stack(rows)


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + torch.zeros(len(x), 1)


class Traced(nn.Module):
    """Does in a graph what it does not do otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) * (2 if torch.compiler.is_exporting() else 1)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Moody(), "Moody cannot be exported: its code goes one way or another"),
        (Counted(), "fixes the number of inputs"),
        (Traced(), "gives other outputs than the network"),
    ],
)
def test_what_cannot_be_cut_says_why_in_one_line(
    model: nn.Module, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    network = Network(model, make_task("classification"))
    with pytest.raises(PartitionError, match=reason) as caught:
        Partition.of(network, ["one.weight"], random(4, 6))
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ModelError)
    assert capfd.readouterr() == ("", "")  # nor does PyTorch say more


def test_hooks_that_change_the_output_are_refused() -> None:
    model = mlp()
    model[0].register_forward_hook(lambda part, args, out: out + 1)
    network = Network(model, make_task("classification"))
    with pytest.raises(PartitionError, match="hooks"):
        Partition.of(network, ["0.weight"], random(4, 6))


def test_other_releases_of_pytorch_make_plain_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "TESTED", ("1.0",))
    network = Network(mlp(), make_task("classification"))
    with pytest.raises(PartitionError, match=r"tested with PyTorch 1\.0; this is 2\."):
        Partition.of(network, ["0.weight"], random(4, 6))


def test_partitions_of_something_else_are_refused() -> None:
    network, x = Network(mlp(), make_task("classification")), random(4, 6)
    with pytest.raises(InputError, match="no parameter 9"):
        Partition.of(network, ["9.weight"], x)
    partition = Partition.of(network, ["4.weight"], x)
    with pytest.raises(InputError, match="is perturbed, but the partition"):
        run_partitioned(partition, perturbed(network, "all"), x, batch_size=2)
    other = Network(mlp(), make_task("classification"))
    other.probe(x)
    with pytest.raises(InputError, match="another network"):
        run_partitioned(partition, perturbed(other, "head"), x, batch_size=2)
