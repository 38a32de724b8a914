"""RankFeat and Gram against hooks on the user's own model and numpy; the stages they look at."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tulip_ood.detectors.gram import Gram, held_out_tenth
from tulip_ood.detectors.rankfeat import RankFeat, without_rank_one
from tulip_ood.errors import InputError, ModelError
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings
from tulip_ood.network.stages import find_stages
from tulip_ood.numerics import random
from tulip_ood.numerics.tasks import make_task

from .staged import Block, Setting, Staged

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")

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
