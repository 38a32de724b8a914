"""What TULiP learns from passes, and what follows from it: pure functions on `Passes`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tulip_ood.detectors.fitting import splits
from tulip_ood.detectors.measured import measure
from tulip_ood.detectors.prediction import Reference
from tulip_ood.detectors.recipes import Setting
from tulip_ood.detectors.shaping import Shaping, make_shaping
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import calibration, envelope
from tulip_ood.numerics.blocks import cached_blocks
from tulip_ood.numerics.tasks import Regression, Task

__all__ = [
    "Constants",
    "Features",
    "FittedEnvelope",
    "fit_envelope",
    "held_out_likelihood",
    "judge_passes",
    "score_passes",
    "score_stretched",
]


@dataclass(frozen=True)
class Features:
    """Where penultimate features of ID data lie: mean and deviation of each, [d].

    Example:
        >>> import torch
        >>> Features(torch.zeros(2), torch.ones(2)).distance(torch.tensor([[3.0, 1.0]]))
        tensor([5.], dtype=torch.float64)
    """

    mean: Tensor
    deviation: Tensor

    @staticmethod
    def of(features: Tensor | None) -> "Features | None":
        """From features [N, d] of ID data; None where a network has none."""
        if features is None:
            return None
        wide = features.to(torch.float64)
        deviation = wide.std(dim=0, correction=0)
        floor = deviation.max().clamp_min(1e-12) * 1e-3  # a feature that is always off
        return Features(wide.mean(dim=0), deviation.clamp_min(floor))

    def distance(self, features: Tensor) -> Tensor:
        """The mean squared deviation, in units of each feature's own, [N]."""
        mean, deviation = self.mean.to(features.device), self.deviation.to(features.device)
        return ((features.to(torch.float64) - mean) / deviation).square().mean(dim=1)


@dataclass(frozen=True)
class Constants:
    """What the envelope of one kind of logits needs.

    Attributes:
        trace_xx: Θ_XX.
        lam: λ.
        balanced_lam: The balanced λ.
        j_star: J*, which maximises the likelihood.
        inactive: The share of the ID data with S ≤ 0.
        noise_var: σ² of regression outputs at J*, else None.
        noise_var_at_0: The same at J = 0.

    Example:
        >>> Constants(1.0, 0.5, 0.5, 1.2, 0.5, None, None).j_star
        1.2
    """

    trace_xx: float
    lam: float
    balanced_lam: float
    j_star: float
    inactive: float
    noise_var: Tensor | None
    noise_var_at_0: Tensor | None

    @staticmethod
    def of(
        passes: Passes,
        task: Task,
        setting: Setting,
        *,
        sqrt_outputs: bool,
        search: bool = True,
        device: torch.device | None = None,
    ) -> "Constants":
        """From the passes of labelled ID inputs; J* is 0 where it is not searched for."""
        assert passes.labels is not None
        measured = measure(passes, sqrt_outputs=sqrt_outputs)
        trace_xx = calibration.mean_trace(measured.trace)
        balanced = calibration.balanced_lambda(trace_xx, float(measured.drift.mean()))
        lam = setting.lam if setting.lam is not None else setting.balance * balanced
        unit = measured.stretch(trace_xx, lam)
        best = calibration.NOT_SEARCHED
        if search:
            # What regression finds is kept where the passes are.
            where = None if isinstance(task, Regression) else device
            asked = (passes.base, passes.noisy, unit, passes.labels)
            best = calibration.calibrate_j(task, *(tensor.to(where) for tensor in asked))
        dead = (measured.bound(trace_xx, lam) <= 0).to(torch.float64).mean()
        noise = (best.noise_var, best.noise_var_at_0)
        return Constants(trace_xx, lam, balanced, best.j, float(dead), *noise)


@dataclass(frozen=True)
class FittedEnvelope:
    """Everything that TULiP has learned.

    Attributes:
        setting: How ε, λ and J were to be found.
        shaping: What is done to features before the score, or None.
        scoring: The constants of the logits that the score comes from, shaped if there is shaping.
        plain: The constants of the network's own logits, for probabilities and reasons.
        j_score: The J of the score.
        j_probs: The J of the probabilities: J*, or 0 if that was better on held-out data.
        bound_reference: Quantiles of S/J² on ID data.
        stretch_reference: Quantiles of γ at J = 1 on ID data.
        features: Where penultimate features lie, or None.
        features_reference: Quantiles of their distance on ID data.

    Example:
        >>> import dataclasses
        >>> [f.name for f in dataclasses.fields(FittedEnvelope)][:3]
        ['setting', 'shaping', 'scoring']
    """

    setting: Setting
    shaping: Shaping | None
    scoring: Constants
    plain: Constants
    j_score: float
    j_probs: float
    bound_reference: Reference
    stretch_reference: Reference
    features: Features | None
    features_reference: Reference | None

    @property
    def trace_xx(self) -> float:
        """Θ_XX of the logits that the score comes from."""
        return self.scoring.trace_xx

    @property
    def lam(self) -> float:
        """λ of the score."""
        return self.scoring.lam

    @property
    def balanced_lam(self) -> float:
        """The balanced λ of the logits that the score comes from."""
        return self.scoring.balanced_lam

    @property
    def j_star(self) -> float:
        """J* of the logits that the score comes from."""
        return self.scoring.j_star

    @property
    def inactive(self) -> float:
        """The share of the ID data on which the score's bound is not positive."""
        return self.scoring.inactive

    def noise(self, j: float) -> Tensor | None:
        """σ² of regression outputs that goes with J = 0 or J*."""
        return self.plain.noise_var_at_0 if j == 0.0 else self.plain.noise_var

    def shaped(self, passes: Passes) -> Passes:
        """The passes that scores come from."""
        return passes if self.shaping is None else passes.reshaped(self.shaping)


