"""Virtual-logit matching (Wang et al., CVPR 2022)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.learning import Learner, Moments, RowSample
from tulip_ood.detectors.mahalanobis import FeatureDetector, FeatureLearner
from tulip_ood.errors import InputError
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.numerics.blocks import row_blocks

__all__ = ["ViM", "ViMState"]

EXACT_ROWS = 65_536  # α is that of all inputs up to so many, and of a fair sample beyond
_VANISHED = 1e-6  # a residual below this share of the features is rounding


@dataclass(frozen=True)
class ViMState:
    """What ViM has learned, for every dimension of the principal space at once.

    Attributes:
        origin: −pinv(W) b, where all logits are 0 (as nearly as they can be), [d].
        eigenvectors: Of the second moments about it, as columns, largest first, [d, d].
        residuals: The mean norm of what lies outside the first 0, 1, …, d−1 of them, [d].
        top_logit: The mean largest logit.
        n: Inputs that it was learned from.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> state = ViMState(torch.zeros(2), eye, torch.tensor([5.0, 4.0]), 8.0, 100)
        >>> state.alpha(1), state.default_dim
        (2.0, 1)
    """

    origin: Tensor
    eigenvectors: Tensor
    residuals: Tensor
    top_logit: float
    n: int

    @property
    def rank(self) -> int:
        """Dimensions that the features span."""
        return int((self.residuals > _VANISHED * self.residuals[0]).sum())

    @property
    def default_dim(self) -> int:
        """The paper's rule by the number of features; at most half of what they span."""
        d = len(self.origin)
        by_width = 1000 if d >= 2048 else 512 if d >= 768 else d // 2
        return max(1, min(by_width, self.rank // 2))

    def alpha(self, dim: int) -> float:
        """α, which gives the residual the size of the largest logit."""
        d = len(self.origin)
        if not 1 <= dim < d:
            raise InputError(
                f"dim = {dim} does not fit: with {d} penultimate features the principal space "
                f"may have 1 to {d - 1} dimensions"
            )
        if dim >= self.rank:
            raise InputError(
                f"dim = {dim} leaves no residual: the features of these {self.n} inputs span only "
                f"{self.rank} of {d} dimensions. Use a smaller dim, or learn from more data "
                f"(train=…)"
            )
        return self.top_logit / float(self.residuals[dim])


class ViM(FeatureDetector):
    """α times the norm of the features outside their principal space, less the energy logsumexp(f).

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        dim: Dimensions of the principal space. By default the paper's rule for d features (1000
            from d = 2048 on, 512 from 768 on, else d/2), but at most half of the dimensions that
            the data spans.
        **common: As for every detector.

    Example:
        >>> import torch
        >>> from torch.nn import Linear, Sequential, Tanh
        >>> model = Sequential(Linear(4, 9), Tanh(), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = ViM(model, dim=4).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "vim"
    state_class: ClassVar[type] = ViMState
    # OpenOOD's list, and the rule above for networks that neither number fits.
    search = {"dim": (256, 1000, None)}  # noqa: RUF012 – never changed

    def __init__(
        self, model: nn.Module | Network, *, dim: int | None = None, **common: Any
    ) -> None:
        super().__init__(model, **common)
        if dim is not None and dim < 1:
            raise InputError(f"dim must be at least 1, got {dim}")
        self.dim = dim

    def _learner(self) -> Learner:
        return _ViMLearner(self.seed)

    def _used_dim(self, state: ViMState) -> int:
        return state.default_dim if self.dim is None else self.dim

    def _of_features(self, state: ViMState, features: Tensor, passes: Passes) -> Tensor:
        dim = self._used_dim(state)
        alpha = state.alpha(dim)
        residual = (features - state.origin) @ state.eigenvectors[:, dim:]
        energy = passes.base.to(torch.float64).logsumexp(dim=-1)
        virtual: Tensor = alpha * residual.norm(dim=1)
        return virtual - energy

    def _report_lines(self) -> list[str]:
        state: ViMState = self._state
        dim = self._used_dim(state)
        return [
            f"principal space of {dim} of {len(state.origin)} dimensions, learned from {state.n} "
            f"inputs that span {state.rank}; α = {state.alpha(dim):.4g}"
        ]


class _ViMLearner(FeatureLearner):
    """Second moments and logits in a stream; features are kept for the mean residual."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._moments = Moments(1)
        self._sample = RowSample(EXACT_ROWS, seed=seed)
        self._top_logits = 0.0
        self._head: tuple[Tensor, Tensor] | None = None

    def _add(self, features: Tensor, passes: Passes) -> None:
        if self._head is None:
            self._head = passes.head
        self._moments.add(features, torch.zeros(len(features), dtype=torch.int64))
        self._sample.add(passes.need_features())
        self._top_logits += float(passes.base.to(torch.float64).amax(dim=-1).sum())

    def _finish(self) -> ViMState:
        assert self._head is not None
        top_logit = self._top_logits / self.n
        if top_logit <= 0:
            raise InputError(
                f"the largest logit of these inputs is {top_logit:.3g} on average, and ViM's α is "
                f"its ratio to a norm: it needs a network whose largest logit is positive"
            )
        weight, bias = (part.cpu().to(torch.float64) for part in self._head)
        origin = -torch.linalg.pinv(weight) @ bias
        _, vectors = torch.linalg.eigh(self._moments.second_about(origin))
        vectors = vectors.flip(1).contiguous()
        return ViMState(origin, vectors, self._mean_residuals(origin, vectors), top_logit, self.n)

    def _mean_residuals(self, origin: Tensor, vectors: Tensor) -> Tensor:
        """For every dimension at once: squares are summed from the last direction to the first."""
        total, n = torch.zeros_like(origin), 0
        for part in self._sample.parts():
            for rows in row_blocks(len(part), 3 * part.shape[1]):
                squares = ((part[rows].to(torch.float64) - origin) @ vectors).square()
                total += squares.flip(1).cumsum(dim=1).sqrt().sum(dim=0)
                n += len(squares)
        return total.flip(0) / n
