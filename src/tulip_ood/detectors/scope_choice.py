"""`scope="auto"`: the smallest part of the network whose perturbation ranks as well as all of it.

What no perturbed parameter reaches is the same in every pass, so a small scope makes TULiP cheap. A
scope is good enough where its mean AUROC against the kinds of pseudo-OOD is not clearly lower than
that of all parameters (a paired bootstrap over images, 95 %), and not lower by more than half a
point in any case: few images must not excuse a loss that they cannot show.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from tulip_ood.detectors.engine import PassCount
from tulip_ood.detectors.recipes import Setting
from tulip_ood.detectors.self_tuning import Tuning, as_judged
from tulip_ood.detectors.steadiness import HARDLY_WORSE, Steadiness, steadiest_first
from tulip_ood.detectors.trial_passes import HeadRunner, Looked, Runner, usable_epsilons
from tulip_ood.detectors.tuning import Candidate, SearchSpace, best_first, candidates, scores_of
from tulip_ood.network.perturbation import Perturbation
from tulip_ood.numerics import calibration, envelope
from tulip_ood.numerics.paired import Paired, Scored, resampled_auroc
from tulip_ood.numerics.tasks import Task

__all__ = ["SCOPES", "ScopeChoice", "ScopeSearch", "Trade"]

SCOPES = ("head", "last-block", "last-stage", "all")  # the smallest first
_PROBED = 32  # inputs that show how far a scope's noise moves the outputs
_LARGEST = 0.125  # ε: with δ = 8 the drift then goes as far again as training did


@dataclass(frozen=True)
class Trade:
    """What a scope costs, and how well it does.

    Attributes:
        scope: Its name.
        numbers: How many of the network's parameters it perturbs.
        share: The share of a pass's multiplications that every perturbed pass repeats; None where
            that could not be seen.
        epsilon: The ε that it was judged at.
        auroc: Mean AUROC against the kinds of pseudo-OOD.
        loss: How much lower that is than with all parameters.
        low: The lower end of the loss's 95 % interval.
        high: The upper end.
        good: Whether it is as good as all parameters.

    Example:
        >>> Trade("head", 5130, 0.0, 0.05, 0.89, 0.01, 0.004, 0.016, False).scope
        'head'
    """

    scope: str
    numbers: int
    share: float | None
    epsilon: float
    auroc: float
    loss: float
    low: float
    high: float
    good: bool

    def to_dict(self) -> dict[str, Any]:
        """For a report and a file."""
        return asdict(self)


@dataclass(frozen=True)
class ScopeChoice:
    """The scope that was chosen, and what goes with it.

    Attributes:
        scope: Its name.
        setting: ε, λ and J for it.
        candidate: The same as it was judged.
        looked: What was looked at, with the passes of this scope.
        trades: All scopes, the smallest first.
        forwards: Inputs times passes that were spent.

    Example:
        >>> ScopeChoice.__dataclass_fields__["scope"].type
        <class 'str'>
    """

    scope: str
    setting: Setting
    candidate: Candidate
    looked: Looked
    trades: tuple[Trade, ...]
    forwards: int


@dataclass(frozen=True)
class _Judged:
    candidate: Candidate
    looked: Looked
    forwards: int = 0


class ScopeSearch:
    """Judges scopes beside the one that a search was made with.

    Args:
        tuning: The search with all parameters.
        space: What it searched.
        task: What the outputs mean.
        score: The score that will be used.
        by: How to choose among settings, "auroc" or "rank".
        sqrt_outputs: Whether the drift is multiplied by √o.
        batch_size: Inputs in one forward pass.
        seed: Decides what is random.
        count: Told of every input that goes through a pass.
        keep_epsilon: Whether ε is given, and so the same for every scope.

    Example:
        >>> import torch, tulip_ood
        >>> _ = torch.manual_seed(0)
        >>> layers = torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
        >>> model, x = torch.nn.Sequential(*layers), torch.randn(200, 4)
        >>> y = model(2 * x).argmax(1)
        >>> detector = tulip_ood.Tulip(model, scope="auto").fit([(x, y)])  # calls it
        >>> [trade["scope"] for trade in detector.report().facts["scopes"]][-1]
        'all'
    """

    def __init__(
        self,
        tuning: Tuning,
        space: SearchSpace,
        task: Task,
        score: str,
        *,
        by: str,
        sqrt_outputs: bool,
        batch_size: int,
        seed: int,
        count: PassCount,
        keep_epsilon: bool,
    ) -> None:
        assert tuning.looked is not None
        self._looked, self._tuning, self._space = tuning.looked, tuning, space
        self._task, self._score = task, score
        self._by, self._sqrt, self._size, self._seed = by, sqrt_outputs, batch_size, seed
        self._count, self._keep_epsilon = count, keep_epsilon

    def choose(
        self, perturbations: Mapping[str, Perturbation], shares: Mapping[str, float] | None
    ) -> ScopeChoice:
        """The smallest scope that is good enough.

        Args:
            perturbations: By scope, the smallest first and "all" at the end.
            shares: Of a pass's multiplications, by scope.
        """
        judged = {
            scope: self._judge(perturbation)
            for scope, perturbation in perturbations.items()
            if scope != "all"
        }
        judged["all"] = _Judged(self._tuning.ranked[0], self._looked)
        drawn = {scope: self._resampled(one) for scope, one in judged.items()}
        trades = []
        for scope, one in judged.items():
            paired = Paired.of(drawn["all"], drawn[scope])
            trades.append(
                Trade(
                    scope,
                    _numbers(perturbations[scope]),
                    None if shares is None else shares[scope],
                    one.candidate.setting.epsilon,
                    float(drawn[scope][0]),
                    paired.loss,
                    paired.low,
                    paired.high,
                    paired.low <= 0.0 and paired.loss <= HARDLY_WORSE,
                )
            )
        chosen = next(trade.scope for trade in trades if trade.good)
        best = judged[chosen]
        return ScopeChoice(
            chosen,
            as_judged(best.candidate, self._space),
            best.candidate,
            best.looked,
            tuple(trades),
            sum(one.forwards for one in judged.values()),
        )

    def runner(self, perturbation: Perturbation) -> Runner:
        """What makes the passes of a scope."""
        from_features = HeadRunner.serves(perturbation, self._looked.inside_base)
        kind = HeadRunner if from_features else Runner
        shaped = bool(self._space.shaping)
        return kind(
            perturbation, self._size, self._seed, self._count, shaped, features=from_features
        )

    def _judge(self, perturbation: Perturbation) -> _Judged:
        """The best setting of one scope, at one ε."""
        looked, task = self._looked, self._task
        runner = self.runner(perturbation)
        wanted = self._epsilon(runner)
        (epsilon, *_), _, inside = usable_epsilons(
            runner, looked.inside, looked.inside_base, looked.clean, (wanted,)
        )
        outside = runner.outside(looked.outside, looked.outside_base, epsilon)
        found = candidates(
            inside[epsilon],
            outside,
            task,
            self._score,
            self._space,
            sqrt_outputs=self._sqrt,
            device=perturbation.network.device,
        )
        ranked = best_first(found, self._by)
        if perturbation.network.device.type == "cpu":
            steadiness = Steadiness(
                runner.in_batches, looked.inside, inside, task, self._score, self._sqrt
            )
            ranked = steadiest_first(ranked, steadiness.gap)
        seen = replace(looked, inside_passes=inside[epsilon], outside_passes=outside)
        return _Judged(ranked[0], seen, runner.forwards)

    def _epsilon(self, runner: Runner) -> float:
        """The ε at which this scope's noise moves the outputs as far as all parameters' does."""
        full = self._looked.inside_passes
        epsilon = full.settings.epsilon
        if self._keep_epsilon:
            return epsilon
        few = full.take(slice(0, _PROBED))
        place = {digest: i for i, digest in enumerate(self._looked.inside.digests)}
        at = [place[digest] for digest in few.ids or ()]
        rows, base = self._looked.inside.take(at), self._looked.inside_base
        features = None if base.features is None else base.features[at]
        some = replace(base, logits=base.logits[at], features=features)
        pair = islice(runner.perturbation.noisy(epsilon), 2)
        moved = torch.stack([runner.logits(rows, some, parameters) for parameters in pair])
        theirs = calibration.mean_trace(envelope.trace(few.base, few.noisy[:2]))
        own = calibration.mean_trace(envelope.trace(some.logits, moved))
        if not (own > 0 and math.isfinite(theirs / own)):
            return epsilon
        wanted = epsilon * math.sqrt(theirs / own)
        return float(f"{min(max(wanted, epsilon), _LARGEST):.2g}")

    def _resampled(self, one: _Judged) -> Tensor:
        inside, outside = one.looked.inside_passes, one.looked.outside_passes
        first, *others = scores_of(
            one.candidate,
            inside,
            list(outside.values()),
            self._task,
            self._score,
            sqrt_outputs=self._sqrt,
        )
        return resampled_auroc(
            Scored(first, inside.ids or ()),
            {
                name: Scored(scores, passes.ids or ())
                for (name, passes), scores in zip(outside.items(), others, strict=True)
            },
            seed=self._seed,
        )


def _numbers(perturbation: Perturbation) -> int:
    return sum(perturbation.network.parameters[name].numel() for name in perturbation.scales)
