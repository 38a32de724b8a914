"""`precision="auto"`: half precision only where it changes nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tulip_ood
from tulip_ood.detectors.precision import compare_precisions
from tulip_ood.errors import InputError
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings
from tulip_ood.numerics.tasks import make_task


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_on_a_cpu_it_settles_to_float32_and_says_so(vectors: Any, tmp_path: Path) -> None:
    x = vectors.ood[:20]
    detector = tulip_ood.Tulip(vectors.model, precision="auto", j=0.5, n_samples=2)
    assert detector.network.precision == "auto"
    detector.fit(vectors.loader(), recipe="balanced")
    assert detector.network.precision == "float32"
    said = "precision: float32 (half precision is for accelerators)"
    assert said in str(detector.report())

    plain = tulip_ood.Tulip(vectors.model, j=0.5, n_samples=2)
    plain.fit(vectors.loader(), recipe="balanced")
    assert torch.equal(detector.score(x), plain.score(x))
    assert "precision" not in str(plain.report())

    detector.save(tmp_path / "d.safetensors")
    loaded = tulip_ood.load(tmp_path / "d.safetensors", vectors.model)
    assert loaded.network.precision == "float32"
    assert said in str(loaded.report())
    assert torch.equal(loaded.score(x), detector.score(x))


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_every_detector_may_ask_for_it(vectors: Any) -> None:
    energy = tulip_ood.detectors.make("ebo", vectors.model, precision="auto")
    assert energy.fit(vectors.loader()).network.precision == "float32"


def test_detectors_that_share_a_network_share_float32(vectors: Any) -> None:
    network = Network(vectors.model, make_task("classification"), precision="auto")
    assert tulip_ood.detectors.make("msp", network).network.precision == "float32"


def test_other_words_are_refused(vectors: Any) -> None:
    with pytest.raises(InputError, match="one of float32, half, auto; got 'bfloat16'"):
        tulip_ood.Tulip(vectors.model, precision="bfloat16")


# ------------------------------------------------------------------------------------ the check


def passes(logits: Tensor) -> Passes:
    none = logits.new_empty((0, *logits.shape))
    return Passes(logits, none, None, None, None, PassSettings(1.0, n_samples=0))


def compared(full: Tensor, half: Tensor) -> Any:
    return compare_precisions(
        passes(full), passes(half), lambda p: -p.base.amax(1), lambda f: f.argmax(1)
    )


@pytest.fixture
def logits() -> Tensor:
    return 5 * torch.randn(2000, 4, generator=torch.Generator().manual_seed(0))


def test_rounding_to_half_precision_holds(logits: Tensor) -> None:
    parity = compared(logits, logits.half().float())
    assert parity.holds
    assert "of 2000 validation inputs" in parity.reason


def test_another_ranking_does_not(logits: Tensor) -> None:
    parity = compared(logits, logits * torch.linspace(1, 2, 2000)[:, None])
    assert not parity.holds
    assert "the same answer to 100.00 %" in parity.reason
    assert "0.999 and 99.9 % are needed" in parity.reason


def test_other_answers_do_not(logits: Tensor) -> None:
    moved = logits.clone()
    moved[:10] = moved[:10].roll(1, dims=1)  # the largest logit, and so the score, stays
    parity = compared(logits, moved)
    assert not parity.holds
    assert "ρ of the scores 1.00000, the same answer to 99.50 %" in parity.reason


def test_overflow_does_not(logits: Tensor) -> None:
    spoiled = logits.clone()
    spoiled[3, 1] = torch.inf
    parity = compared(logits, spoiled)
    assert not parity.holds
    assert "overflow" in parity.reason
    # What was not finite in float32 either is no reason against half precision.
    assert compared(spoiled, spoiled).holds
