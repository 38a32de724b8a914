"""What a network's outputs mean: classes, yes/no answers, numbers, or a class for every position.

A task turns raw outputs into one layout with the outputs in the last dimension ([N, o], or
[N, positions…, o] for dense prediction), checks labels against it, and says what the prediction,
its likelihood and its score are, given posterior samples [M, N, …, o].
"""

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from tulip_ood.errors import InputError, ModelError
from tulip_ood.numerics import scores as score_functions

__all__ = [
    "TASKS",
    "Binary",
    "Classification",
    "Dense",
    "Multilabel",
    "Regression",
    "Task",
    "make_task",
]

IGNORED = -100  # PyTorch's own mark for a position without a label


class Task(ABC):
    """The protocol that every task follows.

    Example:
        >>> make_task("classification").name
        'classification'
    """

    name: str
    scores: tuple[str, ...]
    has_errors = True  # whether an answer can be right or wrong
    performance_name = "accuracy"  # what `performance` is

    @abstractmethod
    def outputs(self, raw: Tensor) -> Tensor:
        """The network's raw output with the outputs last; refuses a shape that does not fit."""

    @abstractmethod
    def check_labels(self, labels: Tensor, base: Tensor) -> Tensor:
        """Labels in the shape and dtype that the other methods take."""

    @abstractmethod
    def predict(self, samples: Tensor) -> Tensor:
        """The prediction averaged over samples: probabilities, or the mean for regression."""

    @abstractmethod
    def log_likelihood(
        self, samples: Tensor, labels: Tensor, noise_var: Tensor | None = None
    ) -> Tensor:
        """Log-likelihood of each label under the averaged prediction."""

    @abstractmethod
    def label(self, base: Tensor) -> Tensor:
        """The base network's own answer."""

    def guesses(self, predicted: Tensor) -> Tensor:
        """The probability of every answer that has a name, from what `predict` gave."""
        return predicted

    def score(self, name: str, samples: Tensor, noise_var: Tensor | None = None) -> Tensor:
        """The score called `name`, high = unsure."""
        return score_functions.sample_score(name, samples)

    def base_uncertainty(self, base: Tensor) -> Tensor:
        """How unsure the base network itself is, for the reason given with a prediction."""
        return self.score("ent", base.to(torch.float64).unsqueeze(0))

    def correct(self, base: Tensor, labels: Tensor) -> Tensor:
        """1.0 where the base network's answer is right, NaN where there is no label."""
        return (self.label(base) == labels).to(torch.float64)

    def performance(self, base: Tensor, labels: Tensor) -> float:
        """Accuracy, or R² for regression: the higher the better."""
        return float(self.correct(base, labels).nanmean())

    def chance(self, base: Tensor, labels: Tensor) -> float:
        """The performance of an answer that ignores the input."""
        counts = torch.bincount(labels.reshape(-1)[labels.reshape(-1) >= 0])
        return int(counts.max()) / int(counts.sum())

    def check_score(self, name: str) -> str:
        """`name` if this task knows such a score."""
        if name not in (*self.scores, "bound"):
            raise InputError(
                f"score {name!r} is not defined for task {self.name!r}; choose from "
                f"{', '.join((*self.scores, 'bound'))}"
            )
        return name


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
                f"{_shape(raw)}: one logit for an input. Use task='binary' (a yes/no answer) or "
                f"task='regression' (a number)"
            )
        if raw.ndim != 2:
            raise ModelError(
                f"task 'classification' needs logits [N, o], but the network returns "
                f"{_shape(raw)}. Use task='dense' for a class at every position "
                f"([N, o, positions…]), or output=… to pick the logits"
            )
        return raw

    def check_labels(self, labels: Tensor, base: Tensor) -> Tensor:
        """Whole numbers in 0…o−1, [N]."""
        if labels.ndim == 2 and labels.shape == base.shape:
            raise InputError(
                f"labels have the shape {_shape(labels)} of the outputs: pass class numbers "
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
        log_p = samples.log_softmax(dim=-1)
        index = labels.clamp_min(0).expand(samples.shape[:-1]).unsqueeze(-1)
        picked = log_p.gather(-1, index).squeeze(-1)
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
                f"returns {_shape(raw)}. If the classes are last, pass "
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


class Multilabel(Task):
    """o yes/no answers: logits [N, o], labels [N, o] of 0 and 1.

    Example:
        >>> import torch
        >>> Multilabel().label(torch.tensor([[-1.0, 2.0]]))
        tensor([[0, 1]])
    """

    name = "multilabel"
    scores = ("ent", "msp")

    def outputs(self, raw: Tensor) -> Tensor:
        """[N, o]; [N] becomes [N, 1]."""
        if raw.ndim == 1:
            return raw.unsqueeze(-1)
        if raw.ndim != 2:
            raise ModelError(
                f"task {self.name!r} needs logits [N, o], but the network returns {_shape(raw)}"
            )
        return raw

    def check_labels(self, labels: Tensor, base: Tensor) -> Tensor:
        """0 and 1 in the shape of the outputs."""
        if labels.ndim == 1 and base.shape[-1] == 1:
            labels = labels.unsqueeze(-1)
        if labels.shape != base.shape:
            raise InputError(
                f"task {self.name!r} needs labels {_shape(base)}, got {_shape(labels)}"
            )
        if not bool(((labels == 0) | (labels == 1)).all()):
            raise InputError(f"task {self.name!r} needs labels of 0 and 1, got {_range(labels)}")
        return labels.to(torch.int64)

    def predict(self, samples: Tensor) -> Tensor:
        """Mean sigmoid."""
        return samples.sigmoid().mean(dim=0)

    def log_likelihood(
        self, samples: Tensor, labels: Tensor, noise_var: Tensor | None = None
    ) -> Tensor:
        """Σ over outputs of log mean_i sigmoid(±f̃_i)."""
        sign = 2 * labels - 1
        each = F.logsigmoid(samples * sign).logsumexp(dim=0) - math.log(samples.shape[0])
        return each.sum(dim=-1)

    def label(self, base: Tensor) -> Tensor:
        """1 where the logit is positive."""
        return (base > 0).to(torch.int64)

    def correct(self, base: Tensor, labels: Tensor) -> Tensor:
        """1.0 where every one of the answers is right."""
        return (self.label(base) == labels).all(dim=-1).to(torch.float64)

    def score(self, name: str, samples: Tensor, noise_var: Tensor | None = None) -> Tensor:
        """Bernoulli entropy, or the largest chance that one answer is wrong."""
        self.check_score(name)
        yes, no = self.predict(samples), self.predict(-samples)
        if name == "msp":
            return score_functions.bernoulli_msp(yes, no)
        return score_functions.bernoulli_entropy(yes, no)

    def performance(self, base: Tensor, labels: Tensor) -> float:
        """Share of single answers that are right."""
        return float((self.label(base) == labels).to(torch.float64).mean())

    def chance(self, base: Tensor, labels: Tensor) -> float:
        """Always the commoner answer, for each output."""
        yes = labels.to(torch.float64).mean(dim=0)
        return float(torch.maximum(yes, 1.0 - yes).mean())


class Binary(Multilabel):
    """One yes/no answer: a logit [N] or [N, 1], labels [N] of 0 and 1.

    Example:
        >>> import torch
        >>> Binary().outputs(torch.zeros(4)).shape
        torch.Size([4, 1])
    """

    name = "binary"

    def outputs(self, raw: Tensor) -> Tensor:
        """[N] or [N, 1] → [N, 1]."""
        wide = super().outputs(raw)
        if wide.shape[1] != 1:
            raise ModelError(
                f"task 'binary' needs one logit an input, but the network returns {_shape(raw)}. "
                f"Use task='classification' for two or more classes"
            )
        return wide

    def label(self, base: Tensor) -> Tensor:
        """1 where the logit is positive, [N]."""
        return super().label(base).squeeze(-1)

    def correct(self, base: Tensor, labels: Tensor) -> Tensor:
        """1.0 where the answer is right."""
        return (self.label(base) == labels.reshape(-1)).to(torch.float64)

    def performance(self, base: Tensor, labels: Tensor) -> float:
        """Share of answers that are right."""
        return float(self.correct(base, labels).mean())

    def guesses(self, predicted: Tensor) -> Tensor:
        """(no, yes), [N, 2]."""
        return torch.cat([1.0 - predicted, predicted], dim=-1)


class Regression(Task):
    """Numbers: outputs [N] or [N, o], labels alike; N(mean f̃, σ² + Var f̃).

    Example:
        >>> import torch
        >>> task = Regression()
        >>> task.score("ent", torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([0.5]))
        tensor([1.5000])
    """

    name = "regression"
    scores = ("ent",)
    has_errors = False
    performance_name = "R²"

    def outputs(self, raw: Tensor) -> Tensor:
        """[N] becomes [N, 1]; [N, o] as it is."""
        if raw.ndim == 1:
            return raw.unsqueeze(-1)
        if raw.ndim != 2:
            raise ModelError(
                f"task 'regression' needs outputs [N] or [N, o], but the network returns "
                f"{_shape(raw)}: pass output=lambda out: out.flatten(1)"
            )
        return raw

    def check_labels(self, labels: Tensor, base: Tensor) -> Tensor:
        """Finite numbers in the shape of the outputs."""
        if labels.ndim == 1 and base.shape[-1] == 1:
            labels = labels.unsqueeze(-1)
        if labels.shape != base.shape:
            raise InputError(f"task 'regression' needs labels {_shape(base)}, got {_shape(labels)}")
        labels = labels.to(torch.float64)
        if not bool(labels.isfinite().all()):
            raise InputError("regression targets contain NaN or Inf: leave those rows out")
        return labels

    def predict(self, samples: Tensor) -> Tensor:
        """The mean of the samples."""
        return samples.mean(dim=0)

    def variance(self, samples: Tensor, noise_var: Tensor | None) -> Tensor:
        """σ² + Var_i f̃_i for each output."""
        spread = samples.var(dim=0, correction=0)
        return spread if noise_var is None else spread + noise_var

    def log_likelihood(
        self, samples: Tensor, labels: Tensor, noise_var: Tensor | None = None
    ) -> Tensor:
        """Gaussian log density, summed over outputs."""
        variance = self.variance(samples, noise_var)
        residual = labels - self.predict(samples)
        return -0.5 * (torch.log(2 * math.pi * variance) + residual.square() / variance).sum(-1)

    def label(self, base: Tensor) -> Tensor:
        """The network's own output."""
        return base

    def score(self, name: str, samples: Tensor, noise_var: Tensor | None = None) -> Tensor:
        """The total variance, summed over outputs (the default "ent" means this here)."""
        self.check_score(name)
        return self.variance(samples, noise_var).sum(dim=-1)

    def base_uncertainty(self, base: Tensor) -> Tensor:
        """0: a single number says nothing about its own uncertainty."""
        return torch.zeros(base.shape[:-1], dtype=torch.float64)

    def correct(self, base: Tensor, labels: Tensor) -> Tensor:
        """Not defined: NaN."""
        return torch.full(base.shape[:-1], torch.nan, dtype=torch.float64)

    def performance(self, base: Tensor, labels: Tensor) -> float:
        """R², averaged over outputs."""
        residual = (labels - base.to(torch.float64)).square().sum(dim=0)
        total = (labels - labels.mean(dim=0)).square().sum(dim=0).clamp_min(1e-300)
        return float((1.0 - residual / total).mean())

    def chance(self, base: Tensor, labels: Tensor) -> float:
        """R² of the mean."""
        return 0.0


TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Classification, Dense, Binary, Multilabel, Regression)
}


