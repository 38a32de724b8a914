"""What `predict` says: calibrated probabilities, decisions, and why."""

import copy
from typing import Any

import pytest
import torch

import tulip_ood
from tulip_ood.detectors.prediction import Reason, Reference
from tulip_ood.errors import InputError, ThresholdError
from tulip_ood.numerics.metrics import nll

pytestmark = pytest.mark.usefixtures("short_search")


@pytest.fixture(scope="module")
def fitted(request: pytest.FixtureRequest) -> Any:
    problem = request.getfixturevalue("images")
    return tulip_ood.Tulip(problem.model).fit(problem.loader())


def test_the_fields_agree_with_each_other(fitted: Any, images: Any) -> None:
    x = images.test[0]
    result = fitted.predict(x)
    with torch.no_grad():
        assert torch.equal(result.label, images.model(x).argmax(1))
    torch.testing.assert_close(result.probs.sum(1), torch.ones(len(x), dtype=torch.float64))
    assert torch.equal(result.accepted, result.score <= fitted.threshold.value)
    assert torch.equal(result.accepted, result.p_value > 0.05)
    assert len(result) == len(x)


def test_the_networks_own_probabilities_come_along(fitted: Any, images: Any) -> None:
    x = images.test[0][:50]
    with torch.no_grad():
        own = images.model(x).softmax(dim=1).double()
    rival = tulip_ood.detectors.make("msp", images.model).fit(images.loader())
    for detector in (fitted, rival):
        torch.testing.assert_close(detector.predict(x).base_probs, own, atol=1e-6, rtol=0)


def test_probabilities_are_not_worse_than_the_networks_own(fitted: Any, images: Any) -> None:
    x, y = images.test
    with torch.no_grad():
        own = images.model(x).double().softmax(1)
    assert nll(fitted.predict(x).probs, y) <= nll(own, y)


def test_probabilities_fall_back_where_the_envelope_does_not_help(vectors: Any) -> None:
    """Held-out data decides: with labels from the network's own probabilities, J* is noise."""
    x, _ = vectors.val
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        y = torch.multinomial(vectors.model(x).softmax(1), 1, generator=generator).squeeze(1)
    detector = tulip_ood.Tulip(vectors.model, j=1.0).fit([(x, y)], recipe="balanced")
    state, facts = detector._state, detector._facts
    if facts["held_out_nll_tulip"] > facts["held_out_nll_plain"]:
        assert state.j_probs == 0.0
    with torch.no_grad():
        plain = copy.deepcopy(vectors.model).double()(x.double()).softmax(1)
    if state.j_probs == 0.0:
        torch.testing.assert_close(detector.predict(x).probs, plain)


def test_posterior_samples_average_to_the_probabilities(fitted: Any, images: Any) -> None:
    x = images.test[0][:20]
    samples = fitted.posterior_samples(x)
    assert samples.shape == (10, 20, 4)
    assert fitted._state.j_probs == fitted._state.j_star
    torch.testing.assert_close(samples.softmax(-1).mean(0), fitted.predict(x).probs)


def test_a_reason_claims_no_more_than_what_was_seen() -> None:
    """Between the 99th percentile and the largest value is not above all."""
    seen = Reference.of(torch.arange(101.0))
    places = seen.percentile(torch.tensor([97.5, 99.5, 101.0], dtype=torch.float64)).tolist()
    told = [str(Reason("ambiguous", {"entropy": place}, (3,), (0.5,))) for place in places]
    start = "ambiguous: the network itself wavers (entropy above "
    assert told == [
        start + "97 % of validation data; class 3: 50 %)",
        start + "99 % of validation data; class 3: 50 %)",
        start + "all validation data; class 3: 50 %)",
    ]


def test_reasons_name_the_quantity_that_stands_out(fitted: Any, images: Any) -> None:
    x = torch.cat([images.test[0], images.ood])
    result = fitted.predict(x)
    refused = [r for r, ok in zip(result.reason, result.accepted.tolist(), strict=True) if not ok]
    accepted = [r for r, ok in zip(result.reason, result.accepted.tolist(), strict=True) if ok]
    assert refused
    assert {r.kind for r in refused} <= {"ambiguous", "unstable", "unfamiliar"}
    assert all(r.kind == "" for r in accepted)
    for reason in refused:
        groups = {
            "ambiguous": reason.percentiles["entropy"],
            "unstable": reason.percentiles["stretch"],
            "unfamiliar": max(reason.percentiles["bound"], reason.percentiles["features"]),
        }
        assert groups[reason.kind] == max(groups.values())
        assert f"{reason.kind}: " in str(reason)
        assert len(reason.top_labels) == 2
        assert reason.top_probs[0] >= reason.top_probs[1]
    assert result.reason[-1] == result.reason[len(x) - 1]
    assert len(result.reason[:3]) == 3


def test_far_features_are_unfamiliar(fitted: Any, images: Any) -> None:
    huge = 50 * images.test[0][:4]
    percentiles = fitted.predict(huge).reason[0].percentiles
    assert percentiles["features"] == 100.0


@pytest.mark.parametrize("method", ["knn", "mds", "vim", "msp&mds"])
def test_a_distance_says_unfamiliar_where_the_network_is_sure(images: Any, method: str) -> None:
    detector = tulip_ood.detectors.make(method, images.model).fit(images.loader())
    result = detector.predict(torch.cat([3 * images.test[0], images.ood]))
    sure = [
        reason
        for reason, accepted in zip(result.reason, result.accepted, strict=True)
        if not accepted and reason.percentiles["entropy"] < 50
    ]
    assert sure
    assert {reason.kind for reason in sure} == {"unfamiliar"}
    assert "(score above " in str(sure[0])


def test_a_threshold_for_the_error_rate(images: Any) -> None:
    detector = tulip_ood.Tulip(images.model).fit([images.val, images.test])
    x, y = images.val
    wrong = detector.predict(x).label != y
    rate = float(wrong.double().mean())
    detector.set_threshold(max_error=rate / 2, confidence=0.9)
    assert detector.threshold.kind == "max_error"
    result = detector.predict(x)
    assert wrong[result.accepted].double().mean() <= rate / 2
    assert 0 < detector.threshold.coverage < 1
    with pytest.raises(ThresholdError, match="the lowest that can is"):
        detector.set_threshold(max_error=1e-5)
    assert detector.threshold.kind == "max_error"  # a failed attempt changes nothing
    with pytest.raises(InputError, match="either false_alarm=… or max_error=…"):
        detector.set_threshold(false_alarm=0.1, max_error=0.1)


def test_a_false_alarm_rate_that_the_data_cannot_promise(images: Any) -> None:
    detector = tulip_ood.Tulip(images.model).fit(images.loader(), recipe="balanced")
    with pytest.raises(ThresholdError, match="needs at least 999 held-out calibration inputs"):
        detector.set_threshold(false_alarm=0.001)
    with pytest.raises(InputError, match="between 0 and 1"):
        detector.set_threshold(false_alarm=0.0)
