"""Detectors that need gradients, inner layers, dropout or several networks, against plain ones.

Every method is written a second time here, with autograd and hooks on the user's own model and
loops in numpy.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tulip_ood
from tulip_ood.detectors import registry
from tulip_ood.detectors.adascale_a import AdaScaleA
from tulip_ood.detectors.adascale_l import AdaScaleL
from tulip_ood.detectors.ensemble import Ensemble
from tulip_ood.detectors.gradnorm import GradNorm
from tulip_ood.detectors.gram import Gram, held_out_tenth
from tulip_ood.detectors.mcd import MCDropout, drop
from tulip_ood.detectors.odin import ODIN
from tulip_ood.detectors.rankfeat import RankFeat, without_rank_one
from tulip_ood.errors import FileFormatError, InputError, ModelError
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings
from tulip_ood.network.stages import find_stages
from tulip_ood.numerics import random
from tulip_ood.numerics.tasks import make_task

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


class Staged(nn.Module):
    """Conv-BN-ReLU blocks in three stages, dropout, one linear layer."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.stage1 = nn.Sequential(Block(1, 6), Block(6, 6))
        self.stage2 = nn.Sequential(Block(6, 8, 2), Block(8, 8))
        self.stage3 = nn.Sequential(Block(8, 24, 2), Block(24, 24))
        self.middle = nn.Dropout2d(0.2)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage3(self.middle(self.stage2(self.stage1(x))))
        out: Tensor = self.fc(self.drop(x.mean(dim=(2, 3))))
        return out


@dataclass(frozen=True)
class Setting:
    model: nn.Module
    others: tuple[nn.Module, ...]
    val: tuple[Tensor, Tensor]
    test: Tensor
    ood: Tensor

    def loader(self, batch: int = 64) -> list[tuple[Tensor, Tensor]]:
        x, y = self.val
        return [(x[i : i + batch], y[i : i + batch]) for i in range(0, len(x), batch)]


