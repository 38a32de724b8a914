"""How good is a score? AUROC, both FPRs, AUPR, risk–coverage, calibration error.

Scores are high = unsure. "ID" inputs should score low, "OOD" inputs high. Ties are exact: a tie
between an ID and an OOD score counts one half in AUROC, and inputs of equal score enter a
risk–coverage curve together, each with the group's mean error. Everything sorts once and works on
a few arrays, so ten million scores take seconds and a few hundred megabytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tulip_ood.errors import InputError

__all__ = [
    "Reliability",
    "accuracy",
    "augrc",
    "aupr_in",
    "aupr_out",
    "aurc",
    "auroc",
    "ece",
    "id_flagged_at_95_ood",
    "nll",
    "ood_missed_at_95_id",
    "reliability",
    "risk_coverage",
    "roc_curve",
    "spearman",
]

Numbers = Tensor | npt.NDArray[np.generic] | Sequence[float]

_BLOCK = 1 << 20  # numbers that are looked up at once
_ROUNDING = 1e-6  # a mean of probabilities may exceed 1 by so much


def _flat(values: Numbers, what: str) -> Tensor:
    """One-dimensional, on the CPU, not empty, no NaN; float64 unless it is float32 already."""
    if isinstance(values, Tensor):
        tensor = values.detach().reshape(-1).cpu()
    elif isinstance(values, np.ndarray):
        # torch takes neither read-only arrays (pyarrow's) nor reversed ones as they are.
        tensor = torch.from_numpy(np.require(values, requirements=["C", "W"])).reshape(-1)
    else:
        tensor = torch.as_tensor(values, dtype=torch.float64, device="cpu").reshape(-1)
    if tensor.dtype != torch.float32:
        tensor = tensor.to(torch.float64)
    if tensor.numel() == 0:
        raise InputError(f"{what} is empty: a metric needs at least one number")
    if bool(tensor.isnan().any()):
        raise InputError(f"{what} contains {int(tensor.isnan().sum())} NaN: leave them out first")
    return tensor


def _sorted(values: Numbers, what: str) -> Tensor:
    # NumPy's sort: torch's also makes the places that the values came from, twice the memory.
    return torch.from_numpy(np.sort(_flat(values, what).numpy()))


def _both_sorted(id_scores: Numbers, ood_scores: Numbers) -> tuple[Tensor, Tensor]:
    inside, outside = _sorted(id_scores, "id_scores"), _sorted(ood_scores, "ood_scores")
    if inside.dtype == outside.dtype:
        return inside, outside
    return inside.to(torch.float64), outside.to(torch.float64)


def auroc(id_scores: Numbers, ood_scores: Numbers) -> float:
    """P(OOD score > ID score) + ½ P(equal).

    Example:
        >>> auroc([0.1, 0.2, 0.3], [0.3, 0.9])
        0.9166666666666666
    """
    inside, outside = _both_sorted(id_scores, ood_scores)
    won = 0  # twice the pairs in which OOD scores higher; a tie counts one
    for block in outside.split(_BLOCK):
        won += int(torch.searchsorted(inside, block, right=False).sum())
        won += int(torch.searchsorted(inside, block, right=True).sum())
    return won / (2 * inside.numel() * outside.numel())


def id_flagged_at_95_ood(id_scores: Numbers, ood_scores: Numbers, *, caught: float = 0.95) -> float:
    """OpenOOD's FPR@95 since August 2023: ID flagged at the threshold that catches 95 % of OOD.

    The threshold is the largest at which at least `caught` of the OOD scores are flagged
    (score ≥ threshold).

    Example:
        >>> id_flagged_at_95_ood([0.1, 0.2, 0.6, 0.7], [0.65, 0.8, 0.9])
        0.25
    """
    inside, outside = _both_sorted(id_scores, ood_scores)
    needed = _at_least(caught, outside.numel())
    threshold = outside[outside.numel() - needed]
    return float((inside >= threshold).to(torch.float64).mean())


def ood_missed_at_95_id(id_scores: Numbers, ood_scores: Numbers, *, kept: float = 0.95) -> float:
    """OOD accepted at the threshold that accepts 95 % of ID: what a deployment misses.

    The threshold is the smallest at which at least `kept` of the ID scores are accepted
    (score ≤ threshold).

    Example:
        >>> ood_missed_at_95_id([0.1, 0.2, 0.6, 0.7], [0.65, 0.8, 0.9])
        0.3333333333333333
    """
    inside, outside = _both_sorted(id_scores, ood_scores)
    threshold = inside[_at_least(kept, inside.numel()) - 1]
    return float((outside <= threshold).to(torch.float64).mean())


def _at_least(share: float, n: int) -> int:
    """The smallest count k with k/n ≥ share, without the rounding of share·n."""
    if not 0.0 < share <= 1.0:
        raise InputError(f"a share must lie above 0 and not above 1, got {share}")
    k = max(1, min(n, round(share * n)))
    while k / n < share:
        k += 1
    while k > 1 and (k - 1) / n >= share:
        k -= 1
    return k


def aupr_out(id_scores: Numbers, ood_scores: Numbers) -> float:
    """Average precision with OOD as the positive class (OpenOOD's AUPR: trapezoids instead).

    Example:
        >>> aupr_out([0.1, 0.4], [0.3, 0.9])
        0.8333333333333333
    """
    inside, outside = _both_sorted(id_scores, ood_scores)
    return _average_precision(outside, inside)


def aupr_in(id_scores: Numbers, ood_scores: Numbers) -> float:
    """Average precision with ID as the positive class (a low score speaks for it).

    OpenOOD's AUPR takes trapezoids below the same curve instead of steps.

    Example:
        >>> aupr_in([0.1, 0.4], [0.3, 0.9])
        0.8333333333333333
    """
    inside, outside = _both_sorted(id_scores, ood_scores)
    return _average_precision(-inside.flip(0), -outside.flip(0))


def _average_precision(positive: Tensor, negative: Tensor) -> float:
    """The precision at the threshold of each positive, averaged over positives; both sorted.

    The same as Σ (recall step × precision) over the distinct thresholds, ties included.
    """
    total = 0.0
    for block in positive.split(_BLOCK):
        caught = _at_or_above(positive, block)
        total += float((caught / (caught + _at_or_above(negative, block))).sum())
    return total / positive.numel()


def _at_or_above(values: Tensor, thresholds: Tensor) -> Tensor:
    """How many of the sorted values reach each threshold, float64."""
    below = torch.searchsorted(values, thresholds, right=False)
    return (values.numel() - below).to(torch.float64)


def roc_curve(id_scores: Numbers, ood_scores: Numbers) -> tuple[Tensor, Tensor]:
    """Share of ID flagged and share of OOD caught at every distinct threshold, from (0,0) to (1,1).

    Example:
        >>> flagged, caught = roc_curve([0.1, 0.4], [0.4, 0.9])
        >>> flagged.tolist(), caught.tolist()
        ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    inside, outside = _both_sorted(id_scores, ood_scores)
    every = torch.cat([inside, outside]).numpy()
    every.sort()
    thresholds = torch.from_numpy(every).unique_consecutive().flip(0)
    del every
    flagged = _share_at_or_above(inside, thresholds)
    del inside
    return flagged, _share_at_or_above(outside, thresholds)


def _share_at_or_above(values: Tensor, thresholds: Tensor) -> Tensor:
    """The share of the sorted values that reach each threshold, after a first 0."""
    share = torch.zeros(thresholds.numel() + 1, dtype=torch.float64, device="cpu")
    for part, block in zip(share[1:].split(_BLOCK), thresholds.split(_BLOCK), strict=True):
        part.copy_(_at_or_above(values, block))
    return share.div_(values.numel())


def _errors_by_confidence(scores: Numbers, wrong: Numbers) -> Tensor:
    """Expected number of errors among the k surest inputs, k = 1…n (ties spread evenly)."""
    values, errors = _flat(scores, "scores"), _flat(wrong, "wrong")
    if values.shape != errors.shape:
        raise InputError(
            f"scores and wrong must be equally long, got {values.numel()} and {errors.numel()}"
        )
    values, order = values.sort()
    errors = errors.to(torch.float64)[order].cumsum_(0)
    last = torch.ones_like(values, dtype=torch.bool)  # where a group of equal scores ends
    torch.ne(values[1:], values[:-1], out=last[:-1])
    del values, order
    if bool(last.all()):
        return errors
    ends = last.nonzero().squeeze(1)
    counts = ends.diff(prepend=ends.new_tensor([-1]))
    each = errors[ends].diff(prepend=errors.new_zeros(1)) / counts
    del errors, ends
    return each.repeat_interleave(counts).cumsum_(0)


def risk_coverage(scores: Numbers, wrong: Numbers) -> tuple[Tensor, Tensor]:
    """Coverage k/n and the error rate among the k surest inputs, k = 1…n.

    Args:
        scores: One score an input, high = unsure.
        wrong: 1 (or True) where the network's answer is wrong, else 0.

    Example:
        >>> coverage, risk = risk_coverage([0.1, 0.2, 0.9, 0.8], [0, 0, 1, 0])
        >>> risk.tolist()
        [0.0, 0.0, 0.0, 0.25]
    """
    errors = _errors_by_confidence(scores, wrong)
    k = torch.arange(1, errors.numel() + 1, dtype=torch.float64, device=errors.device)
    return k / errors.numel(), errors / k


def aurc(scores: Numbers, wrong: Numbers) -> float:
    """Area under the risk–coverage curve: the mean over k of the risk of the k surest inputs.

    Example:
        >>> aurc([0.1, 0.2, 0.9, 0.8], [0, 0, 1, 0])
        0.0625
    """
    return float(risk_coverage(scores, wrong)[1].mean())


def augrc(scores: Numbers, wrong: Numbers) -> float:
    """Area under the generalised risk–coverage curve (Traub et al., NeurIPS 2024).

    The chance that an input is accepted *and* wrong, averaged over coverage: with accuracy a,
    (1 − AUROC_f)·a·(1 − a) + ½(1 − a)².

    Example:
        >>> augrc([0.1, 0.2, 0.9, 0.8], [0, 0, 1, 0])
        0.03125
    """
    errors = _errors_by_confidence(scores, wrong)
    n = errors.numel()
    return float((errors.sum() - errors[-1] / 2) / n**2)


def spearman(one: Numbers, other: Numbers) -> float:
    """Spearman's ρ of two scores of the same inputs; ties share their mean rank.

    Where a score ranks nothing (all are equal), 1 if neither does and 0 otherwise.

    Example:
        >>> round(spearman([1.0, 2.0, 2.0, 4.0], [10.0, 30.0, 20.0, 40.0]), 4)
        0.9487
    """
    a, b = (_mean_ranks(_flat(values, "scores")) for values in (one, other))
    if len(a) != len(b):
        raise InputError(f"two scores of the same inputs are needed, got {len(a)} and {len(b)}")
    a, b = a - a.mean(), b - b.mean()
    size = float(a.norm() * b.norm())
    if size == 0.0:
        return float(torch.equal(a, b))
    return float(a @ b) / size


def _mean_ranks(values: Tensor) -> Tensor:
    _, group, counts = values.unique(return_inverse=True, return_counts=True)
    middle: Tensor = counts.cumsum(0) - (counts.to(torch.float64) - 1) / 2
    return middle[group]


class Reliability(NamedTuple):
    """A reliability diagram: for every bin that is not empty, what was said and what was so.

    Example:
        >>> reliability([0.92, 0.95], [1, 0], bins=10).accuracy.tolist()
        [0.5]
    """

    confidence: Tensor
    accuracy: Tensor
    inputs: Tensor


def reliability(confidence: Numbers, correct: Numbers, *, bins: int = 15) -> Reliability:
    """Mean confidence and accuracy in equal-width bins (right-closed, as is usual for ECE).

    Example:
        >>> reliability([0.2, 0.8], [0, 1], bins=2).inputs.tolist()
        [1, 1]
    """
    said, so = _flat(confidence, "confidence"), _flat(correct, "correct").to(torch.float64)
    if said.shape != so.shape:
        raise InputError(
            f"confidence and correct must be equally long, got {said.numel()} and {so.numel()}"
        )
    if bins < 1:
        raise InputError(f"bins must be at least 1, got {bins}")
    low, high = (float(end) for end in said.aminmax())
    if low < -_ROUNDING or high > 1.0 + _ROUNDING:
        raise InputError(f"confidence must lie in 0…1, got {low:g} to {high:g}")
    said = said.to(torch.float64)
    index = (said * bins).ceil().to(torch.int64).sub_(1).clamp_(0, bins - 1)
    count = torch.bincount(index, minlength=bins)
    kept = count > 0
    mean_said = torch.bincount(index, weights=said, minlength=bins)[kept] / count[kept]
    mean_so = torch.bincount(index, weights=so, minlength=bins)[kept] / count[kept]
    return Reliability(mean_said, mean_so, count[kept])


def ece(confidence: Numbers, correct: Numbers, *, bins: int = 15) -> float:
    """Expected calibration error: Σ share of bin × |accuracy − confidence|.

    Example:
        >>> round(ece([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0]), 4)
        0.15
    """
    diagram = reliability(confidence, correct, bins=bins)
    gap = (diagram.accuracy - diagram.confidence).abs()
    return float((gap * diagram.inputs).sum() / diagram.inputs.sum())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Mean −log p of the true class.

    Example:
        >>> import torch
        >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([1])), 4)
        0.6931
    """
    _check_labelled(probs, labels)
    picked = probs.to(torch.float64).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return float(-picked.log().mean())


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of inputs whose largest logit is at the label.

    Example:
        >>> import torch
        >>> accuracy(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([1, 1]))
        0.5
    """
    _check_labelled(logits, labels)
    return float((logits.argmax(dim=-1) == labels).to(torch.float64).mean())


def _check_labelled(outputs: Tensor, labels: Tensor) -> None:
    if labels.shape != outputs.shape[:-1]:
        raise InputError(
            f"outputs of shape {list(outputs.shape)} need labels of shape "
            f"{list(outputs.shape[:-1])}, got {list(labels.shape)}"
        )
    if labels.numel() == 0:
        raise InputError("outputs and labels are empty: a metric needs at least one input")
    if bool(outputs.isnan().any()):
        raise InputError(f"outputs contain {int(outputs.isnan().sum())} NaN: leave them out first")