def fit_envelope(
    passes: Passes,
    task: Task,
    setting: Setting,
    *,
    sqrt_outputs: bool,
    search: bool = True,
    device: torch.device | None = None,
) -> FittedEnvelope:
    """Θ_XX, λ, J* and J from the passes of labelled ID inputs (Sec. 4.2).

    Args:
        passes: Of labelled ID inputs.
        task: What the outputs mean.
        setting: How ε, λ and J are to be found.
        sqrt_outputs: Whether D is multiplied by √o.
        search: Look for J*, which takes longer than the rest. Where J is given, only probabilities
            rest on it.
        device: Where it is looked for; by default where the passes are.

    Example:
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.numerics.tasks import make_task
        >>> _ = torch.manual_seed(0)
        >>> base, labels = 5 * torch.randn(40, 3), torch.randint(3, (40,))
        >>> noisy, drift = base + torch.randn(4, 40, 3), 1.1 * base
        >>> passes = Passes(base, noisy, drift, None, labels, PassSettings(0.01, n_samples=4))
        >>> task, setting = make_task("classification"), Setting(0.01)
        >>> constants = fit_envelope(passes, task, setting, sqrt_outputs=False).plain
        >>> constants.j_star > 0, constants.lam == constants.balanced_lam
        (True, True)
    """
    search = search or setting.j is None
    find = partial(
        Constants.of,
        task=task,
        setting=setting,
        sqrt_outputs=sqrt_outputs,
        search=search,
        device=device,
    )
    plain = scoring = find(passes)
    shaping, shaped = None, passes
    if setting.shaping is not None:
        shaping = make_shaping(setting.shaping).learned(passes.need_features())
        shaped = passes.reshaped(shaping)
        scoring = find(shaped)
    j_score = setting.j if setting.j is not None else setting.j_scaling * scoring.j_star
    if j_score == 0.0 and setting.j is None and isinstance(task, Regression):
        # A constant variance ranks nothing. Any J > 0 ranks by S, and only the ranking matters.
        j_score = 1.0
    measured = measure(passes, sqrt_outputs=sqrt_outputs)
    features = Features.of(passes.features)
    distance = None
    if features is not None and passes.features is not None:
        distance = Reference.of(features.distance(passes.features))
    return FittedEnvelope(
        setting=setting,
        shaping=shaping,
        scoring=scoring,
        plain=plain,
        j_score=j_score,
        j_probs=plain.j_star,
        bound_reference=Reference.of(measured.bound(plain.trace_xx, plain.lam)),
        stretch_reference=Reference.of(measured.stretch(plain.trace_xx, plain.lam)),
        features=features,
        features_reference=distance,
    )


def score_passes(
    passes: Passes, task: Task, name: str, fitted: FittedEnvelope, *, sqrt_outputs: bool
) -> Tensor:
    """The score of every input (and position), Alg. 1 lines 8–13.

    Example:
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.numerics.tasks import make_task
        >>> _ = torch.manual_seed(0)
        >>> base, labels = 5 * torch.randn(40, 3), torch.randint(3, (40,))
        >>> noisy, drift = base + torch.randn(4, 40, 3), 1.1 * base
        >>> passes = Passes(base, noisy, drift, None, labels, PassSettings(0.01, n_samples=4))
        >>> task, setting = make_task("classification"), Setting(0.01)
        >>> fitted = fit_envelope(passes, task, setting, sqrt_outputs=False)
        >>> score_passes(passes, task, "ent", fitted, sqrt_outputs=False).shape
        torch.Size([40])
    """
    passes, constants = fitted.shaped(passes), fitted.scoring
    if name != "bound" and fitted.j_score == 0.0:
        return task.score(name, passes.base.to(torch.float64).unsqueeze(0), constants.noise_var)
    measured = measure(passes, sqrt_outputs=sqrt_outputs)
    if name == "bound":
        return measured.bound(constants.trace_xx, constants.lam)
    stretch = fitted.j_score * measured.stretch(constants.trace_xx, constants.lam)
    return score_stretched(passes, task, name, stretch, constants.noise_var)


