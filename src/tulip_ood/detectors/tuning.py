"""Choosing ε, λ and J without OOD data: rank settings on pseudo-OOD made from ID inputs.

Every setting gets its AUROC of validation inputs against each kind of pseudo-OOD; the best mean
over the kinds wins, of the AUROC or of its rank. Passes are made once for each ε, everything else
is arithmetic.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tulip_ood.detectors.envelope_fit import score_stretched
from tulip_ood.detectors.measured import measure
from tulip_ood.detectors.recipes import PAPER_J_SCALINGS, Recipe, Setting
from tulip_ood.detectors.shaping import SHAPINGS, make_shaping
from tulip_ood.errors import InputError
from tulip_ood.network.features import Head
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import calibration, metrics
from tulip_ood.numerics.tasks import Regression, Task

__all__ = [
    "Candidate",
    "SearchSpace",
    "best_first",
    "candidates",
    "mean_ranks",
    "scores_of",
    "what_to_search",
]


@dataclass(frozen=True)
class SearchSpace:
    """What is tried. A list of one is not searched.

    Attributes:
        epsilon: Values of ε; those that spoil the network's accuracy are dropped.
        balance: Values of λ in units of the balanced λ.
        lam: Values of λ itself; if there are any, `balance` is passed over.
        j: Values of J.
        j_scaling: Values of J in units of J*.
        shaping: What is done to penultimate features; none if empty.
        kinds: Names of pseudo-OOD or functions from inputs to inputs; None for the usual ones.

    Example:
        >>> SearchSpace().epsilon
        (0.001, 0.002, 0.005, 0.01)
    """

    epsilon: tuple[float, ...] = (0.001, 0.002, 0.005, 0.01)
    balance: tuple[float, ...] = (0.0, 0.5, 0.75, 1.0, 1.25)
    lam: tuple[float, ...] = ()
    j: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.5)
    j_scaling: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0)
    shaping: tuple[str, ...] = ()
    kinds: tuple[str | Callable[[Any], Any], ...] | None = None

    def restricted(self, given: Mapping[str, Any]) -> "SearchSpace":
        """With some lists replaced by the user's."""
        known = set(SearchSpace.__dataclass_fields__)
        unknown = set(given) - known
        if unknown:
            raise InputError(
                f"a search space has the keys {', '.join(sorted(known))}; got "
                f"{', '.join(sorted(map(str, unknown)))}"
            )
        values = {name: getattr(self, name) for name in known}
        values |= {name: _several(name, value) for name, value in given.items()}
        return SearchSpace(**values)


def _several(name: str, value: Any) -> tuple[Any, ...] | None:
    """What the user gave for one key, as values to try."""
    if name == "kinds" and value is None:
        return None
    if hasattr(value, "tolist"):  # an array or a tensor
        value = value.tolist()
    several = isinstance(value, Iterable) and not isinstance(value, str)
    values = tuple(value) if several else (value,)
    if name in ("epsilon", "kinds") and not values:
        raise InputError(f"tune={{{name!r}: …}} is empty: give at least one value")
    if name in ("shaping", "kinds"):
        return values
    for number in values:
        real = isinstance(number, int | float) and not isinstance(number, bool)
        if not real or not 0 <= number < float("inf") or (name == "epsilon" and number == 0):
            least = "positive" if name == "epsilon" else "not negative"
            raise InputError(f"tune: values of {name} must be finite and {least}, got {number!r}")
    return tuple(map(float, values))


def what_to_search(
    recipe: Recipe,
    given: Iterable[Any] | Mapping[str, Any] | Callable[[Any], Any] | None,
    *,
    epsilon: float | None,
    lam: float | None,
    j: float | None,
    shaping: str | None = None,
) -> tuple[SearchSpace | None, Iterable[Any] | None]:
    """The space (None: nothing to search) and the OOD loader (None: pseudo-OOD).

    Args:
        recipe: Where the search starts, or that there is none.
        given: What `fit(tune=…)` was given.
        epsilon: What the user has set, and so is never searched.
        lam: Likewise.
        j: Likewise.
        shaping: A family is searched over its percentiles; one with a percentile is not.

    Example:
        >>> from tulip_ood.detectors.recipes import recipe_named
        >>> what_to_search(recipe_named("balanced"), None, epsilon=None, lam=None, j=None)
        (None, None)
        >>> space, _ = what_to_search(recipe_named("self"), None, epsilon=0.01, lam=None, j=None)
        >>> space.epsilon
        (0.01,)
    """
    start = recipe.setting
    if recipe.searches:
        space = SearchSpace()
    elif given is None:
        return None, None
    else:
        alone = () if start.lam is None else (start.lam,)
        space = SearchSpace((start.epsilon,), (start.balance,), alone, (), PAPER_J_SCALINGS)
    ood: Iterable[Any] | None = None
    if isinstance(given, Mapping):
        space = space.restricted(given)
    elif callable(given) and not hasattr(given, "__iter__"):
        space = space.restricted({"kinds": (given,)})
    elif isinstance(given, str):
        raise InputError(f"tune={given!r}: pass OOD inputs (a loader), a search space, or 'pseudo'")
    elif given is not None:
        ood = given
    fixed: dict[str, Any] = {}
    if epsilon is not None:
        fixed["epsilon"] = (epsilon,)
    if lam is not None:
        fixed["lam"] = (lam,)
    if j is not None:
        fixed |= {"j": (j,), "j_scaling": ()}
    if shaping is not None:
        family = SHAPINGS.get(shaping)
        steps = (shaping,) if family is None else tuple(f"{shaping}:{p:g}" for p in family.searched)
        fixed["shaping"] = steps if recipe.searches else (shaping,)
    return space.restricted(fixed), ood