def trained(x: Tensor, y: Tensor, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = Staged()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(25):
        optimiser.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    model.eval()
    for parameter in model.parameters():
        parameter.grad = None
    return model


@pytest.fixture(scope="module")
def setting(request: pytest.FixtureRequest) -> Setting:
    images = request.getfixturevalue("images")
    with torch.random.fork_rng():
        models = [trained(*images.test, seed) for seed in range(3)]
    x, y = images.val
    return Setting(models[0], tuple(models[1:]), (x[:420], y[:420]), x[420:460], images.ood[:60])


MAKERS: dict[str, Any] = {
    "odin": lambda s, **more: ODIN(s.model, std=0.5, **more),
    "gradnorm": lambda s, **more: GradNorm(s.model, **more),
    "rankfeat": lambda s, **more: RankFeat(s.model, **more),
    "gram": lambda s, **more: Gram(s.model, **more),
    "mcd": lambda s, **more: MCDropout(s.model, **more),
    "ensemble": lambda s, **more: Ensemble(s.model, others=s.others, **more),
    "adascale-a": lambda s, **more: AdaScaleA(s.model, **more),
    "adascale-l": lambda s, **more: AdaScaleL(s.model, **more),
}


@pytest.fixture(params=sorted(MAKERS))
def method(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that files can be loaded whether or not the registry lists these methods yet."""
    for kind in (ODIN, GradNorm, RankFeat, Gram, MCDropout, Ensemble, AdaScaleA, AdaScaleL):
        entry = registry.Method(kind.name, kind, (), 1, "")
        monkeypatch.setitem(registry.METHODS, kind.name, entry)


# --------------------------------------------------------------- what holds for all of them


def test_a_score_does_not_depend_on_the_batch(
    setting: Setting, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In float32, as large networks are run: small ones are given float64 on a CPU.
    monkeypatch.setattr("tulip_ood.network.network.SMALL", 0, raising=False)
    detector = MAKERS[method](setting).fit(setting.loader())
    seen = setting.val[0][:20]  # learned from, so that statistics lie on learned values
    x = torch.cat([setting.test[:20], setting.ood[:10], seen])
    whole = detector.score(x)
    assert whole.dtype == torch.float64
    assert whole.isfinite().all()
    allowed = 1e-5 * detector.calibration.spread
    assert detector.calibration.spread > 0
    alone = torch.cat([detector.score(one) for one in x.split(1)])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    shuffled = torch.empty_like(whole)
    shuffled[order] = torch.cat([detector.score(some) for some in x[order].split(7)])
    assert (whole - alone).abs().max() <= allowed
    assert (whole - shuffled).abs().max() <= allowed


def everything(model: nn.Module) -> list[Any]:
    """All that could be changed in a module, by value."""
    return [
        {n: (id(p), p.detach().clone(), p.requires_grad) for n, p in model.named_parameters()},
        {n: p.grad is None for n, p in model.named_parameters()},
        {n: (id(b), b.clone()) for n, b in model.named_buffers()},
        {n: m.training for n, m in model.named_modules()},
        {n: (len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in model.named_modules()},
        torch.get_rng_state(),
        torch.is_grad_enabled(),
    ]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def test_the_model_and_the_inputs_stay_as_they_are(setting: Setting, method: str) -> None:
    model = copy.deepcopy(setting.model).train()  # a user may have left it in training mode
    mine = Setting(model, setting.others, setting.val, setting.test, setting.ood)
    x = setting.test.clone()
    before = [everything(m) for m in (model, *setting.others)]
    detector = MAKERS[method](mine).fit(setting.loader())
    detector.score(x)
    with torch.no_grad():
        detector.predict(x)
    assert same(before, [everything(m) for m in (model, *setting.others)])
    assert torch.equal(x, setting.test)
    assert x.grad is None
    assert not x.requires_grad


class Interrupting(nn.Module):
    """Raises in the k-th pass."""

    def __init__(self, inner: nn.Module, at: int, calls: list[int]) -> None:
        super().__init__()
        self.inner, self.at, self.calls = inner, at, calls

    def __deepcopy__(self, memo: dict[int, Any]) -> "Interrupting":
        return Interrupting(copy.deepcopy(self.inner, memo), self.at, self.calls)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        self.calls[0] += 1
        if self.calls[0] == self.at:
            raise KeyboardInterrupt
        return out


@pytest.mark.parametrize("at", [5, 6, 7, 8, 9])
def test_an_interruption_leaves_no_trace(setting: Setting, method: str, at: int) -> None:
    wrapped = Interrupting(setting.model, at, [0])
    mine = Setting(wrapped, setting.others, setting.val, setting.test, setting.ood)
    before = everything(wrapped)
    detector = MAKERS[method](mine)
    with pytest.raises(KeyboardInterrupt):
        detector.fit(setting.loader())
    assert same(before, everything(wrapped))
    hooks = [len(m._forward_hooks) for m in detector.network.module.modules()]
    assert sum(hooks) == 0  # the copy's own, too
    assert detector.fit(setting.loader()).score(setting.test).isfinite().all()


@pytest.mark.usefixtures("registered")
def test_a_loaded_detector_is_the_saved_one(setting: Setting, method: str, tmp_path: Path) -> None:
    detector = MAKERS[method](setting, seed=3).fit(setting.loader())
    detector.save(tmp_path / "d.safetensors")
    model = setting.model
    if method == "ensemble":
        model = nn.ModuleList([setting.model, *setting.others])
    again = tulip_ood.load(tmp_path / "d.safetensors", model)
    assert type(again) is type(detector)
    assert torch.equal(again.score(setting.ood), detector.score(setting.ood))
    assert again.configuration()[0] == detector.configuration()[0]


def test_inputs_that_are_not_finite_have_no_score(setting: Setting, method: str) -> None:
    detector = MAKERS[method](setting).fit(setting.loader())
    x = setting.test[:4].clone()
    x[1, 0, 2, 3] = float("nan")
    x[2, 0, 0, 0] = float("inf")
    scores = detector.score(x)
    assert scores.isinf().tolist() == [False, True, True, False]
    allowed = 1e-5 * detector.calibration.spread
    assert (scores[[0, 3]] - detector.score(x[[0, 3]])).abs().max() <= allowed


def test_gradients_are_there_inside_inference_mode(setting: Setting, method: str) -> None:
    detector = MAKERS[method](setting).fit(setting.loader())
    with torch.inference_mode():
        x = setting.test * 1.0
        assert torch.equal(detector.score(x), detector.score(setting.test))


def test_parts_of_a_sum(setting: Setting) -> None:
    """A record made once serves several methods."""
    odin = ODIN(setting.model).fit(setting.loader())
    network = odin.network
    both = (odin, GradNorm(network).fit(setting.loader()))
    needs = odin._needs_to_score()
    rows = odin.engine.collect(setting.loader(), needs, seed=0, memory=1 << 30)
    passes = odin.engine.passes_of(rows, needs, seed=0)
    for detector in both:
        again = type(detector)(network).fit(passes)
        assert torch.equal(again.score(passes), detector.score(passes))
    with pytest.raises(InputError, match="lack"):
        Gram(network).fit(passes)


@pytest.mark.parametrize("kind", [ODIN, GradNorm, RankFeat, Gram, AdaScaleA, AdaScaleL])
def test_other_tasks_are_refused(kind: Any) -> None:
    with pytest.raises(InputError, match="defined for task 'classification'"):
        kind(nn.Linear(4, 1), task="regression")


# ------------------------------------------------------------------------------------- ODIN


def literal_odin(model: nn.Module, x: Tensor, t: float, noise: float, std: Tensor) -> list[float]:
    """One input at a time, with backward()."""
    model = copy.deepcopy(model).double().eval()
    found = []
    for one in x.double().split(1):
        leaf = one.clone().requires_grad_(True)
        z = model(leaf)
        functional.cross_entropy(z / t, z.argmax(1)).backward()
        assert leaf.grad is not None
        sign = torch.where(leaf.grad >= 0, 1.0, -1.0)
        moved = one - noise * sign / std.reshape(1, -1, 1, 1)
        p = torch.softmax(model(moved) / t, dim=1)
        found.append(-float(p.detach().max()))
    return found


@pytest.mark.parametrize("temperature", [1.0, 1000.0])
@pytest.mark.parametrize("noise", [0.0014, 0.05])
def test_odin(setting: Setting, temperature: float, noise: float) -> None:
    detector = ODIN(setting.model, temperature=temperature, noise=noise, std=[0.25])
    found = detector.fit(setting.loader()).score(setting.ood)
    std = torch.tensor([0.25], dtype=torch.float64)
    expected = 1 + np.array(literal_odin(setting.model, setting.ood, temperature, noise, std))
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-6 * np.ptp(expected) + 1e-9)


def test_odin_divides_by_a_deviation_for_each_channel() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))
        x, y = torch.randn(60, 3, 6, 6), torch.arange(60) % 3
    std = (0.2, 0.5, 2.0)
    found = ODIN(model, noise=0.3, std=std).fit([(x, y)]).score(x[:9])
    wide = torch.tensor(std, dtype=torch.float64)
    expected = 1 + np.array(literal_odin(model, x[:9], 1000.0, 0.3, wide))
    assert np.allclose(found, expected, atol=1e-7)
    with pytest.raises(InputError, match="std has 2 numbers"):
        ODIN(model, std=(1.0, 2.0)).fit([(x, y)])


def test_odin_chooses_from_openood_s_list(setting: Setting) -> None:
    detector = ODIN(setting.model, noise=0.7).fit(setting.loader(), tune=[setting.ood])
    assert detector.temperature in (1.0, 10.0, 100.0, 1000.0)
    assert detector.noise in (0.0014, 0.0028)
    assert detector._facts["tried"] == 8
    plain = ODIN(setting.model, temperature=detector.temperature, noise=detector.noise)
    plain.fit(setting.loader())
    assert torch.equal(plain.score(setting.ood), detector.score(setting.ood))


class Cut(nn.Module):
    """A forward that lets no gradient through."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


def test_odin_refuses_what_cannot_be_moved() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
    x, y = torch.randint(9, (60, 3)), torch.arange(60) % 3
    with pytest.raises(ModelError, match="gradient"):
        ODIN(model).fit([(x, y)])
    cut = Cut(nn.Linear(2, 3))
    with pytest.raises(ModelError, match="none reaches them"):
        ODIN(cut).fit([(torch.randn(60, 2), y)])
    with pytest.raises(InputError, match="temperature > 0"):
        ODIN(model, temperature=0.0)


# --------------------------------------------------------------------------------- GradNorm


def test_gradnorm_is_the_gradient_that_autograd_gives(setting: Setting) -> None:
    found = GradNorm(setting.model).fit(setting.loader()).score(setting.ood)
    model = copy.deepcopy(setting.model).double()
    expected = []
    for one in setting.ood.double().split(1):
        model.zero_grad()
        (-torch.log_softmax(model(one), dim=1).sum()).backward()
        expected.append(-float(model.fc.weight.grad.abs().sum()))
    assert np.allclose(found, expected, rtol=1e-5)


def test_gradnorm_on_vectors_and_without_a_last_layer(vectors: Any) -> None:
    detector = GradNorm(vectors.model).fit(vectors.loader())
    assert detector.score(vectors.ood).isfinite().all()
    scaled = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    with pytest.raises(ModelError, match="last linear layer"):
        GradNorm(scaled).fit(vectors.loader())


# --------------------------------------------------------------------------------- RankFeat


def hooked(model: nn.Module, names: tuple[str, ...], x: Tensor) -> tuple[Tensor, list[Tensor]]:
    kept: list[Tensor] = []
    handles = [
        model.get_submodule(name).register_forward_hook(lambda m, a, out: kept.append(out.clone()))
        for name in names
    ]
    with torch.no_grad():
        z = model(x)
    for handle in handles:
        handle.remove()
    return z, kept


def literal_rankfeat(model: nn.Module, x: Tensor) -> list[float]:
    """numpy's SVD of one matrix at a time; what follows a stage is run by hand."""
    model = copy.deepcopy(model).double()
    found = []
    for one in x.double().split(1):
        _, maps = hooked(model, ("stage2", "stage3"), one)
        less = []
        for m in maps:
            u, s, v = np.linalg.svd(m[0].flatten(1).numpy(), full_matrices=False)
            part = s[0] * np.outer(u[:, 0], v[0])
            less.append(m - torch.from_numpy(part).reshape(m.shape))
        with torch.no_grad():
            one_logits = model.fc(model.stage3(less[0]).mean(dim=(2, 3)))
            two_logits = model.fc(less[1].mean(dim=(2, 3)))
        mean = ((one_logits + two_logits) / 2).numpy()[0]
        found.append(-float(np.log(np.exp(mean - mean.max()).sum()) + mean.max()))
    return found


def test_rankfeat(setting: Setting) -> None:
    found = RankFeat(setting.model).fit(setting.loader()).score(setting.ood)
    expected = literal_rankfeat(setting.model, setting.ood)
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)
    named = RankFeat(setting.model, stages=("stage2", "stage3")).fit(setting.loader())
    assert torch.equal(named.score(setting.ood), found)


@pytest.mark.parametrize("shape", [(3, 5, 2, 3), (3, 2, 4, 4), (1, 4, 1, 4)])
def test_without_rank_one_is_the_svd_without_its_first_term(shape: tuple[int, ...]) -> None:
    maps = random.normal(shape, seed=0, name="maps").double()
    found = without_rank_one(maps)
    for m, left in zip(maps, found, strict=True):
        u, s, v = np.linalg.svd(m.flatten(1).numpy(), full_matrices=False)
        rest = (u[:, 1:] * s[1:]) @ v[1:]
        assert np.allclose(left.flatten(1), rest, atol=1e-12)
    assert torch.equal(without_rank_one(torch.zeros(shape)), torch.zeros(shape))


def test_rankfeat_refuses_networks_without_maps(vectors: Any, setting: Setting) -> None:
    with pytest.raises(ModelError, match="maps .N, C, H, W. of the last two stages"):
        RankFeat(vectors.model).fit(vectors.loader())
    with pytest.raises(ModelError, match="'fc' gives"):
        RankFeat(setting.model, stages=("stage3", "fc")).fit(setting.loader())
    with pytest.raises(ModelError, match="fits no part .* stage1"):
        RankFeat(setting.model, stages=("layer3", "layer4")).fit(setting.loader())
    with pytest.raises(ModelError, match="stages fits 3"):
        RankFeat(setting.model, stages=("stage?",)).fit(setting.loader())
    with pytest.raises(InputError, match="two names"):
        RankFeat(setting.model, stages="stage3")


# ----------------------------------------------------------------------------------- stages


class Listed(nn.Module):
    """Blocks in ModuleLists, which are never called themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.ModuleList([Block(1, 4), Block(4, 4)])
        self.two = nn.ModuleList([Block(4, 8, 2), Block(8, 8)])
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in (*self.one, *self.two):
            x = block(x)
        out: Tensor = self.fc(x.mean(dim=(2, 3)))
        return out


class ChannelsLast(nn.Module):
    """Maps [N, H, W, C] that no convolution has made."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(1), nn.Linear(1, 1), nn.LayerNorm(1), nn.Linear(1, 1))
            for _ in range(2)
        )
        self.fc = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.movedim(1, -1)
        for stage in self.stages:
            x = stage(x)
        out: Tensor = self.fc(x.mean(dim=(1, 2)))
        return out


