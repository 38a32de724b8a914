"""AdaSCALE: scaling with a percentile of its own for every input (Regmi, 2025).

Inputs are perturbed where the answer hardly depends on them. How much the largest features
change tells how likely an input is OOD; likely ID inputs are scaled more (arXiv 2503.08023).
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.tasks_allowed import need_classification
from tulip_ood.errors import InputError, ModelError
from tulip_ood.network import inputs as structures
from tulip_ood.network.input_changes import move_inputs
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.measures import Measure
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes

__all__ = ["AdaScale", "AdaScaleState", "PerturbedFeatures", "adaptive_ratio"]

_BOUNDS = (60.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0, 99.0)
# Inputs in one perturbing pass, always: few, so that a single input does not cost many.
_BLOCK_CPU, _BLOCK_GPU = 4, 16


@dataclass(frozen=True)
class PerturbedFeatures(Measure):
    """Penultimate features of x + ε · sign(∇ₓ max z), at the values with the smallest gradients.

    Attributes:
        share: Of the values of an input, how many are changed: o.
        epsilon: By how much.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> model = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))
        >>> network = Network(model, make_task("classification"))
        >>> PerturbedFeatures(0.5, 0.5)(network, torch.randn(2, 4)).shape
        torch.Size([2, 9])
    """

    share: float
    epsilon: float

    @property
    def key(self) -> str:
        """All that it depends on."""
        return f"adascale:o={self.share:.17g}:epsilon={self.epsilon:.17g}"

    @property
    def passes(self) -> int:
        """A pass, its gradient, and a pass of the changed inputs."""
        return 4

    def __call__(self, network: Network, inputs: Inputs) -> Tensor:
        """[N, d]."""
        network.probe(inputs)
        # Which gradients are the smallest, and their signs, hang on the last bits; these hang on
        # the size of the batch. So every pass here has the same size, filled up where need be.
        n = structures.count_rows(inputs)
        size = _BLOCK_CPU if network.device.type == "cpu" else _BLOCK_GPU
        rows = torch.arange(-(-n // size) * size).clamp_max(n - 1)
        parts = [self._block(network, structures.take(inputs, i)) for i in rows.split(size)]
        return torch.cat(parts)[:n]

    def _block(self, network: Network, inputs: Inputs) -> Tensor:
        changed = move_inputs(network, inputs, lambda z: z.amax(dim=-1), self._step)
        features = network.run(changed).features
        if features is None:
            raise ModelError(
                "AdaSCALE needs penultimate features, and no last linear layer was found: name it "
                "with head=…"
            )
        return features

    def _step(self, x: Tensor, gradient: Tensor) -> Tensor:
        flat = gradient.flatten(1)
        count = int(flat.shape[1] * self.share)
        smallest = flat.abs().argsort(dim=1, stable=True)[:, :count]
        step = torch.zeros_like(flat).scatter(1, smallest, flat.sign().gather(1, smallest))
        return x + self.epsilon * step.reshape(x.shape)


@dataclass(frozen=True)
class AdaScaleState:
    """What was learned: the sorted statistics Q′ of ID inputs.

    Attributes:
        statistics: [N], float64, increasing.

    Example:
        >>> AdaScaleState(torch.tensor([0.0, 1.0])).rank(torch.tensor([0.5, 9.0]))
        tensor([0.7500, 1.0000])
    """

    statistics: Tensor

    def rank(self, values: Tensor) -> Tensor:
        """The share of ID statistics up to each value; in a straight line between two of them.

        The plain share jumps at each ID statistic: for an input that was learned from, rounding
        would decide on which side of its own jump it falls.
        """
        own, n = self.statistics, len(self.statistics)
        after = torch.searchsorted(own, values, right=True).clamp(1, n)
        low, high = own[after - 1], own[after.clamp_max(n - 1)]
        gap = high - low
        between = torch.where(gap > 0, (values - low) / gap.clamp_min(1e-300), 0.0)
        return (after + between.clamp(0.0, 1.0) * (after < n)) / n


def adaptive_ratio(features: Tensor, percentiles: Tensor) -> Tensor:
    """r = Σ relu(h) / Σ of its k largest, k = d − round(d·p/100), p for each row: [N, d] → [N, 1].

    Example:
        >>> adaptive_ratio(torch.tensor([[1.0, 1.0], [1.0, 3.0]]), torch.tensor([0.0, 50.0]))
        tensor([[1.0000],
                [1.3333]])
    """
    d = features.shape[1]
    # To a millionth first: a value that is a half but for its last bits is a half.
    dropped = (d * percentiles / 100.0).round(decimals=6).round().to(torch.int64)
    kept = (d - dropped).clamp(1, d)
    largest = features.relu().sort(dim=1, descending=True).values
    sums = largest.cumsum(dim=1)
    top, total = sums.gather(1, (kept - 1).unsqueeze(1)), sums[:, -1:]
    return torch.where(top > 0, total / top, 1.0)


class AdaScale(Detector):
    """What AdaSCALE-A and AdaSCALE-L share: everything but what is scaled.

    Q′ = Σ of relu(h′) over the k₁ % largest h + λ Σ |h − h′| over the k₂ % largest, h′ the
    perturbed features; percentile p = low + (1 − F(Q′))(high − low), F the distribution of Q′ on
    ID data.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`), and whose
            last linear layer gives them.
        percentiles: The lowest and the highest percentile, for the likeliest OOD and ID input.
        k1: k₁, in percent.
        k2: k₂, in percent.
        lam: λ.
        share: o, the share of an input's values that are perturbed.
        epsilon: By how much, in the unit that the model is given.
        **common: As for every detector.

    Example:
        >>> AdaScale.search["percentiles"][:2]
        ((60.0, 65.0), (60.0, 70.0))
    """

    state_class: ClassVar[type] = AdaScaleState
    search: Mapping[str, tuple[Any, ...]] = {
        "percentiles": tuple((low, high) for low in _BOUNDS for high in _BOUNDS if low < high)
    }

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        percentiles: Sequence[float] = (75.0, 85.0),
        k1: float = 5.0,
        k2: float = 1.0,
        lam: float = 10.0,
        share: float = 0.05,
        epsilon: float = 0.5,
        **common: Any,
    ) -> None:
        super().__init__(model, **common)
        need_classification(self.task, self.name)
        self.percentiles = tuple(map(float, percentiles))
        if len(self.percentiles) != 2 or not 0 <= self.percentiles[0] <= self.percentiles[1] < 100:
            raise InputError(
                f"percentiles must be two numbers, 0 ≤ low ≤ high < 100; got {list(percentiles)}"
            )
        for name, value in (("k1", k1), ("k2", k2), ("share", 100 * share)):
            if not 0 < value <= 100:
                raise InputError(f"{name} must be above 0 and at most all, got {value:g} %")
        self.k1, self.k2, self.lam = float(k1), float(k2), float(lam)
        self.share, self.epsilon = float(share), float(epsilon)

    def _measures(self) -> tuple[Measure, ...]:
        return (self._measure(),)

    def _measure(self) -> PerturbedFeatures:
        return PerturbedFeatures(self.share, self.epsilon)

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, for a detector file."""
        config, tensors = super().configuration()
        names = ("k1", "k2", "lam", "share", "epsilon")
        return {**config, **{name: getattr(self, name) for name in names}}, tensors

    def _statistics(self, passes: Passes) -> Tensor:
        """Q′ of every input, [N]."""
        features = passes.need_features().to(torch.float64)
        moved = passes.extras[self._measure().key].to(torch.float64)
        d = features.shape[1]
        order = features.argsort(dim=1, descending=True, stable=True)
        one, two = (order[:, : max(1, int(d * k / 100))] for k in (self.k1, self.k2))
        kept = moved.relu().gather(1, one).sum(dim=1)
        shift = (features - moved).abs().gather(1, two).sum(dim=1)
        return kept + self.lam * shift

    def _learn(self, passes: Passes) -> AdaScaleState:
        return AdaScaleState(self._statistics(passes).sort().values)

    def _score(self, state: AdaScaleState, passes: Passes) -> Tensor:
        low, high = self.percentiles
        rank = state.rank(self._statistics(passes))
        features = passes.need_features().to(torch.float64)
        ratio = adaptive_ratio(features, low + (1.0 - rank) * (high - low))
        return -self._logits(passes, features, ratio).logsumexp(dim=-1)

    @abstractmethod
    def _logits(self, passes: Passes, features: Tensor, ratio: Tensor) -> Tensor:
        """Scaled logits [N, o], from features [N, d] and the ratio [N, 1]."""
