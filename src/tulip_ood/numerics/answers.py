"""Yes or no, to one question or to several."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tulip_ood.errors import InputError, ModelError
from tulip_ood.numerics import scores as score_functions
from tulip_ood.numerics.task import Task, labels_like, range_of, shape_of

__all__ = ["Binary", "Multilabel"]


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
                f"task {self.name!r} needs logits [N, o], but the network returns {shape_of(raw)}"
            )
        return raw

    def check_labels(self, labels: Tensor, base: Tensor) -> Tensor:
        """0 and 1 in the shape of the outputs."""
        labels = labels_like(base, labels, self.name)
        if not bool(((labels == 0) | (labels == 1)).all()):
            raise InputError(f"task {self.name!r} needs labels of 0 and 1, got {range_of(labels)}")
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
                f"task 'binary' needs one logit an input, but the network returns {shape_of(raw)}. "
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
