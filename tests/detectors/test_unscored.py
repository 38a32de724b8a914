"""Inputs on which a network is silent, and scores that are not numbers: what thresholds promise."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.detectors.fitting import learn_and_calibrate
from tulip_ood.detectors.logits import Nothing
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings
from tulip_ood.numerics import shaping
from tulip_ood.numerics.tasks import make_task

pytestmark = pytest.mark.usefixtures("short_search")

quiet = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


class Silent(nn.Module):
    """All features are 0 for one input in six."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = nn.Linear(8, 60), nn.Linear(60, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.wide(x)) * (x[:, :1] > -1))


@pytest.fixture(scope="module")
def silent() -> tuple[nn.Module, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = Silent().eval(), torch.randn(600, 8)
        y = model(x).argmax(1)
        y[::7] = 0
        return model, x, y


@pytest.mark.parametrize("shape", [shaping.ash_s, shaping.ash_b, shaping.scale])
def test_no_features_stay_none(shape: Any) -> None:
    features = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    shaped = shape(features, 65.0)
    assert shaped[0].tolist() == [0.0] * 4
    assert torch.equal(shaped[1:], shape(features[1:], 65.0))


@quiet
@pytest.mark.parametrize("name", ["scale", "ash-s", "tulip+scale", "ash-s&msp", "auto"])
def test_silent_inputs_are_scored(name: str, silent: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = silent
    detector = tulip_ood.detectors.make(name, model).fit([(x, y)])
    fresh = torch.randn(1000, 8, generator=torch.Generator().manual_seed(1))
    assert bool(detector.score(fresh).isfinite().all())
    assert detector.calibration.n_inputs == 300
    assert float((~detector.predict(fresh).accepted).double().mean()) < 0.1


def test_what_has_no_score_counts_as_odd() -> None:
    """Such inputs are refused later: left out here, they would not count as false alarms."""
    logits = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    labels, none = torch.zeros(500, dtype=torch.int64), torch.zeros(0, 500, 2)
    passes = Passes(logits, none, None, None, labels, PassSettings(1.0, n_samples=0))

    def score(_: Nothing, part: Passes) -> Tensor:
        return torch.where(part.base[:, 0] > 1, math.nan, part.base[:, 0])

    task = make_task("classification")
    _, calibration, _ = learn_and_calibrate(passes, task, lambda _: Nothing(), score)
    assert calibration.n_inputs == 250
    assert calibration.unscorable == float((logits[250:, 0] > 1).double().mean())


@quiet
def test_a_part_without_a_score_does_not_silence_a_sum(
    silent: tuple[nn.Module, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = silent
    energy = tulip_ood.detectors.Energy
    plain = energy._score

    def score(self: Any, state: Any, passes: Passes) -> Tensor:
        return torch.where(passes.base[:, 0] > 0.3, math.nan, plain(self, state, passes))

    monkeypatch.setattr(energy, "_score", score)
    found = tulip_ood.detectors.make("msp&ebo", model).fit([(x, y)]).score(x)
    assert torch.equal(found.isposinf(), model(x)[:, 0] > 0.3)
    assert bool((found[found.isfinite()].std() > 0.1).all())
