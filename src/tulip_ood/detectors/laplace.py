"""Last-layer Laplace (Daxberger et al., NeurIPS 2021; Kristiadi, Hein & Hennig, ICML 2020).

The posterior of the last layer is a Gaussian about its weights, its precision the Kronecker-
factored curvature (Ritter, Botev & Barber, ICLR 2018) plus that of the prior, N(0, 1/δ). Weights
and biases are two blocks, as in laplace-torch: N·G ⊗ A and N·G, with A = E[h hᵀ] of the features
and G = E[diag p − p pᵀ] of the probabilities. The logits are then Gaussian too, and the probit
approximation (MacKay, 1992) gives the prediction.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.learning import Learner
from tulip_ood.detectors.tasks_allowed import need_classification
from tulip_ood.errors import InputError, ModelError
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import scores
from tulip_ood.numerics.blocks import row_blocks

if TYPE_CHECKING:
    from tulip_ood.network.features import Head

__all__ = ["LastLayerLaplace", "LastLayerPosterior"]

_SMALLEST, _LARGEST = 1e-8, 1e8  # of the prior's precision
_HALVINGS = 80


@dataclass(frozen=True)
class LastLayerPosterior:
    """The Gaussian posterior of the last layer, in the eigenbases of its two factors.

    Attributes:
        directions: The eigenvectors of A, as columns, [d, d].
        classes: The squares of the eigenvectors of G, as columns, [o, o].
        variances: Of a weight in each pair of eigendirections, [o, d].
        bias_variances: Of a bias in each eigendirection of G, [o]; 0 where there are no biases.
        prior_precision: δ.
        determined: The number of weights that the data determines rather than the prior.
        n: The number of inputs that it was learned from.

    Example:
        >>> one = torch.ones(1, 1)
        >>> LastLayerPosterior(one, one, one, one[0], 1.0, 0.5, 10).logit_variances(one)
        tensor([[2.]])
    """

    directions: Tensor
    classes: Tensor
    variances: Tensor
    bias_variances: Tensor
    prior_precision: float
    determined: float
    n: int

    def logit_variances(self, features: Tensor) -> Tensor:
        """The variance of every logit of features [N, d], [N, o]."""
        squares = (features @ self.directions).square()
        return (squares @ self.variances.T + self.bias_variances) @ self.classes.T


class LastLayerLaplace(Detector):
    """The entropy of the prediction averaged over a Gaussian posterior of the last layer.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        prior_precision: δ, of the weights' Gaussian prior; by default the one of the largest
            marginal likelihood.
        **common: As for every detector.

    Example:
        >>> import torch, tulip_ood
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> from tulip_ood.detectors.laplace import LastLayerLaplace
        >>> model = Sequential(Linear(4, 9), ReLU(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = LastLayerLaplace(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "laplace"
    state_class: ClassVar[type] = LastLayerPosterior
    learns_from_data: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        prior_precision: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(model, **common)
        need_classification(self.task, self.name)
        if prior_precision is not None and not 0 < prior_precision < math.inf:
            raise InputError(f"prior_precision must be above 0, got {prior_precision}")
        self.prior_precision = prior_precision

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, for a detector file."""
        config, tensors = super().configuration()
        return {**config, "prior_precision": self.prior_precision}, tensors

    def _learner(self) -> Learner:
        return _Curvature(self.prior_precision)

    def _score(self, state: LastLayerPosterior, passes: Passes) -> Tensor:
        return scores.entropy(self._probs(state, passes))

    def _probs(self, state: LastLayerPosterior, passes: Passes) -> Tensor:
        """The averaged prediction by the probit approximation, float64 [N, o]."""
        features = passes.need_features()
        variances = torch.empty(passes.base.shape, dtype=torch.float64)
        for part in row_blocks(len(features), features.shape[1]):
            variances[part] = state.logit_variances(features[part].to(torch.float64))
        shrunk = passes.base.to(torch.float64) / (1.0 + math.pi / 8.0 * variances).sqrt()
        return shrunk.softmax(dim=-1)

    def _report_lines(self) -> list[str]:
        learned: LastLayerPosterior = self._state
        how = "largest marginal likelihood" if self.prior_precision is None else "given"
        parameters = learned.variances.numel()
        if bool((learned.bias_variances > 0).any()):
            parameters += learned.bias_variances.numel()
        return [
            f"prior precision {learned.prior_precision:.4g} ({how}); {learned.determined:.4g} of "
            f"the last layer's {parameters} parameters are determined by {learned.n} inputs"
        ]


class _Curvature(Learner):
    """Sums of h hᵀ and diag p − p pᵀ in float64."""

    def __init__(self, prior_precision: float | None) -> None:
        self._prior_precision = prior_precision
        self._head: Head | None = None
        self._n = 0

    def add(self, passes: Passes) -> None:
        features = passes.need_features()
        o, d = passes.base.shape[-1], features.shape[1]
        if self._head is None:
            self._head = passes.head
            self._inputs = torch.zeros(d, d, dtype=torch.float64)
            self._outputs = torch.zeros(o, o, dtype=torch.float64)
        for part in row_blocks(len(features), max(o, d)):
            h = features[part].to(torch.float64)
            p = passes.base[part].to(torch.float64).softmax(dim=-1)
            # A row that is not finite would spoil every sum.
            good = (h.isfinite().all(dim=1) & p.isfinite().all(dim=1)).unsqueeze(1)
            h, p = h.where(good, torch.zeros(())), p.where(good, torch.zeros(()))
            self._inputs += h.T @ h
            self._outputs += _uncertain(p)
            self._n += int(good.sum())

    def finish(self) -> LastLayerPosterior:
        if self._head is None or self._n == 0:
            raise InputError("there is nothing to learn from: the loader gave no usable inputs")
        size, directions = torch.linalg.eigh(self._inputs / self._n)
        counts, classes = torch.linalg.eigh(self._outputs)
        size, counts = size.clamp_min(0.0), counts.clamp_min(0.0)
        weight, bias = (part.to(torch.float64) for part in self._head)
        curvature = torch.outer(counts, size)
        blocks = [curvature.flatten()]
        with_bias = bool((bias != 0).any())  # a layer without biases comes with zeros
        if with_bias:
            blocks.append(counts)
        every = torch.cat(blocks)
        norm = float(weight.square().sum() + bias.square().sum())
        delta = self._prior_precision
        if delta is None:
            delta = _most_likely_precision(every, norm)
        return LastLayerPosterior(
            directions=directions.contiguous(),  # as a file needs them
            classes=classes.square().contiguous(),
            variances=1.0 / (curvature + delta),
            bias_variances=1.0 / (counts + delta) if with_bias else torch.zeros_like(counts),
            prior_precision=delta,
            determined=float((every / (every + delta)).sum()),
            n=self._n,
        )


def _uncertain(p: Tensor) -> Tensor:
    """Σ diag p − p pᵀ over rows [N, o], its diagonal without the rounding of p − p²."""
    total = -(p.T @ p)
    rest = scores.msp(p)  # 1 − p of the largest, summed over the others
    others = 1.0 - p
    others.scatter_(1, p.argmax(dim=1, keepdim=True), rest.unsqueeze(1))
    return total.fill_diagonal_(0.0) + (p * others).sum(dim=0).diag()


def _most_likely_precision(curvature: Tensor, norm: float) -> float:
    """δ of the largest marginal likelihood, ½(P log δ − δ‖θ‖² − Σ log(λ + δ)) up to a constant.

    Its derivative is 0 where the number of determined weights, Σ λ/(λ + δ), equals δ‖θ‖² (MacKay,
    1992). The first falls in δ and the second rises: there is one such point, found by halving.
    """
    if norm == 0:
        raise ModelError(
            "the last layer's weights are all 0: their prior has no most likely precision. Pass "
            "prior_precision=…"
        )

    def surplus(log_delta: float) -> float:
        delta = math.exp(log_delta)
        return float((curvature / (curvature + delta)).sum()) - delta * norm

    return math.exp(_falls_to_0(surplus, math.log(_SMALLEST), math.log(_LARGEST)))


def _falls_to_0(f: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function is 0, or the end of [low, high] that is nearest."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) > 0 else (low, middle)
    return (low + high) / 2