VGG = nn.Sequential(
    nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    ),
    nn.Flatten(),
    nn.Linear(32, 3),
)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Staged(), ("stage1", "stage2", "stage3")),
        (Listed(), ("one.1", "two.1")),
        (VGG, ("0.3", "0.6", "0.7")),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 3)), ()),
        (ChannelsLast(), ()),
    ],
    ids=["containers", "lists", "one container", "vectors", "channels last"],
)
def test_stages_are_found(model: nn.Module, expected: tuple[str, ...]) -> None:
    network = Network(model, make_task("classification"))
    assert find_stages(network, torch.randn(3, 1, 8, 8)) == expected


# ------------------------------------------------------------------------------------- Gram


def literal_rows(maps: np.ndarray, powers: tuple[int, ...]) -> list[float]:
    """C × C Gram matrices of one input's maps [C, H·W], one power at a time."""
    found: list[float] = []
    for p in powers:
        raised = maps**p
        sums = (raised @ raised.T).sum(axis=1)
        found += [float(np.sign(s) * abs(s) ** (1.0 / p)) for s in sums]
    return found


def literal_gram(setting: Setting, learned: Tensor, x: Tensor, powers: tuple[int, ...]) -> Any:
    """Bounds, scale and scores, with dictionaries by class."""
    names = ("stage1", "stage2", "stage3")
    model = copy.deepcopy(setting.model).double()

    def statistics(inputs: Tensor) -> tuple[np.ndarray, list[list[list[float]]]]:
        z, maps = hooked(model, names, inputs.double())
        rows = [
            [literal_rows(m[i].flatten(1).numpy(), powers) for m in maps]
            for i in range(len(inputs))
        ]
        return z.numpy(), rows

    z, rows = statistics(learned)
    held = held_out_tenth(0, len(learned), seed=0).tolist()
    bounds: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for c in range(4):
        own = [r for r, a, h in zip(rows, z.argmax(1), held, strict=True) if a == c and not h]
        assert own, "every class is predicted in this test"
        bounds[c] = [
            (np.min([r[i] for r in own], axis=0), np.max([r[i] for r in own], axis=0))
            for i in range(len(names))
        ]

    def floor(layer: int, power: int) -> float:
        """A hundredth of the mean size of the bounds that are not 0."""
        width = len(bounds[0][layer][0]) // len(powers)
        own = slice(power * width, (power + 1) * width)
        every = [abs(v) for c in bounds for b in bounds[c][layer] for v in b[own] if v != 0]
        return 0.01 * float(np.mean(every))

    def deviation(row: list[list[float]], c: int) -> list[float]:
        found = []
        for layer, (values, (low, high)) in enumerate(zip(row, bounds[c], strict=True)):
            total = 0.0
            width = len(values) // len(powers)
            for i, (v, lo, hi) in enumerate(zip(values, low, high, strict=True)):
                least = floors[layer, i // width]
                total += max(lo - v, 0.0) / (abs(lo) + least)
                total += max(v - hi, 0.0) / (abs(hi) + least)
            found.append(total)
        return found

    floors = {(i, j): floor(i, j) for i in range(len(names)) for j in range(len(powers))}

    kept = [deviation(r, int(a)) for r, a, h in zip(rows, z.argmax(1), held, strict=True) if h]
    scale = np.mean(kept, axis=0)
    z, rows = statistics(x)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return [
        sum(np.array(deviation(r, int(a))) / scale) / q.max()
        for r, a, q in zip(rows, z.argmax(1), p, strict=True)
    ]


@pytest.mark.parametrize("powers", [(1, 2, 3, 4, 5), (1, 10)])
def test_gram_learned_from_training_data(setting: Setting, powers: tuple[int, ...]) -> None:
    """`train` keeps its order, so the literal version can hold the same tenth out."""
    learned = setting.val[0][:300]
    train = [(learned[i : i + 50], setting.val[1][i : i + 50]) for i in range(0, 300, 50)]
    detector = Gram(setting.model, powers=powers).fit(setting.loader(), train=train)
    expected = literal_gram(setting, learned, setting.ood, powers)
    assert np.allclose(detector.score(setting.ood), expected, rtol=1e-3)


def test_gram_does_not_depend_on_how_the_data_is_cut(setting: Setting) -> None:
    x, y = setting.val
    one = Gram(setting.model, batch_size=420).fit(setting.loader(), train=[(x, y)])
    parts = list(zip(x.split(33), y.split(33), strict=True))
    two = Gram(setting.model, batch_size=420).fit(setting.loader(), train=parts)
    assert torch.allclose(one._state.low, two._state.low, rtol=1e-5, atol=1e-5)
    assert torch.allclose(one._state.scale, two._state.scale, rtol=1e-3)
    assert one._facts["track"] == "train"


def test_a_tenth_is_held_out_with_a_seed() -> None:
    masks = [held_out_tenth(0, 30000, seed) for seed in (0, 1)]
    for mask in masks:
        assert mask.reshape(-1, 10).sum(dim=1).tolist() == [1] * 3000
    assert not torch.equal(masks[0], masks[1])
    parts = [held_out_tenth(first, 700, 0) for first in range(0, 28000, 700)]
    assert torch.equal(torch.cat(parts), masks[0][:28000])


def test_gram_bounds_a_class_that_is_never_predicted(setting: Setting) -> None:
    """Its bounds are those of all other classes together."""
    x, y = setting.val
    with torch.no_grad():
        answers = setting.model(x).argmax(dim=1)
    some = answers != 2
    detector = Gram(setting.model).fit(setting.loader(), train=[(x[some], y[some])])
    low = detector._state.low
    assert torch.equal(low[2], low[[0, 1, 3]].amin(dim=0))
    assert detector.score(x[~some]).isfinite().all()


def test_rounding_of_dead_channels_does_not_show_in_gram() -> None:
    """A value that is 0 but for rounding, where a class has shown nothing but 0."""
    rows = random.normal((200, 2, 3, 8), seed=0, name="rows").exp()
    rows[:, 0, :, :4] = 0.0
    logits = random.normal((200, 3), seed=0, name="logits")
    key, none = "gram:powers=1,2,3:layers=x", torch.zeros(0, 200, 3)
    settings = PassSettings(1.0, n_samples=0)
    passes = Passes(logits, none, None, None, None, settings, extras={key: rows})
    detector = Gram(nn.Linear(2, 3), powers=(1, 2, 3), layers=["x"])
    state = detector._learn(passes)
    shaken = replace(passes, extras={key: rows + 1e-7})
    scores = detector._score(state, passes)
    spread = float(scores.quantile(0.95) - scores.quantile(0.05))
    # All twelve at once; with a guard of 1e-6 they would count for more than the whole spread.
    assert (detector._score(state, shaken) - scores).abs().max() <= 1e-3 * spread
    alive = replace(passes, extras={key: rows + (rows == 0)})
    assert (detector._score(state, alive) > scores + spread).all()


def test_gram_refuses(vectors: Any, setting: Setting) -> None:
    without = Gram(vectors.model)
    for _ in range(2):  # the second time as the first
        with pytest.raises(ModelError, match="stages"):
            without.fit(vectors.loader())
    assert Gram(vectors.model, layers=["1", "3"]).fit(vectors.loader()).score(vectors.ood).max() > 0
    for powers in ((), (0, 1), (2, 1), (1, 1), (1.5,)):
        with pytest.raises(InputError, match="powers"):
            Gram(setting.model, powers=powers)
    with pytest.raises(InputError, match="list of names"):
        Gram(setting.model, layers="stage1")
    x, y = setting.val
    with pytest.raises(InputError, match="at least 10"):
        Gram(setting.model).fit(setting.loader(), train=[(x[:7], y[:7])])


# ------------------------------------------------------------------------------- MC-Dropout


def literal_mcd(model: nn.Module, x: Tensor, passes: int, seed: int) -> np.ndarray:
    """The two layers replaced by products with masks that are drawn here."""
    model = copy.deepcopy(model).double()
    total = np.zeros((len(x), 4))
    for i in range(passes):
        wide = random.uniform((8, 1, 1), seed=seed, name="dropout/middle", index=i) >= 0.2
        flat = random.uniform((24,), seed=seed, name="dropout/drop", index=i) >= 0.3
        with torch.no_grad():
            maps = model.stage2(model.stage1(x.double())) * wide / 0.8
            z = model.fc(model.stage3(maps).mean(dim=(2, 3)) * flat / 0.7).numpy()
        p = np.exp(z - z.max(axis=1, keepdims=True))
        total += p / p.sum(axis=1, keepdims=True)
    return total / passes


def test_mcd(setting: Setting) -> None:
    mean = literal_mcd(setting.model, setting.ood, 5, 0)
    entropy = -(mean * np.log(mean)).sum(axis=1)
    found = MCDropout(setting.model).fit(setting.loader()).score(setting.ood)
    assert np.allclose(found, entropy, atol=1e-5)
    msp = MCDropout(setting.model, score="msp", n_samples=3, seed=7).fit(setting.loader())
    expected = 1 - literal_mcd(setting.model, setting.ood, 3, 7).max(axis=1)
    assert np.allclose(msp.score(setting.ood), expected, atol=1e-5)


DROPOUTS = [
    (nn.Dropout(0.4), (5, 6)),
    (nn.Dropout1d(0.4), (5, 6, 3)),
    (nn.Dropout2d(0.4), (5, 6, 3, 2)),
    (nn.Dropout3d(0.4), (5, 6, 3, 2, 2)),
    (nn.AlphaDropout(0.4), (5, 6)),
    (nn.FeatureAlphaDropout(0.4), (5, 6, 3, 2)),
]


@pytest.mark.parametrize(("layer", "shape"), DROPOUTS, ids=lambda v: type(v).__name__)
def test_every_dropout_layer_does_what_pytorch_s_does(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    """PyTorch's own result, given the mask that can be read off it."""
    x = random.normal(shape, seed=1, name="x") + 3
    ours = drop(layer, x, seed=0, name="layer", index=2)
    channels = not isinstance(layer, nn.Dropout) and type(layer) is not nn.AlphaDropout
    one = x[:1]
    seen: dict[Any, Tensor] = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(200):  # each value (or channel) is dropped, and kept, at some time
            theirs = layer.train()(one)
            for place in np.ndindex(*one.shape):
                seen.setdefault((place, round(float(theirs[place]), 4)), theirs[place])
    for place in np.ndindex(*one.shape):
        assert (place, round(float(ours[place]), 4)) in seen
        options = {value for where, value in seen if where == place}
        assert len(options) == 2
    # One mask for all inputs: what is dropped in one is dropped in all.
    dropped = torch.isclose(ours, ours.new_tensor(float(ours.min())))
    assert all(torch.equal(dropped[0], row) for row in dropped)
    if channels:
        assert torch.equal(dropped.flatten(2).all(dim=2), dropped.flatten(2).any(dim=2))
    assert 0 < int(dropped[0].sum()) < dropped[0].numel()


def test_the_share_that_is_dropped_is_p() -> None:
    x = torch.ones(1, 20000)
    for p in (0.1, 0.5, 0.9):
        out = drop(nn.Dropout(p), x, seed=0, name="d", index=0)
        assert abs(float((out == 0).double().mean()) - p) < 0.015
    assert torch.equal(drop(nn.Dropout(1.0), x, seed=0, name="d", index=0), torch.zeros_like(x))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 16), nn.Linear(16, 3)
        self.drop, self.unused = nn.Dropout(0.5), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.drop(self.drop(self.first(x))))
        return out


