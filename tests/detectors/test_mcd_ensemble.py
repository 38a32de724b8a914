"""MC-Dropout with masks that are drawn by hand; ensembles against a mean in numpy."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tulip_ood
from tulip_ood.detectors.ensemble import Ensemble
from tulip_ood.detectors.mcd import MCDropout, drop
from tulip_ood.errors import FileFormatError, InputError, ModelError
from tulip_ood.numerics import random

from .staged import Setting, Staged

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")

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


def test_an_ensemble_s_file_asks_for_its_networks(setting: Setting, tmp_path: Path) -> None:
    path = tmp_path / "ensemble.safetensors"
    Ensemble(setting.model, others=setting.others).fit(setting.loader()).save(path)
    with pytest.raises(InputError, match="ensemble of 3 networks, got 1.*ModuleList"):
        tulip_ood.load(path, setting.model)
    swapped = nn.ModuleList([setting.model, *reversed(setting.others)])
    with pytest.raises(FileFormatError, match=r"others\[0\] is not the network"):
        tulip_ood.load(path, swapped)
