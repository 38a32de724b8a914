"""The same input gives the same score: in any batch, at any place, with any batch size."""

from typing import Any

import pytest
import torch
from torch import nn

import tulip_ood

TOLERANCE = 1e-5  # of the validation scores' q95 − q5 range, as the contract defines equal


@pytest.fixture(params=["vectors", "images"])
def problem(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["balanced", "paper"])
def detector(problem: Any, request: pytest.FixtureRequest) -> Any:
    # j is given so that the envelope is wide even where the likelihood would switch it off.
    detector = tulip_ood.Tulip(problem.model, n_samples=4, j=2.0, lam=None)
    return detector.fit(problem.loader(), recipe=request.param)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_score_does_not_depend_on_the_batch(problem: Any, detector: Any) -> None:
    x = problem.test[0][:40]
    whole = detector.score(x)
    allowed = TOLERANCE * detector.calibration.spread
    alone = torch.cat([detector.score(one) for one in x.split(1)])
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    shuffled = torch.empty_like(whole)
    shuffled[order] = detector.score(x[order])
    assert (whole - alone).abs().max() <= allowed
    assert (whole - shuffled).abs().max() <= allowed
    small = tulip_ood.Tulip(problem.model, n_samples=4, j=2.0, batch_size=7)
    small.fit(problem.loader(), recipe=detector._facts["recipe"])
    assert (whole - small.score(x)).abs().max() <= allowed


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
@pytest.mark.parametrize("recipe", ["self", "balanced", "paper"])
@pytest.mark.parametrize("score", ["ent", "msp", "mls", "ebo", "gen", "bound"])
def test_what_fitting_chooses_does_not_depend_on_the_batch(
    problem: Any, score: str, recipe: str
) -> None:
    """Whatever J and ε come out; where float32 cannot, the report says so."""
    detector = tulip_ood.Tulip(problem.model, score=score).fit(problem.loader(), recipe=recipe)
    x = problem.test[0][:40]
    alone = torch.cat([detector.score(one) for one in x.split(1)])
    gap = float((detector.score(x) - alone).abs().max()) / detector.calibration.spread
    said = any(finding.code == "batch-sensitive" for finding in detector.report().findings)
    assert gap <= (100 * TOLERANCE if said else TOLERANCE)
    if recipe == "self" and score != "bound":  # the bound has no J to be modest about
        assert not said


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_score_is_bit_equal_for_the_same_seed_and_batch_size(problem: Any, detector: Any) -> None:
    x = problem.test[0]
    again = tulip_ood.Tulip(problem.model, n_samples=4, j=2.0)
    again.fit(problem.loader(), recipe=detector._facts["recipe"])
    assert torch.equal(detector.score(x), again.score(x))
    assert torch.equal(detector.score(x), detector.predict(x).score)


def test_the_order_of_the_loader_does_not_matter(vectors: Any) -> None:
    """A shuffled loader gives the same detector, to the last bit."""
    x, y = vectors.val
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
    one = tulip_ood.Tulip(vectors.model).fit(vectors.loader())
    other = tulip_ood.Tulip(vectors.model).fit([(x[order], y[order])])
    assert one._state.setting == other._state.setting
    assert torch.equal(one.calibration.scores, other.calibration.scores)
    assert torch.equal(one.score(vectors.ood), other.score(vectors.ood))


def test_regenerated_noise_is_the_held_noise(vectors: Any) -> None:
    held = tulip_ood.Tulip(vectors.model).fit(vectors.loader(), recipe="balanced")
    drawn = tulip_ood.Tulip(vectors.model, hold=False).fit(vectors.loader(), recipe="balanced")
    assert torch.equal(held.score(vectors.ood), drawn.score(vectors.ood))
    assert held.memory() > 0
    assert drawn.memory() == 0


def test_training_mode_makes_no_difference(images: Any) -> None:
    """A model left in training mode is scored as it would be in evaluation mode."""
    evaluated = tulip_ood.Tulip(images.model).fit(images.loader(), recipe="balanced")
    expected = evaluated.score(images.ood)
    images.model.train()
    try:
        training = tulip_ood.Tulip(images.model).fit(images.loader(), recipe="balanced")
        assert torch.equal(training.score(images.ood), expected)
        assert all(m.training for m in images.model.modules())
    finally:
        images.model.eval()


def test_more_inputs_than_one_chunk(vectors: Any) -> None:
    """Scoring in pieces gives what scoring at once gives."""
    detector = tulip_ood.Tulip(vectors.model, batch_size=10).fit(
        vectors.loader(), recipe="balanced"
    )
    x = vectors.test[0]
    whole = detector.score(x)
    detector.engine._chunk_rows = lambda numbers: 30  # type: ignore[method-assign]
    torch.testing.assert_close(detector.score(x), whole, rtol=1e-12, atol=1e-12)


def test_autocast_outside_does_not_reach_the_passes(vectors: Any) -> None:
    detector = tulip_ood.Tulip(vectors.model).fit(vectors.loader(), recipe="balanced")
    expected = detector.score(vectors.ood)
    with torch.autocast("cpu", dtype=torch.float16):
        inside = detector.score(vectors.ood)
    assert torch.equal(expected, inside)


def test_scores_are_float64_and_detached(vectors: Any) -> None:
    detector = tulip_ood.Tulip(vectors.model).fit(vectors.loader(), recipe="balanced")
    x = nn.Parameter(vectors.ood.clone())
    score = detector.score(x)
    assert score.dtype == torch.float64
    assert not score.requires_grad