def test_a_layer_that_runs_twice_has_two_masks(vectors: Any) -> None:
    detector = MCDropout(Twice(), n_samples=1, score="mls").fit(vectors.loader())
    model, x = detector.network.module, vectors.ood[:5].double()
    weights = {n: p.double() for n, p in detector.network.parameters.items()}
    hidden = functional.linear(x, weights["first.weight"], weights["first.bias"])
    for name in ("dropout/drop", "dropout/drop#1"):
        hidden = hidden * (random.uniform((16,), seed=0, name=name) >= 0.5) / 0.5
    z = functional.linear(hidden, weights["second.weight"], weights["second.bias"])
    assert model.unused.p > 0
    assert torch.allclose(detector.score(x.float()), -z.amax(dim=1), atol=1e-5)


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop, self.fc = nn.Linear(2, 6), nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(torch.stack([x, -x]))  # [2, N, 6]
        out: Tensor = self.fc(self.drop(x).mean(dim=0))
        return out


@pytest.mark.parametrize("task", ["binary", "multilabel", "regression"])
def test_mcd_and_ensembles_for_other_tasks(vectors: Any, task: str) -> None:
    x = vectors.val[0]
    y = x[:, :1] > 0 if task != "regression" else x[:, :1] * 2
    with torch.random.fork_rng():
        torch.manual_seed(0)
        models = [
            nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
            for _ in range(2)
        ]
    data = [(x, y.float())]
    for detector in (
        MCDropout(models[0], task=task),
        Ensemble(models[0], others=models[1:], task=task),
    ):
        assert detector.fit(data).score(x[:7]).isfinite().all()


