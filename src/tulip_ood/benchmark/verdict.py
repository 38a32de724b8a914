"""A comparison in plain words: what one method gains over another, and what it does not.

A difference is called one only where it is more than two standard errors from nothing, and large
enough for anyone to care.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tulip_ood.benchmark.paired import Difference, aurc_difference, auroc_difference
from tulip_ood.benchmark.results import Comparison, MethodResult
from tulip_ood.errors import InputError
from tulip_ood.wording import percent

__all__ = ["Verdict", "in_words", "judge"]

_WORTH_NAMING = 0.005  # half a point of AUROC

_WORDS = {
    "msp": "maximum probability",
    "ent": "entropy",
    "mls": "max-logit",
    "ebo": "energy",
    "gen": "GEN",
    "noise": "noise averaging",
    "tulip": "TULiP",
}


def in_words(method: str) -> str:
    """A method's name as it stands in a sentence.

    Example:
        >>> in_words("ebo"), in_words("knn")
        ('energy', 'knn')
    """
    return _WORDS.get(method, method)


@dataclass(frozen=True)
class Verdict:
    """What a comparison says about one method.

    Attributes:
        method: The method in question.
        baseline: What it is held against, or None.
        headline: One line.
        sentences: The same with numbers, most important first.
        auroc: The gain in AUROC on each OOD set.
        aurc: The change of AURC (negative is better), or None where errors are not known.

    Example:
        >>> Verdict("tulip", None, "TULiP, on its own", (), {}, None).headline
        'TULiP, on its own'
    """

    method: str
    baseline: str | None
    headline: str
    sentences: tuple[str, ...]
    auroc: dict[str, Difference]
    aurc: Difference | None


def judge(comparison: Comparison, method: str = "tulip", baseline: str | None = "ent") -> Verdict:
    """What `method` gains over `baseline`, on each OOD set and on the network's own errors.

    Args:
        comparison: What `evaluate` found.
        method: The method in question.
        baseline: What it is held against; None to judge it alone.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark.evaluate import evaluate
        >>> x, y, model = torch.randn(200, 4), torch.randint(3, (200,)), torch.nn.Linear(4, 3)
        >>> make = tulip_ood.detectors.make
        >>> detectors = {name: make(name, model).fit([(x, y)]) for name in ("msp", "ent")}
        >>> judge(evaluate(detectors, (x, y), {"same": x}), "ent", "msp").headline
        'Entropy and maximum probability tell OOD inputs apart equally well here'
    """
    for name in filter(None, (method, baseline)):
        if name not in comparison.methods:
            raise InputError(f"{name!r} is not in this comparison: {', '.join(comparison.methods)}")
    ours = comparison.methods[method]
    theirs = None if baseline is None or baseline == method else comparison.methods[baseline]
    gains = {} if theirs is None else _gains(ours, theirs)
    change = None if theirs is None else _error_ranking(ours, theirs)
    sentences = [
        _separation(ours, theirs, gains),
        _errors(ours, theirs, change),
        _threshold(ours),
        _best(comparison, method),
    ]
    return Verdict(
        method,
        None if theirs is None else baseline,
        _headline(method, None if theirs is None else baseline, gains),
        tuple(filter(None, sentences)),
        gains,
        change,
    )


def _gains(ours: MethodResult, theirs: MethodResult) -> dict[str, Difference]:
    return {
        name: auroc_difference(
            (theirs.id_scores, theirs.sets[name].scores), (ours.id_scores, ours.sets[name].scores)
        )
        for name in ours.sets
    }


def _error_ranking(ours: MethodResult, theirs: MethodResult) -> Difference | None:
    known = ~(ours.wrong.isnan() | theirs.wrong.isnan())
    if not bool(known.any()) or not bool((ours.wrong[known] == theirs.wrong[known]).all()):
        return None  # another network's errors: nothing to pair
    return aurc_difference(theirs.id_scores[known], ours.id_scores[known], ours.wrong[known])


def _headline(method: str, baseline: str | None, gains: dict[str, Difference]) -> str:
    name = _capital(in_words(method))
    if baseline is None:
        return f"What {in_words(method)} makes of these inputs"
    other = in_words(baseline)
    if not gains:
        return f"{name} beside {other}"
    named = {s: gain.value for s, gain in gains.items() if gain.clear}
    better = [s for s, gain in named.items() if gain >= _WORTH_NAMING]
    worse = [s for s, gain in named.items() if gain <= -_WORTH_NAMING]
    if better and worse:
        return f"{name} recognises {_list(better)} better than {other} does, {_list(worse)} worse"
    if better:
        return f"{name} recognises {_list(better)} better than {other} does"
    if worse:
        return f"{name} recognises {_list(worse)} worse than {other} does"
    return f"{name} and {other} tell OOD inputs apart equally well here"


def _separation(
    ours: MethodResult, theirs: MethodResult | None, gains: dict[str, Difference]
) -> str:
    if not ours.sets:
        return ""
    if theirs is None:
        found = [f"{100 * each.auroc:.1f} % on {name}" for name, each in ours.sets.items()]
        return f"Its AUROC is {_list(found)}."
    parts = []
    for name, gain in gains.items():
        then, now = 100 * theirs.sets[name].auroc, 100 * ours.sets[name].auroc
        sure = "" if gain.clear else ", may be chance"
        parts.append(f"from {then:.1f} to {now:.1f} % on {name} (±{200 * gain.error:.1f}{sure})")
    return f"With {in_words(ours.name)} the AUROC goes {_list(parts)}."


def _errors(ours: MethodResult, theirs: MethodResult | None, change: Difference | None) -> str:
    if math.isnan(ours.aurc):
        return ""
    if theirs is None or change is None:
        return f"AURC of the network’s own errors: {1000 * ours.aurc:.2f} × 10⁻³ (lower is better)."
    numbers = f"AURC {1000 * theirs.aurc:.2f} → {1000 * ours.aurc:.2f} × 10⁻³, lower is better"
    if not change.clear:
        return f"It ranks the network’s own errors about as well ({numbers}; may be chance)."
    how = "better" if change.value < 0 else "worse"
    return f"It ranks the network’s own errors {how} ({numbers})."


def _threshold(ours: MethodResult) -> str:
    caught = [f"{percent(each.refused, 0)} of {name}" for name, each in ours.sets.items()]
    alarms = percent(ours.false_alarms)
    refused = [f"{alarms} of in-distribution test inputs", *caught]
    return f"At its threshold it refuses {_list(refused)}."


def _best(comparison: Comparison, method: str) -> str:
    if len(comparison.methods) < 3 or not comparison.sets:
        return ""
    best = max(comparison.methods, key=lambda name: comparison.mean(name, "auroc"))
    mean = 100 * comparison.mean(best, "auroc")
    ours = 100 * comparison.mean(method, "auroc")
    lead = _capital(f"{in_words(best)} has the highest mean AUROC over all sets: {mean:.1f} %")
    return f"{lead}." if best == method else f"{lead} ({in_words(method)}: {ours:.1f} %)."


def _list(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
