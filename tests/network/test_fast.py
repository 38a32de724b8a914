"""The fast engine gives the scores of the plain passes, and knows when to leave them alone."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.detectors.trial_passes import Runner
from tulip_ood.errors import TulipError, TulipWarning
from tulip_ood.network.exporting import MOST_ROWS
from tulip_ood.network.fast import FastOptions, FastPasses
from tulip_ood.network.initial_mean import InitialMean
from tulip_ood.network.mirrored import Mirrored
from tulip_ood.network.network import Network
from tulip_ood.network.partition import Partition
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.rows import collect_rows
from tulip_ood.network.running import Needs, run_passes
from tulip_ood.numerics.tasks import make_task


class Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride=stride), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return torch.relu(out)


class Convolutions(nn.Module):
    """A residual network of 150,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(True))
        self.layer1 = nn.Sequential(Block(32, 32, 1), Block(32, 32, 1))
        self.layer2 = nn.Sequential(Block(32, 48, 2), Block(48, 48, 1))
        self.fc = nn.Linear(48, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(x.mean((2, 3)))


class Transformer(nn.Module):
    """Patches, a class token, positions, layers of attention: a vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, 64))
        self.positions = nn.Parameter(torch.randn(1, 17, 64) / 50)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(4)])
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def made(make: Callable[[], nn.Module]) -> nn.Module:
    """With running statistics and logits that a trained network would have."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
        model.train()
        for _ in range(10):
            model(torch.randn(32, 3, 8, 8))
        model.eval()
        *_, last = (part for part in model.modules() if isinstance(part, nn.Linear))
        with torch.no_grad():  # unsure of some inputs, sure of others, and not of one class alone
            logits = model(torch.randn(200, 3, 8, 8))
            last.weight *= 4.0 / logits.std(dim=0).mean()
            last.bias.sub_(model(torch.randn(200, 3, 8, 8)).mean(dim=0))
    return model


@pytest.fixture(scope="module")
def networks() -> dict[str, nn.Module]:
    return {"convolutions": made(Convolutions), "transformer": made(Transformer)}


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(240, 3, 8, 8, generator=generator)
    return x, torch.randint(6, (240,), generator=generator)


def fitted(model: nn.Module, data: tuple[Tensor, Tensor], **options: Any) -> tulip_ood.Tulip:
    # Folding rounds otherwise than the plain passes do, and a large J at a small ε stretches
    # rounding: ε, λ and J are given, so that 1e-5 tests the engine and not float32.
    detector = tulip_ood.Tulip(model, epsilon=0.02, lam=0.0, j=0.5, n_samples=4, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TulipWarning)
        with torch.no_grad():  # most answers are right
            answers = model(data[0]).argmax(1)
        right = torch.arange(len(answers)) % 5 > 0
        return detector.fit([(data[0], torch.where(right, answers, data[1]))], recipe="balanced")


def assert_same_scores(one: Tensor, two: Tensor) -> None:
    size = float(two.quantile(0.95) - two.quantile(0.05))
    assert float((one - two).abs().max()) <= 1e-5 * size


# ------------------------------------------------------------------------------ the same scores


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        *(("convolutions", scope) for scope in ("all", "head", "last-stage", "layer1.1.*")),
        *(("transformer", scope) for scope in ("all", "last-block", "layers.2.*", "last-25%")),
    ],
)
def test_scores_are_those_of_the_plain_passes(
    name: str,
    scope: str,
    networks: dict[str, nn.Module],
    data: tuple[Tensor, Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = data[0][:70]
    monkeypatch.setenv("TULIP_OOD_FAST", "off")
    plain = fitted(networks[name], data, scope=scope)
    monkeypatch.setenv("TULIP_OOD_FAST", "earned=0")
    quick = fitted(networks[name], data, scope=scope)
    assert (plain.engine.fast.made, quick.engine.fast.made) == (0, 1)
    assert_same_scores(quick.score(x), plain.score(x))
    assert_same_scores(quick.calibration.scores, plain.calibration.scores)
    assert torch.equal(quick.predict(x).label, plain.predict(x).label)


def test_weights_that_are_not_held_give_the_same_scores(
    networks: dict[str, nn.Module], data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TULIP_OOD_FAST", "earned=0")
    held, drawn = (
        fitted(networks["convolutions"], data, scope="last-block", hold=hold)
        for hold in (True, False)
    )
    assert_same_scores(held.score(data[0][:40]), drawn.score(data[0][:40]))


@pytest.mark.parametrize(
    "switches",
    [
        "fold=0",
        "channels_last=0",
        "in_place=0",
        "fold=0,channels_last=0,in_place=0",
        "compile=1,capture=1,fuse=1",  # of a GPU: nothing is compiled here
    ],
)
def test_every_part_may_be_switched(
    switches: str,
    networks: dict[str, nn.Module],
    data: tuple[Tensor, Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TULIP_OOD_FAST", "off")
    plain = fitted(networks["convolutions"], data)
    monkeypatch.setenv("TULIP_OOD_FAST", f"earned=0,{switches}")
    quick = fitted(networks["convolutions"], data)
    assert quick.engine.fast.made == 1
    assert_same_scores(quick.score(data[0][:40]), plain.score(data[0][:40]))


# --------------------------------------------------------------------------------- when it pays


def test_a_graph_is_made_once_it_is_worth_it(
    networks: dict[str, nn.Module], data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    flops = Network(networks["convolutions"], make_task("classification")).probe(data[0])
    # Fitting makes passes over 240 inputs, and over 16 twice to see whether batches matter.
    monkeypatch.setenv("TULIP_OOD_FAST", f"earned={300 * 6 * flops.compute.flops}")
    detector = fitted(networks["convolutions"], data, scope="head")
    counts = [detector.engine.fast.made]
    for _ in range(3):
        detector.score(data[0][:20])
        counts.append(detector.engine.fast.made)
    assert counts == [0, 0, 1, 1]


def test_a_small_network_and_a_handful_of_images_get_none(data: tuple[Tensor, Tensor]) -> None:
    small = made(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 6)))
    assert fitted(small, data).engine.fast.made == 0
    large = made(Convolutions)
    assert fitted(large, data, scope="head").engine.fast.made == 0


def test_changed_weights_clear_what_was_made(
    data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TULIP_OOD_FAST", "earned=0")
    model = made(Convolutions)
    detector = fitted(model, data, scope="last-block")
    before = detector.score(data[0][:30])
    with torch.no_grad():
        model.layer2[1].bn2.running_mean += 0.1  # a buffer, folded into the weights
        model.fc.weight *= 0.8
    again = fitted(model, data, scope="last-block")
    monkeypatch.setenv("TULIP_OOD_FAST", "off")
    assert_same_scores(
        again.score(data[0][:30]), fitted(model, data, scope="last-block").score(data[0][:30])
    )
    assert not torch.allclose(again.score(data[0][:30]), before)


class Moody(Convolutions):
    """Cannot be exported."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out + 1 if float(out.detach().sum()) > 1e9 else out


def test_why_passes_are_plain_is_said_once(
    data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TULIP_OOD_FAST", "earned=0")
    detector = tulip_ood.Tulip(made(Moody), epsilon=0.01, n_samples=2, scope="head")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        detector.fit([data], recipe="balanced")
        detector.score(data[0][:20])
    told = [str(w.message) for w in caught if "plain-passes" in str(w.message)]
    assert len(told) == 1
    assert "goes one way or another by the values" in told[0]
    assert [f.code for f in detector.report().findings].count("plain-passes") == 1


def test_nor_is_it_said_again_by_another_fit(
    data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TULIP_OOD_FAST", "earned=0")
    detector = fitted(made(Moody), data, scope="head")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        detector.fit([data], recipe="balanced")
    assert not [w for w in caught if "plain-passes" in str(w.message)]
    assert "plain-passes" in [f.code for f in detector.report().findings]


def test_options_are_read_from_the_environment() -> None:
    assert not FastOptions.from_text("off").on
    assert FastOptions.from_text("fold=0, capture=0") == FastOptions(fold=False, capture=False)
    assert FastOptions.from_text(" 0 ") == FastOptions(on=False)
    assert FastOptions.from_text("") == FastOptions()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("quick=1", "names 'quick'; there are on, fold"),
        ("fold=maybe", "fold takes 0 or 1; got 'maybe'"),
        ("fold", "fold takes 0 or 1; got ''"),
        ("earned=much", "earned takes a number; got 'much'"),
    ],
)
def test_what_the_environment_cannot_mean_is_refused(
    text: str, reason: str, networks: dict[str, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TULIP_OOD_FAST", text)
    with pytest.raises(TulipError, match=reason):
        tulip_ood.Tulip(networks["convolutions"])


def test_an_untested_version_of_pytorch_makes_plain_passes(
    networks: dict[str, nn.Module], data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TULIP_OOD_FAST", "earned=0")
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    quick = fitted(networks["convolutions"], data, scope="head")
    assert quick.engine.fast.made == 0
    assert "this is 9.9" in str(quick.report())


def test_a_search_shares_the_trunk_to_the_last_bit(
    networks: dict[str, nn.Module], data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TULIP_OOD_FAST", "earned=0")
    rows = collect_rows([(data[0][:20], data[1][:20])])
    for name, scope, graphs in (
        ("convolutions", "last-stage", 1),
        ("transformer", "last-block", 0),  # PyTorch's fused layers round otherwise than a graph
        ("convolutions", "all", 0),  # nothing to share
    ):
        detector = tulip_ood.Tulip(networks[name], scope=scope, n_samples=2, hold=False)
        detector.network.probe(data[0][:4])
        runner = Runner(detector._make_perturbation(detector._settings()), 8, 0, None, True)
        base = runner.base(rows)
        made = runner.passes(rows, base, 0.01)
        plain = run_passes(
            runner.perturbation,
            rows,
            batch_size=8,
            base=base,
            epsilon=0.01,
            needs=Needs(runner.perturbation.settings, noisy_features=True),
        )
        assert runner._passes.made == graphs
        assert made.drift is not None
        assert plain.drift is not None
        assert torch.equal(made.noisy, plain.noisy)
        assert torch.equal(made.drift, plain.drift)
        assert made.noisy_features is not None
        assert plain.noisy_features is not None
        assert torch.equal(made.noisy_features, plain.noisy_features)


@pytest.mark.parametrize("name", ["convolutions", "transformer"])
def test_mirror_images_are_answered_as_by_plain_passes(
    name: str, networks: dict[str, nn.Module], data: tuple[Tensor, Tensor]
) -> None:
    detector = fitted(networks[name], data, scope="last-block")
    settings, x = detector._settings(), data[0][:40]
    perturbation = detector._make_perturbation(settings)
    needs = Needs(settings, measures=(Mirrored(),))
    quick = FastPasses(detector.network, FastOptions(earned=0))
    found = quick.run(perturbation, x, batch_size=16, needs=needs)
    plain = run_passes(perturbation, x, batch_size=16, needs=needs)
    assert quick.made == 1
    torch.testing.assert_close(found.extras, plain.extras, rtol=1e-4, atol=1e-4)
    own = run_passes(perturbation, x.flip(-1), batch_size=16)
    assert torch.equal(Mirrored().passes_of(plain).base, own.base)


@pytest.mark.parametrize("place", ["cuda", "mps"])
def test_plain_passes_stay_on_a_gpu_too(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no graph (yet), neighbours should not be looked for on the CPU."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    network = Network(model, make_task("classification"))
    x = torch.rand(5, 3, 8, 8)
    network.probe(x)
    perturbation = Perturbation(network, {}, InitialMean({}, ()), PassSettings(0.01, n_samples=0))
    needs = Needs(perturbation.settings, measures=(Mirrored(),))
    fast, asked = FastPasses(network), []

    def run(*given: Any, device: torch.device | None, **more: Any) -> Passes:
        asked.append(device)  # it is not there: another one without numbers takes its place
        with monkeypatch.context() as here:
            here.setattr(network, "device", torch.device("cpu"))
            return run_passes(*given, device=torch.device("meta") if device else None, **more)

    monkeypatch.setattr("tulip_ood.network.fast.run_passes", run)
    monkeypatch.setattr(network, "device", torch.device(place))
    made = [fast.run(perturbation, x, batch_size=2, needs=needs, on_device=on) for on in (0, 1)]
    there = place == "cuda"  # float64 is not to be had on others
    assert asked == [None, torch.device(place) if there else None]
    for record, where in zip(made, ["cpu", "meta" if there else "cpu"], strict=True):
        found = (record.base, record.noisy, record.features, *record.extras.values(), *record.head)
        assert {tensor.device.type for tensor in found} == {where}


class Crowded(nn.Linear):
    """As cuDNN does with float32, it goes another way with very many inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if x.shape[0] > MOST_ROWS else 1)


def test_a_limit_to_the_number_of_inputs_is_no_reason_to_refuse() -> None:
    network = Network(Crowded(2, 3), make_task("classification"))
    partition = Partition.of(network, ["weight"], torch.rand(3, 2))
    few, many = torch.rand(5, 2), torch.rand(MOST_ROWS + 1, 2)
    own = partition.tail(partition.trunk(few)).logits
    torch.testing.assert_close(own, network.run(few).logits)
    assert partition.fits(few)
    assert not partition.fits(many)