@dataclass(frozen=True)
class Candidate:
    """A setting and how it did.

    Attributes:
        setting: What was tried.
        j: Its J, whatever way it was found.
        aurocs: AUROC against each kind.
        value: What it was chosen by, the higher the better.

    Example:
        >>> Candidate(Setting(0.005), 0.0, {"blur": 0.8}).aurocs["blur"]
        0.8
    """

    setting: Setting
    j: float
    aurocs: dict[str, float]
    value: float = field(default=float("nan"), compare=False)


def candidates(
    inside: Passes,
    outside: Mapping[str, Passes],
    task: Task,
    score: str,
    space: SearchSpace,
    *,
    sqrt_outputs: bool,
    device: torch.device | None = None,
) -> list[Candidate]:
    """Every setting of the space at the ε of these passes, with its AUROCs.

    Args:
        inside: Passes of labelled ID inputs.
        outside: Passes of each kind of OOD, with the same settings.
        task: What the outputs mean.
        score: The score that will be used.
        space: What is tried; its `epsilon` is passed over, `inside` has one.
        sqrt_outputs: Whether the drift is multiplied by √o.
        device: Where the arithmetic is done; some thousand likelihoods and scores take long on
            a CPU where there are many classes.

    Example:
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.numerics.tasks import make_task
        >>> _ = torch.manual_seed(0)
        >>> def passes(scale):
        ...     base, noise = scale * torch.randn(40, 3), torch.randn(2, 40, 3)
        ...     settings = PassSettings(0.01, n_samples=2)
        ...     return Passes(base, base + noise, 1.1 * base, None, base.argmax(1), settings)
        >>> space = SearchSpace(balance=(1.0,), j=(0.0, 1.0), j_scaling=())
        >>> task = make_task("classification")
        >>> ood = {"dim": passes(1)}
        >>> tried = candidates(passes(5), ood, task, "ent", space, sqrt_outputs=False)
        >>> [candidate.j for candidate in tried]
        [0.0, 1.0]
    """
    found: list[Candidate] = []
    plain = [_moved(part, device) for part in (inside, *outside.values())]
    for spec in space.shaping or (None,):
        parts = plain
        if spec is not None:
            shaping = make_shaping(spec).learned(plain[0].need_features())
            parts = [part.reshaped(shaping) for part in plain]
        wide = [_widened(part) for part in parts]
        found += _unshaped(wide, list(outside), task, score, space, sqrt_outputs, spec)
    return found


