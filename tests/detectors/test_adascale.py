"""AdaSCALE-A and -L against autograd and numpy, one input at a time."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tulip_ood.detectors.adascale import AdaScaleState
from tulip_ood.detectors.adascale_a import AdaScaleA
from tulip_ood.detectors.adascale_l import AdaScaleL
from tulip_ood.errors import InputError, ModelError

from .staged import Setting

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


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