def test_mcd_refuses(vectors: Any, setting: Setting) -> None:
    with pytest.raises(ModelError, match="F.dropout"):
        MCDropout(vectors.model).fit(vectors.loader())
    never = nn.Sequential(nn.Linear(2, 9), nn.Dropout(0.0), nn.Linear(9, 3))
    with pytest.raises(ModelError, match="p > 0"):
        MCDropout(never).fit(vectors.loader())
    with pytest.raises(ModelError, match="batch_first"):
        MCDropout(SequenceFirst()).fit(vectors.loader())
    with pytest.raises(InputError, match="n_samples"):
        MCDropout(setting.model, n_samples=0)
    with pytest.raises(InputError, match="score"):
        MCDropout(setting.model, score="bounds")


# --------------------------------------------------------------------------------- Ensemble


def test_ensemble(setting: Setting) -> None:
    with torch.no_grad():
        models = [copy.deepcopy(m).double() for m in (setting.model, *setting.others)]
        p = [m(setting.ood.double()).softmax(1).numpy() for m in models]
    mean = np.mean(p, axis=0)
    found = Ensemble(setting.model, others=setting.others).fit(setting.loader())
    assert np.allclose(found.score(setting.ood), -(mean * np.log(mean)).sum(1), atol=1e-5)
    msp = Ensemble(setting.model, others=setting.others, score="msp").fit(setting.loader())
    assert np.allclose(msp.score(setting.ood), 1 - mean.max(axis=1), atol=1e-5)


