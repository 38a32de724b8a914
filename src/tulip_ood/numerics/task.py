"""What every task says of a network's outputs: the protocol.

A task turns raw outputs into one layout with the outputs in the last dimension ([N, o], or
[N, positions…, o] for dense prediction), checks labels against it, and says what the prediction,
its likelihood and its score are, given posterior samples [M, N, …, o].
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.numerics import scores as score_functions

__all__ = ["Task", "labels_like", "range_of", "shape_of"]


class Task(ABC):
    """The protocol that every task follows.

    Example:
        >>> from tulip_ood.numerics.classes import Classification
        >>> Classification().performance_name
        'accuracy'
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


def labels_like(base: Tensor, labels: Tensor, task: str) -> Tensor:
    """Labels in the shape of the outputs; [N] stands for [N, 1].

    Example:
        >>> labels_like(torch.zeros(2, 1), torch.tensor([1, 0]), "multilabel").shape
        torch.Size([2, 1])
    """
    if labels.ndim == 1 and base.shape[-1] == 1:
        labels = labels.unsqueeze(-1)
    if labels.shape != base.shape:
        raise InputError(f"task {task!r} needs labels {shape_of(base)}, got {shape_of(labels)}")
    return labels


def shape_of(tensor: Tensor) -> str:
    """A shape as messages show it.

    Example:
        >>> shape_of(torch.zeros(2, 3))
        '[2, 3]'
    """
    return "[" + ", ".join(str(n) for n in tensor.shape) + "]"


def range_of(tensor: Tensor) -> str:
    """The smallest and largest value as messages show them.

    Example:
        >>> range_of(torch.tensor([0.0, 2.5]))
        'from 0 to 2.5'
    """
    return f"from {tensor.min().item():g} to {tensor.max().item():g}"