def make_task(name: str) -> Task:
    """The task called `name`.

    Example:
        >>> make_task("segmentation")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: unknown task 'segmentation'; choose from classification, \
dense, binary, multilabel, regression
    """
    if name not in TASKS:
        raise InputError(f"unknown task {name!r}; choose from {', '.join(TASKS)}")
    return TASKS[name]()


def _class_numbers(labels: Tensor, base: Tensor, *, ignored: bool) -> Tensor:
    if labels.shape != base.shape[:-1]:
        raise InputError(f"labels must have the shape {_shape(base[..., 0])}, got {_shape(labels)}")
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise InputError("labels must be whole class numbers, got fractions")
    labels = labels.to(torch.int64)
    checked = labels[labels != IGNORED] if ignored else labels
    if ignored and checked.numel() == 0:
        raise InputError(f"no position has a label: all {labels.numel()} are {IGNORED}")
    n_classes = base.shape[-1]
    outside = (checked < 0) | (checked >= n_classes)
    if bool(outside.any()):
        hint = " (mark positions without a label by -100)" if ignored else ""
        raise InputError(
            f"labels must lie in 0…{n_classes - 1} because the network has {n_classes} outputs, "
            f"but {int(outside.sum())} of {checked.numel()} do not ({_range(checked)}){hint}"
        )
    return labels


def _shape(tensor: Tensor) -> str:
    return "[" + ", ".join(str(n) for n in tensor.shape) + "]"


def _range(tensor: Tensor) -> str:
    return f"from {tensor.min().item():g} to {tensor.max().item():g}"
