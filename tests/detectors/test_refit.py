"""A fit is seen whole or not at all: after a failure, an interrupt, or from another thread."""

import copy
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import tulip_ood
from tulip_ood.errors import InputError, ModelError
from tulip_ood.network.passes import Passes


def dies(problem: Any, error: BaseException) -> Iterator[Any]:
    x, y = problem.val
    yield x[:30], y[:30]
    raise error


@pytest.mark.parametrize("error", [RuntimeError("disk"), KeyboardInterrupt()])
@pytest.mark.parametrize("name", ["tulip", "msp", "noise", "scale", "msp&ebo"])
def test_a_failed_refit_leaves_the_old_fit(vectors: Any, name: str, error: BaseException) -> None:
    detector = tulip_ood.detectors.make(name, vectors.model).fit(vectors.loader())
    expected, report = detector.score(vectors.ood), str(detector.report())
    recipe = {"recipe": "paper"} if name == "tulip" else {}
    with pytest.raises(type(error)):
        detector.fit(dies(vectors, error), **recipe)
    assert torch.equal(detector.score(vectors.ood), expected)
    assert str(detector.report()) == report


def test_a_failed_refit_keeps_the_weight_guard(vectors: Any) -> None:
    model = copy.deepcopy(vectors.model)
    detector = tulip_ood.Tulip(model).fit(vectors.loader(), recipe="balanced")
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    with pytest.raises(RuntimeError):
        detector.fit(dies(vectors, RuntimeError("disk")))
    with pytest.raises(ModelError, match="weights have changed"):
        detector.score(vectors.ood)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_scoring_while_another_thread_fits(vectors: Any) -> None:
    """Every score is one of the two fits', never a mixture."""
    detector = tulip_ood.Tulip(vectors.model, n_samples=4)
    possible = []
    for recipe in ("balanced", "paper"):
        detector.fit(vectors.loader(), recipe=recipe)
        possible.append(detector.score(vectors.ood))
    stop = threading.Event()

    def refit() -> None:
        while not stop.is_set():
            for recipe in ("balanced", "paper"):
                detector.fit(vectors.loader(), recipe=recipe)

    thread = threading.Thread(target=refit)
    thread.start()
    try:
        seen = [detector.score(vectors.ood) for _ in range(40)]
    finally:
        stop.set()
        thread.join()
    assert all(any(torch.equal(one, p) for p in possible) for one in seen)


def test_a_detector_is_not_pickled(vectors: Any) -> None:
    detector = tulip_ood.detectors.MSP(vectors.model).fit(vectors.loader())
    for clone in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"detector\.save"):
            clone(detector)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_scoring_alone_does_not_push_out_held_weights(vectors: Any) -> None:
    detector = tulip_ood.Tulip(vectors.model, j=0.0).fit(vectors.loader(), recipe="balanced")
    detector.predict(vectors.ood)
    held = detector.engine.perturbation(detector._settings())
    detector.score(vectors.ood)  # one pass: J = 0
    assert detector.engine.perturbation(detector._settings()) is held


# ---------------------------------------------------------------- passes and origins


def made(problem: Any, detector: Any) -> Passes:
    rows = detector.engine.collect(problem.loader(), detector._needs(), seed=0, memory=1 << 30)
    return detector.engine.passes_of(rows, detector._needs(), seed=0)


def test_a_detector_fitted_on_passes_reports(vectors: Any) -> None:
    maker = tulip_ood.Tulip(vectors.model)
    passes = made(vectors, maker)
    detector = tulip_ood.Tulip(vectors.model).fit(passes, recipe="balanced")
    assert "recipe balanced-1" in str(detector.report())


def test_passes_of_another_network_are_refused(vectors: Any) -> None:
    other = copy.deepcopy(vectors.model)
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    passes = made(vectors, tulip_ood.Tulip(other))
    with pytest.raises(InputError, match="another network"):
        tulip_ood.Tulip(vectors.model).fit(passes, recipe="balanced")
    detector = tulip_ood.detectors.MSP(vectors.model).fit(vectors.loader())
    with pytest.raises(InputError, match="another network"):
        detector.score(passes)


# ----------------------------------------------------------- inputs without a score


class Sometimes(nn.Module):
    """NaN where the first column is large."""

    def __init__(self, model: nn.Module, limit: float) -> None:
        super().__init__()
        self.inner, self.limit = model, limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x)
        return torch.where(x[:, :1] > self.limit, torch.nan, out)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
@pytest.mark.parametrize("share", [0.02, 0.1])
def test_inputs_without_a_score_count_as_refused(vectors: Any, share: float) -> None:
    x, y = vectors.val
    limit = float(x[:, 0].quantile(1 - share))
    model = Sometimes(vectors.model, limit)
    detector = tulip_ood.detectors.Entropy(model).fit([(x, y)])
    assert detector.calibration.unscorable == pytest.approx(share, abs=0.01)
    refused = 1.0 - float(detector.predict(x).accepted.double().mean())
    if share < 0.05:
        assert refused == pytest.approx(0.05, abs=0.02)  # the NaNs are among the 5 %
    else:
        assert refused == pytest.approx(share, abs=0.01)
        assert "cannot" in detector.threshold.promise


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_a_sample_has_its_part_of_the_inputs_that_were_left_out(vectors: Any) -> None:
    """1,200 inputs, of which 60 are NaN and 300 are held: 5 % cannot be scored, not 17 %."""
    x, y = torch.cat([vectors.val[0], vectors.val[0] + 1e-3]), vectors.val[1].repeat(2)
    x[::20] = torch.nan
    room = 300 * (2 * 4 + 3 * 4)
    sampled = tulip_ood.detectors.Entropy(vectors.model, fit_memory=room).fit([(x, y)])
    whole = tulip_ood.detectors.Entropy(vectors.model).fit([(x, y)])
    assert sampled.report().facts["n_validation"] == 300
    for detector in (sampled, whole):
        assert detector.calibration.unscorable == pytest.approx(0.05, abs=0.005)


def test_one_bad_row_does_not_stop_the_search(vectors: Any) -> None:
    x, y = vectors.val
    model = Sometimes(vectors.model, float(x[:, 0].sort().values[-2]))  # one row
    with pytest.warns(tulip_ood.TulipWarning, match="NaN or Inf"):
        detector = tulip_ood.Tulip(model).fit([(x, y)])
    plain = tulip_ood.Tulip(vectors.model).fit([(x, y)])
    assert detector._tuning is not None
    assert plain._tuning is not None
    assert detector._tuning.epsilons == plain._tuning.epsilons


def test_repeated_inputs_stay_in_one_fold(vectors: Any) -> None:
    from tulip_ood.detectors.fitting import splits, usable

    x, y = vectors.val
    repeated = torch.cat([x[:60], x[:60]]), torch.cat([y[:60], y[:60]])
    detector = tulip_ood.detectors.MSP(vectors.model)
    rows = detector.engine.collect([repeated], detector._needs(), seed=0, memory=1 << 30)
    passes, _ = usable(detector.engine.passes_of(rows, detector._needs(), seed=0), detector.task, 0)
    assert passes.ids is not None
    for inside, held in splits(passes):
        left = {passes.ids[i] for i in inside.tolist()}
        assert not left & {passes.ids[i] for i in held.tolist()}
