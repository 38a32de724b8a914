"""The envelope of Alg. 1: each line against plain loops, and the identities between them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tulip_ood.numerics import envelope

PROPERTY = settings(deadline=None, max_examples=100)
AT_LEAST_0 = st.just(0.0) | st.floats(1e-3, 5)
CONSTANTS = st.tuples(AT_LEAST_0, AT_LEAST_0, AT_LEAST_0)  # Θ_XX, λ, J


@st.composite
def logits(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Base [N, o], noisy [M, N, o] and drifted logits; some inputs do not move at all."""
    m, n, o = draw(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5)))
    size = draw(st.sampled_from([1e-6, 1e-2, 1.0, 100.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    base = 5 * torch.randn(n, o, generator=generator, dtype=torch.float64)
    moved = torch.rand(n, 1, generator=generator) > 0.2
    noisy = base + size * moved * torch.randn(m, n, o, generator=generator, dtype=torch.float64)
    drifted = base + size * torch.randn(n, o, generator=generator, dtype=torch.float64)
    return base, noisy, drifted


def fold(base: Tensor, noisy: Tensor) -> Tensor:
    """Antithetic partners: every difference also with the other sign."""
    return torch.cat([noisy, 2 * base - noisy])


@PROPERTY
@given(logits(), CONSTANTS, st.booleans())
def test_every_line_equals_plain_loops(
    passes: tuple[Tensor, Tensor, Tensor], constants: tuple[float, float, float], sqrt: bool
) -> None:
    base, noisy, drifted = passes
    (m, n, o), (trace_xx, lam, j) = noisy.shape, constants
    trace = envelope.trace(base, noisy)
    drift = envelope.drift(base, drifted, sqrt_outputs=sqrt)
    bound = envelope.bound(trace, drift, trace_xx=trace_xx, lam=lam, j=j)
    stretch = envelope.stretch(bound, trace)
    samples = envelope.samples(base, noisy, stretch)
    for z in range(n):
        f = base[z].tolist()
        theta = 0.0
        for i in range(m):
            theta += sum((noisy[i, z, c].item() - f[c]) ** 2 for c in range(o)) / m
        d = math.sqrt(sum((drifted[z, c].item() - f[c]) ** 2 for c in range(o)))
        d *= math.sqrt(o) if sqrt else 1.0
        s = j**2 * (theta + trace_xx - lam * d)
        gamma = math.sqrt(max(s, 0.0) / theta) if theta > 0 else 0.0
        assert float(trace[z]) == pytest.approx(theta, rel=1e-12)
        assert float(drift[z]) == pytest.approx(d, rel=1e-12)
        assert float(bound[z]) == pytest.approx(s, rel=1e-9, abs=1e-12)
        assert float(stretch[z]) == pytest.approx(gamma, rel=1e-6, abs=1e-6)
        for i in range(m):
            for c in range(o):
                moved = (1 - float(stretch[z])) * f[c] + float(stretch[z]) * noisy[i, z, c].item()
                assert float(samples[i, z, c]) == pytest.approx(
                    moved, rel=1e-9, abs=1e-9 * (1 + float(stretch[z]))
                )


@PROPERTY
@given(logits(), CONSTANTS)
def test_stretch_squared_times_trace_is_the_positive_part_of_the_bound(
    passes: tuple[Tensor, Tensor, Tensor], constants: tuple[float, float, float]
) -> None:
    """γ²Θ = max(S, 0); where nothing moved, γ = 0 and the samples are the base logits."""
    base, noisy, drifted = passes
    trace_xx, lam, j = constants
    trace = envelope.trace(base, noisy)
    bound = envelope.bound(trace, envelope.drift(base, drifted), trace_xx=trace_xx, lam=lam, j=j)
    stretch = envelope.stretch(bound, trace)
    still = trace == 0
    expected = torch.where(still, 0.0, bound.clamp_min(0))
    torch.testing.assert_close(stretch.square() * trace, expected, rtol=1e-12, atol=1e-300)
    assert bool(stretch.isfinite().all())
    samples = envelope.samples(base, noisy, stretch)
    unmoved = still | (bound <= 0)
    assert torch.equal(samples[:, unmoved], base[unmoved].expand(len(noisy), -1, -1))


@PROPERTY
@given(logits(), CONSTANTS)
def test_variance_of_antithetic_samples_is_the_bound(
    passes: tuple[Tensor, Tensor, Tensor], constants: tuple[float, float, float]
) -> None:
    """Eq. 11 without its ≈: pairs (v, −v) of a linear network have the mean f exactly."""
    base, noisy, drifted = passes
    trace_xx, lam, j = constants
    pairs = fold(base, noisy)
    trace = envelope.trace(base, pairs)
    bound = envelope.bound(trace, envelope.drift(base, drifted), trace_xx=trace_xx, lam=lam, j=j)
    samples = envelope.samples(base, pairs, envelope.stretch(bound, trace))
    variance = samples.var(dim=0, correction=0).sum(dim=-1)
    expected = torch.where(trace > 0, bound.clamp_min(0), 0.0)
    # Squares of logits of size 30 are subtracted: 1e-12 of their size is rounding.
    scale = 1.0 + expected + samples.square().sum(dim=-1).amax(dim=0)
    assert bool(((variance - expected).abs() <= 1e-9 * scale).all())


@PROPERTY
@given(logits(), CONSTANTS)
def test_j_scales_the_bound_by_its_square_and_the_stretch_linearly(
    passes: tuple[Tensor, Tensor, Tensor], constants: tuple[float, float, float]
) -> None:
    """What lets J be searched without further passes."""
    base, noisy, drifted = passes
    trace_xx, lam, j = constants
    trace, drift = envelope.trace(base, noisy), envelope.drift(base, drifted)
    unit = envelope.bound(trace, drift, trace_xx=trace_xx, lam=lam)
    scaled = envelope.bound(trace, drift, trace_xx=trace_xx, lam=lam, j=j)
    torch.testing.assert_close(scaled, j**2 * unit)
    torch.testing.assert_close(
        envelope.stretch(scaled, trace), j * envelope.stretch(unit, trace), rtol=1e-9, atol=1e-12
    )


@PROPERTY
@given(logits(), st.floats(0.01, 100), CONSTANTS)
def test_scale_of_the_logits(
    passes: tuple[Tensor, Tensor, Tensor], k: float, constants: tuple[float, float, float]
) -> None:
    """Logits × k: Θ × k², D × k; with Θ_XX × k² and λ × k the stretch stays, the samples × k."""
    base, noisy, drifted = passes
    trace_xx, lam, j = constants
    trace, drift = envelope.trace(base, noisy), envelope.drift(base, drifted)
    wide, far = envelope.trace(k * base, k * noisy), envelope.drift(k * base, k * drifted)
    torch.testing.assert_close(wide, k**2 * trace, rtol=1e-6, atol=1e-18)
    torch.testing.assert_close(far, k * drift, rtol=1e-6, atol=1e-12)
    # From the same Θ and D, so that S near 0 does not magnify the rounding of the logits.
    bound = envelope.bound(trace, drift, trace_xx=trace_xx, lam=lam, j=j)
    scaled = envelope.bound(k**2 * trace, k * drift, trace_xx=k**2 * trace_xx, lam=k * lam, j=j)
    size = j**2 * (trace + trace_xx + lam * drift)
    assert bool(((scaled - k**2 * bound).abs() <= 1e-12 * k**2 * size).all())


@PROPERTY
@given(logits(), st.floats(0, 3))
def test_the_ends_of_the_stretch(passes: tuple[Tensor, Tensor, Tensor], gamma: float) -> None:
    """γ = 0 is the network, γ = 1 plain noise averaging, and the mean moves in proportion."""
    base, noisy, _ = passes
    n = len(base)
    assert torch.equal(
        envelope.samples(base, noisy, torch.zeros(n)), base.expand(len(noisy), -1, -1)
    )
    torch.testing.assert_close(envelope.samples(base, noisy, torch.ones(n)), noisy)
    mean = envelope.samples(base, noisy, torch.full((n,), gamma, dtype=torch.float64)).mean(dim=0)
    torch.testing.assert_close(mean, base + gamma * (noisy.mean(dim=0) - base))


def test_float32_logits_are_worked_on_in_float64() -> None:
    """A difference of 1e-4 between logits of size 1000 survives squaring and averaging."""
    base = torch.full((1, 2), 1000.0)
    noisy = torch.nextafter(base, base + 1).expand(3, -1, -1)
    step = float(noisy[0, 0, 0].double() - 1000)
    assert envelope.trace(base, noisy).dtype == torch.float64
    assert float(envelope.trace(base, noisy)) == 2 * step**2
    assert envelope.samples(base, noisy, torch.tensor([0.5])).dtype == torch.float64


def test_positions_of_dense_outputs_are_inputs_of_their_own() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(2, 3, 4, 5, generator=generator).double()
    noisy = base + torch.randn(6, 2, 3, 4, 5, generator=generator)
    flat_base, flat_noisy = base.reshape(24, 5), noisy.reshape(6, 24, 5)
    trace = envelope.trace(base, noisy)
    assert trace.shape == (2, 3, 4)
    torch.testing.assert_close(trace.flatten(), envelope.trace(flat_base, flat_noisy))
    samples = envelope.samples(base, noisy, trace)
    torch.testing.assert_close(
        samples.reshape(6, 24, 5), envelope.samples(flat_base, flat_noisy, trace.flatten())
    )
