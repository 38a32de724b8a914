"""Alg. 1 a second time, line by line, in loops, and the library against it.

Nothing of the library is used here but the random numbers: parameters are perturbed in deep copies
of the network, inputs go through one at a time, sums run over inputs, samples and classes.
"""

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from scipy import optimize
from torch import Tensor, nn

import tulip_ood
from tulip_ood.detectors.measured import measure
from tulip_ood.network.initial_mean import initial_mean
from tulip_ood.network.network import Network
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.running import run_passes
from tulip_ood.numerics.random import normal
from tulip_ood.numerics.tasks import make_task

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")

Vector = list[float]


@dataclass
class Literal:
    """Alg. 1 of the paper (and the appendix's Γ), for one network and one setting."""

    model: nn.Module
    epsilon: float = 0.005
    delta: float = 8.0
    n_samples: int = 10
    antithetic: bool = False
    sqrt_outputs: bool = True
    seed: int = 0
    gamma: dict[str, float] = field(default_factory=dict)  # Γ of a parameter, 1 if not named
    means: dict[str, float] = field(default_factory=dict)  # θ_ts where the user knows better

    def __post_init__(self) -> None:
        self.noisy_models = [self.noisy_model(i) for i in range(self.n_samples)]
        self.drifted_model = self.make_drifted_model()

    def initial_means(self) -> dict[str, float]:
        """Line 1: θ_ts ← E[θ_0], 1 for the scale of a normalisation layer, else 0."""
        found = {name: 0.0 for name, _ in self.model.named_parameters()}
        for name, part in self.model.named_modules():
            if isinstance(part, nn.BatchNorm2d | nn.LayerNorm):
                found[f"{name}.weight"] = 1.0
        return found | self.means

    def noisy_model(self, i: int) -> nn.Module:
        """Lines 3–4: θ_T + v_i, v_i ~ N(0, ε²Γ²)."""
        twin = copy.deepcopy(self.model)
        for name, parameter in twin.named_parameters():
            index, sign = (i // 2, (-1) ** i) if self.antithetic else (i, 1)
            v = normal(parameter.shape, seed=self.seed, name=name, index=index).double()
            parameter.add_(sign * self.epsilon * self.gamma.get(name, 1.0) * v)
        return twin

    def make_drifted_model(self) -> nn.Module:
        """Line 7: θ_T + εδΓ(θ_T − θ_ts)."""
        twin, means = copy.deepcopy(self.model), self.initial_means()
        for name, parameter in twin.named_parameters():
            step = parameter - means[name]
            parameter.add_(self.epsilon * self.delta * self.gamma.get(name, 1.0) * step)
        return twin

    def passes(self, z: Tensor) -> tuple[Vector, list[Vector], Vector]:
        """f(z), the f_i(z) of line 4, and the drifted f(z): one input at a time."""
        one = z.unsqueeze(0)
        return (
            self.model(one)[0].tolist(),
            [noisy(one)[0].tolist() for noisy in self.noisy_models],
            self.drifted_model(one)[0].tolist(),
        )

    def trace(self, f: Vector, raw: list[Vector]) -> float:
        """Line 6: Θ ← (1/M) Σ_i ‖f_i − f‖²."""
        total = 0.0
        for f_i in raw:
            for c in range(len(f)):
                total += (f_i[c] - f[c]) ** 2
        return total / len(raw)

    def drift(self, f: Vector, drifted: Vector) -> float:
        """Line 7: D ← √o ‖f(z; θ + εδ(θ − θ_ts)) − f‖ (the appendix has no √o)."""
        norm = math.sqrt(sum((a - b) ** 2 for a, b in zip(drifted, f, strict=True)))
        return math.sqrt(len(f)) * norm if self.sqrt_outputs else norm

    @staticmethod
    def bound(trace: float, drift: float, trace_xx: float, lam: float, j: float) -> float:
        """Line 8: S ← J² (Θ + Θ_XX − λD)."""
        return j**2 * (trace + trace_xx - lam * drift)

    @staticmethod
    def stretch(bound: float, trace: float) -> float:
        """Line 9: γ ← sqrt(max(S, 0) / Θ)."""
        return math.sqrt(max(bound, 0.0) / trace)

    @staticmethod
    def samples(f: Vector, raw: list[Vector], gamma: float) -> list[Vector]:
        """Lines 10–12: f̃_i ← (1 − γ) f + γ f_i."""
        return [[(1 - gamma) * f[c] + gamma * f_i[c] for c in range(len(f))] for f_i in raw]

    @staticmethod
    def prediction(samples: list[Vector]) -> Vector:
        """(1/M) Σ_i softmax(f̃_i)."""
        mean = [0.0] * len(samples[0])
        for f_i in samples:
            top = max(f_i)
            weights = [math.exp(v - top) for v in f_i]
            for c, weight in enumerate(weights):
                mean[c] += weight / sum(weights) / len(samples)
        return mean

    @staticmethod
    def entropy(p: Vector) -> float:
        """Line 13: U ← H(p)."""
        return -sum(v * math.log(v) for v in p if v > 0)

    def likelihood(
        self, data: list[tuple[Vector, list[Vector], float, float, int]], j: float
    ) -> float:
        """Sec. 4.2: the mean log p_y over validation data; each holds f, f_i, Θ, S at J = 1, y."""
        total = 0.0
        for f, raw, trace, unit_bound, y in data:
            gamma = self.stretch(j**2 * unit_bound, trace)
            p = self.prediction(self.samples(f, raw, gamma))[y]
            total += math.log(p) if p > 0 else -math.inf
        return total / len(data)


@dataclass(frozen=True)
class Case:
    """A recipe, what the user sets, and the same for the literal algorithm."""

    recipe: str
    given: dict[str, Any]
    literal: dict[str, Any]
    lam: float | None = None  # None: balanced


PAPER = {"antithetic": False, "sqrt_outputs": True}
BALANCED = {"antithetic": True, "sqrt_outputs": False}
CASES = {
    "paper": Case("paper", {}, PAPER, 1.25),
    "paper, λ 0.001": Case("paper", {"lam": 0.001}, PAPER, 0.001),
    "balanced": Case("balanced", {}, BALANCED),
    "balanced with everything set": Case(
        "balanced",
        {
            "n_samples": 5,  # the last pair is not complete
            "epsilon": 0.02,
            "delta": 3.0,
            "seed": 7,
            "j": 1.5,
            "sqrt_outputs": True,
            "layer_scale": {"*.bias": 0.25, "*.weight": 1.5},
            "batch_size": 7,
            "hold": False,
        },
        {
            **BALANCED,
            "n_samples": 5,
            "epsilon": 0.02,
            "delta": 3.0,
            "seed": 7,
            "sqrt_outputs": True,
        },
    ),
}


def literal_of(small: Any, case: Case) -> Literal:
    options = dict(case.literal)
    if "layer_scale" in case.given:
        options["gamma"] = {
            name: 0.25 if name.endswith(".bias") else 1.5 if name.endswith(".weight") else 1.0
            for name, _ in small.model.named_parameters()
        }
    return Literal(small.model, **options)


def close(ours: Tensor, literal: Any, scale: float = 0.0) -> None:
    """Equal to 1e-9, relative, and where numbers cancel to 1e-9 of the scale of what cancels."""
    np.testing.assert_allclose(ours.numpy(), np.array(literal), rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("name", CASES)
def test_every_line_of_the_algorithm(small: Any, name: str) -> None:
    case = CASES[name]
    literal = literal_of(small, case)

    # Calibration (Sec. 4.2): Θ_XX, λ, and the data for J*.
    validation = [literal.passes(z) for z in small.x_val]
    traces = [literal.trace(f, raw) for f, raw, _ in validation]
    drifts = [literal.drift(f, drifted) for f, _, drifted in validation]
    trace_xx = sum(traces) / len(traces)
    lam = 2 * trace_xx / (sum(drifts) / len(drifts)) if case.lam is None else case.lam
    bounds = [literal.bound(t, d, trace_xx, lam, 1.0) for t, d in zip(traces, drifts, strict=True)]

    detector = tulip_ood.Tulip(small.model, **case.given)
    detector.fit([(small.x_val, small.y_val)], recipe=case.recipe)
    state = detector._state
    assert state.trace_xx == pytest.approx(trace_xx, rel=1e-9)
    assert state.lam == pytest.approx(lam, rel=1e-9)
    assert state.inactive == sum(s <= 0 for s in bounds) / len(bounds)

    # J*: no J that brute force finds has a higher likelihood.
    data = [
        (f, raw, t, s, int(y))
        for (f, raw, _), t, s, y in zip(validation, traces, bounds, small.y_val, strict=True)
    ]
    at_j_star = literal.likelihood(data, state.j_star)
    around = state.j_star * np.geomspace(0.9, 1.1, 9)
    grid = [0.0, *np.geomspace(0.03, 3000, 16), *around]
    assert at_j_star >= max(literal.likelihood(data, j) for j in grid) - 2e-6
    if state.inactive < 0.9:  # else there is hardly a likelihood to maximise
        best = optimize.minimize_scalar(
            lambda j: -literal.likelihood(data, j),
            bounds=(0.9 * state.j_star, 1.1 * state.j_star),
            options={"xatol": 1e-6 * state.j_star},
        )
        assert state.j_star == pytest.approx(best.x, rel=1e-3)
    assert state.j_score == case.given.get("j", state.j_star)

    # New inputs: lines 2–13.
    predicted = detector.predict(small.x_new)
    drawn = detector.posterior_samples(small.x_new)
    score = detector.score(small.x_new)
    for n, z in enumerate(small.x_new):
        f, raw, drifted = literal.passes(z)
        trace, drift = literal.trace(f, raw), literal.drift(f, drifted)
        s = literal.bound(trace, drift, trace_xx, lam, state.j_score)
        gamma = literal.stretch(s, trace)
        cancels = state.j_score**2 * (trace + trace_xx + lam * drift)
        close(predicted.bound[n], s, cancels)
        close(predicted.stretch[n], gamma, 1 + gamma)
        at_score = literal.samples(f, raw, gamma)
        close(score[n], literal.entropy(literal.prediction(at_score)), 1.0)
        close(predicted.score[n], literal.entropy(literal.prediction(at_score)), 1.0)
        star = literal.stretch(literal.bound(trace, drift, trace_xx, lam, state.j_star), trace)
        close(drawn[:, n], literal.samples(f, raw, star), 1 + star)
        if state.j_probs == state.j_star:
            close(predicted.probs[n], literal.prediction(literal.samples(f, raw, star)), 1.0)
        assert int(predicted.label[n]) == f.index(max(f))


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("sqrt_outputs", [False, True])
def test_every_intermediate(small: Any, antithetic: bool, sqrt_outputs: bool) -> None:
    """The passes, Θ and D themselves, with Γ and a θ_ts of the user's, before any fit."""
    first = next(iter(dict(small.model.named_parameters())))
    gamma, means = {first: 0.5}, {first: 0.125}
    literal = Literal(
        small.model, 0.01, 4.0, 7, antithetic, sqrt_outputs, 3, gamma=gamma, means=means
    )
    network = Network(small.model, make_task("classification"))
    scales = {name: gamma.get(name, 1.0) for name in network.parameters}
    settings = PassSettings(0.01, 4.0, 7, antithetic=antithetic, seed=3)
    found_means = initial_mean(network.module, network.parameters, means)
    perturbation = Perturbation(network, scales, found_means, settings)
    passes = run_passes(perturbation, small.x_new, batch_size=5)
    measured = measure(passes, sqrt_outputs=sqrt_outputs)
    assert passes.drift is not None
    for n, z in enumerate(small.x_new):
        f, raw, drifted = literal.passes(z)
        close(passes.base[n], f, 1e-3)
        close(passes.noisy[:, n], raw, 1e-3)
        close(passes.drift[n], drifted, 1e-3)
        close(measured.trace[n], literal.trace(f, raw))
        close(measured.drift[n], literal.drift(f, drifted))


def test_the_comparison_is_not_empty(small: Any) -> None:
    """These networks are over-confident: J* > 0, some inputs are stretched and some are not."""
    detector = tulip_ood.Tulip(small.model).fit([(small.x_val, small.y_val)], recipe="balanced")
    assert detector._state.j_star > 1
    stretch = detector.predict(small.x_new).stretch
    assert stretch is not None
    assert bool((stretch > 0).any())
    assert bool((stretch == 0).any())
    plain = tulip_ood.Tulip(small.model, j=0.0).fit([(small.x_val, small.y_val)], recipe="balanced")
    assert float((detector.score(small.x_new) - plain.score(small.x_new)).abs().max()) > 0.05


@pytest.mark.parametrize("score", ["msp", "gen", "mls", "ebo", "bound"])
def test_the_other_scores_on_the_envelope(small: Any, score: str) -> None:
    """The contract's definitions on the same samples; `bound` is S/J², not clamped."""
    literal = Literal(small.model, **BALANCED)
    detector = tulip_ood.Tulip(small.model, score=score)
    detector.fit([(small.x_val, small.y_val)], recipe="balanced")
    state, found = detector._state, detector.score(small.x_new)
    for n, z in enumerate(small.x_new):
        f, raw, drifted = literal.passes(z)
        trace, drift = literal.trace(f, raw), literal.drift(f, drifted)
        s = literal.bound(trace, drift, state.trace_xx, state.lam, 1.0)
        samples = literal.samples(f, raw, state.j_score * literal.stretch(s, trace))
        p = sorted(literal.prediction(samples), reverse=True)
        m, o = len(samples), len(f)
        expected = {
            "msp": sum(p[1:]),
            "gen": (p[0] * sum(p[1:])) ** 0.1 + sum((v * (1 - v)) ** 0.1 for v in p[1:]),
            "mls": -max(sum(f_i[c] for f_i in samples) / m for c in range(o)),
            "ebo": -sum(math.log(sum(math.exp(v) for v in f_i)) for f_i in samples) / m,
            "bound": s,
        }[score]
        scale = trace + state.trace_xx + state.lam * drift if score == "bound" else 1.0
        close(found[n], expected, scale)