def _moved(passes: Passes, device: torch.device | None) -> Passes:
    """The same passes on another device."""
    if device is None or device.type != "cuda":  # others may lack float64
        return passes

    def there(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.to(device)

    return replace(
        passes,
        base=passes.base.to(device),
        noisy=passes.noisy.to(device),
        drift=there(passes.drift),
        features=there(passes.features),
        labels=there(passes.labels),
        noisy_features=there(passes.noisy_features),
        drift_features=there(passes.drift_features),
        heads=tuple(Head(*(part.to(device) for part in head)) for head in passes.heads),
        extras={},
    )


def _widened(passes: Passes) -> Passes:
    """Logits in float64 once, rather than again for every candidate."""
    drift = None if passes.drift is None else passes.drift.to(torch.float64)
    return replace(
        passes,
        base=passes.base.to(torch.float64),
        noisy=passes.noisy.to(torch.float64),
        drift=drift,
    )


def _unshaped(
    parts: list[Passes],
    names: list[str],
    task: Task,
    score: str,
    space: SearchSpace,
    sqrt_outputs: bool,
    spec: str | None,
) -> list[Candidate]:
    """Candidates for λ and J on passes as they are; the first of the parts is ID."""
    inside = parts[0]
    assert inside.labels is not None
    measured = [measure(part, sqrt_outputs=sqrt_outputs) for part in parts]
    trace_xx = calibration.mean_trace(measured[0].trace)
    balanced = calibration.balanced_lambda(trace_xx, float(measured[0].drift.mean()))
    start = Setting(inside.settings.epsilon, shaping=spec)
    found: list[Candidate] = []
    lams: list[tuple[float, dict[str, Any]]] = [
        *((lam, {"lam": lam}) for lam in space.lam),
        *((b * balanced, {"balance": b}) for b in (() if space.lam else space.balance)),
    ]
    for lam, by in lams:
        stretches = [m.stretch(trace_xx, lam) for m in measured]
        if score == "bound":
            bounds = [m.bound(trace_xx, lam) for m in measured]
            found.append(_candidate(replace(start, **by), 1.0, names, bounds))
            continue
        best = calibration.calibrate_j(task, inside.base, inside.noisy, stretches[0], inside.labels)
        absolute: list[tuple[float, dict[str, Any]]] = [(j, {"j": j}) for j in space.j]
        scaled = [(f * best.j, {"j_scaling": f}) for f in space.j_scaling]
        tried: set[float] = set()
        for j, how in [*absolute, *scaled]:
            # J = 0 is the plain (shaped) network whatever λ is.
            if j in tried or (j == 0.0 and any(c.j == 0.0 for c in found)):
                continue
            tried.add(j)
            scores = [
                score_stretched(part, task, score, j * stretch, best.noise_var)
                for part, stretch in zip(parts, stretches, strict=True)
            ]
            found.append(_candidate(replace(start, **by, **how), j, names, scores))
    return found


def scores_of(
    candidate: Candidate,
    inside: Passes,
    others: Sequence[Passes],
    task: Task,
    score: str,
    *,
    sqrt_outputs: bool,
) -> list[Tensor]:
    """Scores of ID passes and others under one candidate, with the constants of the ID passes.

    Example:
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.numerics.tasks import make_task
        >>> base, settings = torch.eye(3), PassSettings(0.01, n_samples=2)
        >>> passes = Passes(base, base + torch.ones(2, 3, 3), base, None, base.argmax(1), settings)
        >>> one = Candidate(Setting(0.01), 1.0, {})
        >>> task = make_task("classification")
        >>> [s.shape for s in scores_of(one, passes, [passes], task, "ent", sqrt_outputs=False)]
        [torch.Size([3]), torch.Size([3])]
    """
    setting, parts = candidate.setting, [inside, *others]
    if setting.shaping is not None:
        shaping = make_shaping(setting.shaping).learned(inside.need_features())
        parts = [part.reshaped(shaping) for part in parts]
    measured = [measure(part, sqrt_outputs=sqrt_outputs) for part in parts]
    trace_xx = calibration.mean_trace(measured[0].trace)
    balanced = calibration.balanced_lambda(trace_xx, float(measured[0].drift.mean()))
    lam = setting.lam if setting.lam is not None else setting.balance * balanced
    if score == "bound":
        return [m.bound(trace_xx, lam) for m in measured]
    stretches = [m.stretch(trace_xx, lam) for m in measured]
    noise = None
    if isinstance(task, Regression):
        assert inside.labels is not None
        fitted = calibration.calibrate_j(
            task, parts[0].base, parts[0].noisy, stretches[0], inside.labels
        )
        noise = fitted.noise_var
    return [
        score_stretched(part, task, score, candidate.j * stretch, noise)
        for part, stretch in zip(parts, stretches, strict=True)
    ]


def _candidate(
    setting: Setting, j: float, names: Sequence[str], scores: Sequence[Tensor]
) -> Candidate:
    inside = scores[0].cpu()
    aurocs = {
        name: metrics.auroc(inside, outside.cpu())
        for name, outside in zip(names, scores[1:], strict=True)
    }
    return Candidate(setting, j, aurocs)


def mean_ranks(found: Sequence[Candidate]) -> list[float]:
    """The rank of each candidate (1 = highest AUROC, ties share the mean), averaged over kinds.

    Example:
        >>> tried = [Candidate(Setting(0.1), 0.0, {"a": 0.9, "b": 0.5}),
        ...          Candidate(Setting(0.2), 0.0, {"a": 0.8, "b": 0.5})]
        >>> mean_ranks(tried)
        [1.25, 1.75]
    """
    kinds = list(found[0].aurocs)
    table = torch.tensor([[c.aurocs[kind] for kind in kinds] for c in found], dtype=torch.float64)
    better = (table.unsqueeze(0) > table.unsqueeze(1)).sum(dim=1)
    equal = (table.unsqueeze(0) == table.unsqueeze(1)).sum(dim=1)
    ranks = 1.0 + better + (equal - 1) / 2.0
    return [float(rank) for rank in ranks.mean(dim=1)]


def best_first(found: Sequence[Candidate], by: str) -> list[Candidate]:
    """All candidates, the best first; what is tied goes to the smaller J, λ, ε.

    Args:
        found: What was tried, with its AUROCs.
        by: "auroc" for the highest mean AUROC over the kinds, "rank" for the best mean rank.

    Example:
        >>> tried = [Candidate(Setting(0.1, j=1.0), 1.0, {"a": 0.9}),
        ...          Candidate(Setting(0.1, j=0.5), 0.5, {"a": 0.9})]
        >>> best_first(tried, "auroc")[0].j
        0.5
    """
    if by == "rank":
        values = [-rank for rank in mean_ranks(found)]
    else:
        values = [sum(c.aurocs.values()) / len(c.aurocs) for c in found]

    def order(c: Candidate) -> tuple[float, ...]:
        lam = c.setting.lam if c.setting.lam is not None else c.setting.balance
        return (-c.value, c.j, lam, c.setting.epsilon)

    judged = (Candidate(c.setting, c.j, c.aurocs, v) for c, v in zip(found, values, strict=True))
    return sorted(judged, key=order)