def test_ensemble_refuses(setting: Setting) -> None:
    model = setting.model
    with pytest.raises(InputError, match="at least one more network"):
        Ensemble(model)
    with pytest.raises(InputError, match="a single network"):
        Ensemble(model, others=setting.others[0])
    with pytest.raises(InputError, match=r"others\[1\] has the same weights as the model itself"):
        Ensemble(model, others=[setting.others[0], copy.deepcopy(model)])
    with pytest.raises(InputError, match=r"others\[1\] has the same weights as others\[0\]"):
        Ensemble(model, others=[setting.others[0]] * 2)
    with pytest.raises(ModelError, match=r"others\[0\] has 7 outputs, the model 4"):
        Ensemble(model, others=[Staged(7)]).fit(setting.loader())
    with pytest.raises(InputError, match="bound"):
        Ensemble(model, others=setting.others, score="bound")


def test_an_ensemble_notices_that_another_network_has_changed(setting: Setting) -> None:
    other = copy.deepcopy(setting.others[0])
    detector = Ensemble(setting.model, others=[other]).fit(setting.loader())
    with torch.no_grad():
        other.fc.bias += 1.0
    with pytest.raises(ModelError, match="have changed since"):
        detector.score(setting.test)
    detector.fit(setting.loader())
    assert detector.score(setting.test).isfinite().all()


