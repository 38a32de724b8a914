"""ODIN and GradNorm against autograd on the user's own model, one input at a time."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tulip_ood.detectors.gradnorm import GradNorm
from tulip_ood.detectors.odin import ODIN
from tulip_ood.errors import InputError, ModelError

from .staged import Setting

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")

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
