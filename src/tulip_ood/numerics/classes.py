"""One of several classes, for an input or for every position of it."""

import math

import torch
from torch import Tensor

from tulip_ood.errors import InputError, ModelError
from tulip_ood.numerics import scores as score_functions
from tulip_ood.numerics.task import Task, range_of, shape_of
from tulip_ood.wording import counted

__all__ = ["Classification", "Dense"]

_LOG2_E = 1.0 / math.log(2.0)
IGNORED = -100  # PyTorch's own mark for a position without a label


class Classification(Task):
    """One of o classes: logits [N, o], labels [N].

    Example:
        >>> import torch
        >>> Classification().label(torch.tensor([[0.0, 2.0]]))
        tensor([1])
    """

    name = "classification"
    scores = tuple(score_functions.SCORES)

    def outputs(self, raw: Tensor) -> Tensor:
        """[N, o] with o ≥ 2, as it is."""
        if raw.ndim == 1 or (raw.ndim == 2 and raw.shape[1] == 1):
            raise ModelError(
                f"task 'classification' needs logits [N, o] with o ≥ 2, but the network returns "
                f"{shape_of(raw)}: one logit for an input. Use task='binary' (a yes/no answer) or "
                f"task='regression' (a number)"
            )
        if raw.ndim != 2:
            raise ModelError(
                f"task 'classification' needs logits [N, o], but the network returns "
                f"{shape_of(raw)}. Use task='dense' for a class at every position "
                f"([N, o, positions…]), or output=… to pick the logits"
            )
        return raw

    def check_labels(self, labels: Tensor, base: Tensor) -> Tensor:
        """Whole numbers in 0…o−1, [N]."""
        if labels.ndim == 2 and labels.shape == base.shape:
            raise InputError(
                f"labels have the shape {shape_of(labels)} of the outputs: pass class numbers "
                f"(labels.argmax(1)), or task='multilabel' if several can be true"
            )
        return _class_numbers(labels, base, ignored=False)

    def predict(self, samples: Tensor) -> Tensor:
        """Mean softmax."""
        return score_functions.mean_probability(samples)

    def log_likelihood(
        self, samples: Tensor, labels: Tensor, noise_var: Tensor | None = None
    ) -> Tensor:
        """log mean_i softmax(f̃_i)_y, by logsumexp so that nothing underflows."""
        index = labels.clamp_min(0).expand(samples.shape[:-1]).unsqueeze(-1)
        picked = _log_probability(samples, index).squeeze(-1)
        return picked.logsumexp(dim=0) - math.log(samples.shape[0])

    def label(self, base: Tensor) -> Tensor:
        """The class of the largest logit."""
        return base.argmax(dim=-1)


class Dense(Classification):
    """One of o classes at every position: outputs [N, o, positions…], labels [N, positions…].

    Positions labelled −100 are left out.

    Example:
        >>> import torch
        >>> Dense().outputs(torch.zeros(2, 5, 8, 8)).shape
        torch.Size([2, 8, 8, 5])
    """

    name = "dense"

    def outputs(self, raw: Tensor) -> Tensor:
        """[N, o, positions…] → [N, positions…, o]."""
        if raw.ndim < 3 or raw.shape[1] < 2:
            raise ModelError(
                f"task 'dense' needs logits [N, o, positions…] with o ≥ 2, but the network "
                f"returns {shape_of(raw)}. If the classes are last, pass "
                f"output=lambda out: out.movedim(-1, 1)"
            )
        return raw.movedim(1, -1)

    def check_labels(self, labels: Tensor, base: Tensor) -> Tensor:
        """Whole numbers in 0…o−1, or −100 for "no label", [N, positions…]."""
        return _class_numbers(labels, base, ignored=True)

    def correct(self, base: Tensor, labels: Tensor) -> Tensor:
        """NaN where the label is −100."""
        return torch.where(labels == IGNORED, torch.nan, super().correct(base, labels))

    def log_likelihood(
        self, samples: Tensor, labels: Tensor, noise_var: Tensor | None = None
    ) -> Tensor:
        """NaN where the label is −100."""
        known = super().log_likelihood(samples, labels)
        return torch.where(labels == IGNORED, torch.nan, known)


def _log_probability(logits: Tensor, index: Tensor) -> Tensor:
    """log softmax at some classes. The search for J takes most of its time here.

    On a CPU by powers of two, for which PyTorch takes half as long as for exp.
    """
    if logits.device.type != "cpu" or logits.requires_grad:
        return logits.log_softmax(dim=-1).gather(-1, index)
    top = logits.amax(dim=-1, keepdim=True)
    powers = (logits - top).mul_(_LOG2_E).exp2_()
    return logits.gather(-1, index) - top - powers.sum(dim=-1, keepdim=True).log()


def _class_numbers(labels: Tensor, base: Tensor, *, ignored: bool) -> Tensor:
    if labels.shape != base.shape[:-1]:
        column = labels.shape == (*base.shape[:-1], 1)
        raise InputError(
            f"labels must have the shape {shape_of(base[..., 0])}, got {shape_of(labels)}"
            + (": pass labels.squeeze(-1)" if column else "")
        )
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        found = "NaN" if bool(labels.isnan().any()) else "fractions"
        raise InputError(f"labels must be whole class numbers, got {found}")
    labels = labels.to(torch.int64)
    checked = labels[labels != IGNORED] if ignored else labels
    if ignored and checked.numel() == 0:
        raise InputError(f"no position has a label: all {labels.numel()} are {IGNORED}")
    n_classes = base.shape[-1]
    outside = (checked < 0) | (checked >= n_classes)
    if bool(outside.any()):
        hint = " (mark positions without a label by -100)" if ignored else ""
        raise InputError(
            f"labels must lie in 0…{n_classes - 1} because the network has "
            f"{counted(n_classes, 'output')}, but {int(outside.sum())} of {checked.numel()} do "
            f"not ({range_of(checked)}){hint}"
        )
    return labels