@pytest.mark.usefixtures("registered")
def test_an_ensemble_s_file_asks_for_its_networks(setting: Setting, tmp_path: Path) -> None:
    path = tmp_path / "ensemble.safetensors"
    Ensemble(setting.model, others=setting.others).fit(setting.loader()).save(path)
    with pytest.raises(InputError, match="ensemble of 3 networks, got 1.*ModuleList"):
        tulip_ood.load(path, setting.model)
    swapped = nn.ModuleList([setting.model, *reversed(setting.others)])
    with pytest.raises(FileFormatError, match=r"others\[0\] is not the network"):
        tulip_ood.load(path, swapped)


# --------------------------------------------------------------------------------- AdaSCALE


def literal_adascale(
    setting: Setting, learned: Tensor, x: Tensor, *, low: float, high: float, on_logits: bool
) -> Iterator[float]:
    """One input at a time: k1 = 5 %, k2 = 1 %, λ = 10, o = 20 %, ε = 0.5."""
    model = copy.deepcopy(setting.model).double()

    def features(inputs: Tensor) -> Tensor:
        return model.stage3(model.stage2(model.stage1(inputs))).mean(dim=(2, 3))

    def statistic(one: Tensor) -> tuple[np.ndarray, float]:
        leaf = one.double().clone().requires_grad_(True)
        model.fc(features(leaf)).max().backward()
        assert leaf.grad is not None
        gradient = leaf.grad.flatten().numpy()
        moved = one.double().flatten().numpy().copy()
        for place in sorted(range(64), key=lambda i: abs(gradient[i]))[: int(64 * 0.2)]:
            moved[place] += 0.5 * np.sign(gradient[place])
        with torch.no_grad():
            h = features(one.double())[0].numpy()
            h2 = features(torch.from_numpy(moved).reshape(1, 1, 8, 8))[0].numpy()
        top = int(h.argmax())  # 5 % and 1 % of 24 features: at least one
        return h, max(h2[top], 0.0) + 10 * abs(h[top] - h2[top])

    own = np.sort([statistic(one)[1] for one in learned.split(1)])
    for one in x.split(1):
        h, q = statistic(one)
        share = np.interp(q, own, np.arange(1, len(own) + 1) / len(own))
        percentile = low + (1 - share) * (high - low)
        k = max(1, 24 - round(24 * percentile / 100))
        positive = np.sort(np.maximum(h, 0.0))[::-1]
        r = positive.sum() / positive[:k].sum()
        weight, bias = (t.detach().numpy() for t in (model.fc.weight, model.fc.bias))
        z = (weight @ h + bias) * r**2 if on_logits else weight @ (h * np.exp(r)) + bias
        yield -float(np.log(np.exp(z - z.max()).sum()) + z.max())


