"""`drift="norm"`: D := ‖f(z)‖, and one pass less."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tulip_ood
from tulip_ood.errors import InputError
from tulip_ood.network.rows import collect_rows

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


def fitted(images: Any, recipe: str = "balanced", **more: Any) -> tulip_ood.Tulip:
    detector = tulip_ood.Tulip(images.model, drift="norm", n_samples=4, **more)
    return detector.fit(images.loader(), recipe=recipe)


@pytest.mark.parametrize("more", [{}, {"shaping": "scale"}, {"scope": "head"}])
def test_it_is_the_drift_of_doubled_logits(images: Any, more: dict[str, Any]) -> None:
    detector = fitted(images, **more)
    assert detector._needs().passes == 5
    rows = collect_rows(images.loader(), seed=0)
    passes = detector.engine.passes_of(rows, detector._needs(), seed=0)
    assert passes.drift is None
    if more:
        return
    state = detector._state
    norm = passes.base.to(torch.float64).norm(dim=-1)
    trace = (passes.noisy - passes.base).to(torch.float64).square().sum(dim=-1).mean(dim=0)
    bound = tulip_ood.Tulip(images.model, drift="norm", n_samples=4, score="bound")
    bound.fit(passes, recipe="balanced")
    expected = trace + bound._state.trace_xx - bound._state.lam * norm
    assert torch.allclose(bound.score(passes), expected)
    assert state.lam == pytest.approx(2 * state.trace_xx / float(norm.mean()), rel=0.2)


def test_a_drift_pass_that_is_there_is_not_looked_at(images: Any) -> None:
    whole = tulip_ood.Tulip(images.model, n_samples=4).fit(images.loader(), recipe="balanced")
    rows = collect_rows(images.loader(), seed=0)
    passes = whole.engine.passes_of(rows, whole._needs(), seed=0)
    norm = tulip_ood.Tulip(images.model, drift="norm", n_samples=4)
    norm.fit(passes, recipe="balanced")
    assert torch.equal(norm.score(passes), norm.score(replace(passes, drift=9 * passes.base)))
    assert not torch.equal(norm.score(passes), whole.score(passes))
    with pytest.raises(InputError, match="this detector needs"):
        whole.score(passes.serving(norm._settings()))


def test_it_is_saved_and_said(images: Any, tmp_path: Path) -> None:
    detector = fitted(images, recipe="self")
    assert "D := ‖f(z)‖ for the drift" in detector.report().lines[0]
    detector.save(tmp_path / "d.safetensors")
    again = tulip_ood.load(tmp_path / "d.safetensors", images.model)
    assert again.drift == "norm"
    assert torch.equal(again.score(images.ood), detector.score(images.ood))


def test_other_words_are_refused(images: Any) -> None:
    with pytest.raises(InputError, match="drift must be one of pass, norm; got 'none'"):
        tulip_ood.Tulip(images.model, drift="none")