def score_stretched(
    passes: Passes, task: Task, name: str, stretch: Tensor, noise_var: Tensor | None = None
) -> Tensor:
    """The score of the samples f̃_i = f + γ (f_i − f) for a given γ, in bounded memory.

    Example:
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.numerics.tasks import make_task
        >>> base = torch.zeros(3, 2)
        >>> passes = Passes(base, base[None], base, None, None, PassSettings(0.01, n_samples=1))
        >>> score_stretched(passes, make_task("classification"), "msp", torch.ones(3))
        tensor([0.5000, 0.5000, 0.5000], dtype=torch.float64)
    """
    return torch.cat(
        [
            task.score(
                name,
                envelope.samples(passes.base[rows], passes.noisy[:, rows], stretch[rows]),
                noise_var,
            )
            for rows in cached_blocks(len(passes), passes.noisy[:, :1].numel(), passes.base.device)
        ]
    )


def judge_passes(
    passes: Passes, task: Task, fitted: FittedEnvelope, *, sqrt_outputs: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The prediction at `j_probs`, S/J², γ at J = 1, the features' distance, and the variance.

    What the passes do not tell (no noisy passes, no features, no regression) is 0.

    Example:
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.numerics.tasks import make_task
        >>> _ = torch.manual_seed(0)
        >>> base, labels = 5 * torch.randn(40, 3), torch.randint(3, (40,))
        >>> noisy, drift = base + torch.randn(4, 40, 3), 1.1 * base
        >>> passes = Passes(base, noisy, drift, None, labels, PassSettings(0.01, n_samples=4))
        >>> task, setting = make_task("classification"), Setting(0.01)
        >>> fitted = fit_envelope(passes, task, setting, sqrt_outputs=False)
        >>> probs, bound, *_ = judge_passes(passes, task, fitted, sqrt_outputs=False)
        >>> probs.shape, bound.shape
        (torch.Size([40, 3]), torch.Size([40]))
    """
    base = passes.base.to(torch.float64)
    nothing = torch.zeros(base.shape[:-1], dtype=torch.float64, device=base.device)
    bound, stretch, distance, samples = nothing, nothing, nothing, base.unsqueeze(0)
    if len(passes.noisy):
        measured = measure(passes, sqrt_outputs=sqrt_outputs)
        bound = measured.bound(fitted.plain.trace_xx, fitted.plain.lam)
        stretch = envelope.stretch(bound, measured.trace)
        samples = envelope.samples(base, passes.noisy, fitted.j_probs * stretch)
    if fitted.features is not None and passes.features is not None and bound.ndim == 1:
        distance = fitted.features.distance(passes.features)
    variance = torch.zeros_like(base)
    if isinstance(task, Regression):
        variance = task.variance(samples, fitted.noise(fitted.j_probs))
    return task.predict(samples), bound, stretch, distance, variance


def held_out_likelihood(
    passes: Passes,
    task: Task,
    taught: Sequence[FittedEnvelope],
    *,
    sqrt_outputs: bool,
) -> tuple[float, float]:
    """Mean log-likelihood of inputs that were not learned from: plain, and enveloped at J*.

    Args:
        passes: Of labelled ID inputs.
        task: What the outputs mean.
        taught: What each of their `splits` has taught, in this order.
        sqrt_outputs: Whether D is multiplied by √o.

    Example:
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.numerics.tasks import make_task
        >>> _ = torch.manual_seed(0)
        >>> base, labels = 5 * torch.randn(40, 3), torch.randint(3, (40,))
        >>> noisy, drift = base + torch.randn(4, 40, 3), 1.1 * base
        >>> passes = Passes(base, noisy, drift, None, labels, PassSettings(0.01, n_samples=4))
        >>> task, setting = make_task("classification"), Setting(0.01)
        >>> inside = [passes.take(inside) for inside, _ in splits(passes)]
        >>> taught = [fit_envelope(p, task, setting, sqrt_outputs=False) for p in inside]
        >>> plain, enveloped = held_out_likelihood(passes, task, taught, sqrt_outputs=False)
        >>> plain < 0, enveloped < 0
        (True, True)
    """
    totals = [0.0, 0.0]
    parts = splits(passes)
    for (_, held), state in zip(parts, taught, strict=True):
        part = passes.take(held)
        assert part.labels is not None
        measured, constants = measure(part, sqrt_outputs=sqrt_outputs), state.plain
        unit = measured.stretch(constants.trace_xx, constants.lam)
        for i, j in enumerate((0.0, constants.j_star)):
            totals[i] += len(held) * calibration.mean_log_likelihood(
                task, part.base, part.noisy, j * unit, part.labels, state.noise(j)
            )
    n = sum(len(held) for _, held in parts)
    return totals[0] / n, totals[1] / n
