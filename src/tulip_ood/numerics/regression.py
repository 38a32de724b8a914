"""Numbers, with a Gaussian likelihood."""

import math

import torch
from torch import Tensor

from tulip_ood.errors import InputError, ModelError
from tulip_ood.numerics.task import Task, labels_like, shape_of

__all__ = ["Regression"]


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
                f"{shape_of(raw)}: pass output=lambda out: out.flatten(1)"
            )
        return raw

    def check_labels(self, labels: Tensor, base: Tensor) -> Tensor:
        """Finite numbers in the shape of the outputs."""
        labels = labels_like(base, labels, self.name).to(torch.float64)
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
