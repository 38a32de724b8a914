"""Detectors that need gradients, inner layers, dropout or several networks: what they share.

Each is written a second time in a file of its own, with autograd and hooks on the user's own model
and loops in numpy.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.detectors.adascale_a import AdaScaleA
from tulip_ood.detectors.adascale_l import AdaScaleL
from tulip_ood.detectors.ensemble import Ensemble
from tulip_ood.detectors.gradnorm import GradNorm
from tulip_ood.detectors.gram import Gram
from tulip_ood.detectors.mcd import MCDropout
from tulip_ood.detectors.odin import ODIN
from tulip_ood.detectors.rankfeat import RankFeat
from tulip_ood.errors import InputError

from .staged import Setting

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")

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


def test_a_score_does_not_depend_on_the_batch(
    setting: Setting, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In float32, as large networks are run: small ones are given float64 on a CPU.
    monkeypatch.setattr("tulip_ood.network.precision.SMALL", 0, raising=False)
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
    assert sum(hooks) <= 1  # the tap on the last layer of the copy, and no edit's
    assert detector.fit(setting.loader()).score(setting.test).isfinite().all()


# Saving and loading as such is tested with every detector there is; here what is not a default.
@pytest.mark.parametrize("name", ["gram", "mcd", "odin"])
def test_a_loaded_detector_is_the_saved_one(setting: Setting, name: str, tmp_path: Path) -> None:
    detector = MAKERS[name](setting, seed=3).fit(setting.loader())
    detector.save(tmp_path / "d.safetensors")
    again = tulip_ood.load(tmp_path / "d.safetensors", setting.model)
    assert type(again) is type(detector)
    assert torch.equal(again.score(setting.ood), detector.score(setting.ood))
    assert again.configuration()[0] == detector.configuration()[0]


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