@pytest.mark.parametrize("kind", [AdaScaleA, AdaScaleL])
def test_adascale(setting: Setting, kind: Any) -> None:
    detector = kind(setting.model, percentiles=(20.0, 90.0), share=0.2)
    x, y = setting.val
    rows = detector.engine.collect([(x[:80], y[:80])], detector._needs(), seed=0, memory=1 << 30)
    passes = detector.engine.passes_of(rows, detector._needs(), seed=0)
    state = detector._learn(passes)
    found = detector.engine.over(
        setting.ood, detector._needs(), lambda p: (detector._score(state, p),)
    )[0]
    expected = list(
        literal_adascale(
            setting, x[:80], setting.ood, low=20.0, high=90.0, on_logits=kind is AdaScaleL
        )
    )
    assert np.allclose(found, expected, rtol=1e-4)
    assert np.ptp(expected) > 1e-2


def test_the_distribution_of_the_statistic_is_the_empirical_one_at_its_own_values() -> None:
    from tulip_ood.detectors.adascale import AdaScaleState

    own = torch.tensor([1.0, 2.0, 2.0, 4.0], dtype=torch.float64)
    values = torch.tensor([0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 9.0], dtype=torch.float64)
    found = AdaScaleState(own).rank(values)
    assert found.tolist() == [0.25, 0.25, 0.375, 0.75, 0.875, 1.0, 1.0]


def test_adascale_chooses_from_openood_s_list(setting: Setting) -> None:
    assert len(AdaScaleA.search["percentiles"]) == 36
    detector = AdaScaleL(setting.model, percentiles=(1.0, 2.0))
    detector.fit(setting.loader(), tune=[setting.ood])
    assert detector.percentiles in AdaScaleL.search["percentiles"]
    assert detector._facts["tried"] == 36


def test_adascale_refuses(vectors: Any, setting: Setting) -> None:
    for bad in ((90.0, 80.0), (50.0, 100.0), (50.0,), (-1.0, 5.0)):
        with pytest.raises(InputError, match="percentiles"):
            AdaScaleA(setting.model, percentiles=bad)
    with pytest.raises(InputError, match="share"):
        AdaScaleA(setting.model, share=0.0)
    with pytest.raises(InputError, match="k1"):
        AdaScaleA(setting.model, k1=101.0)
    squashed = nn.Sequential(nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 3), nn.Tanh())
    with pytest.raises(ModelError, match="last linear layer"):
        AdaScaleA(squashed).fit(vectors.loader())
    accepted = AdaScaleA(vectors.model, share=0.5).fit(vectors.loader())
    assert accepted.score(vectors.ood).isfinite().all()
