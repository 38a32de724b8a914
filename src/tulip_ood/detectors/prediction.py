"""What a detector says of an input: the answer, how sure, whether to trust it, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from tulip_ood.numerics.places import places

__all__ = ["Prediction", "Reason", "Reasons", "Reference"]

_WORDS = {
    "ambiguous": "the network itself wavers",
    "unstable": "small changes of the weights would change the answer",
    "unfamiliar": "the input is unlike the validation data",
    "invalid": "the input, or what the network makes of it, is not finite",
}


@dataclass(frozen=True)
class Reference:
    """Quantiles (0, 1, … 100 %) of a quantity on ID validation data.

    Example:
        >>> import torch
        >>> Reference.of(torch.arange(101.0)).percentile(torch.tensor([-1.0, 50.0, 200.0]))
        tensor([  0.,  50., 100.], dtype=torch.float64)
    """

    quantiles: Tensor

    @staticmethod
    def of(values: Tensor) -> "Reference":
        """From the values themselves."""
        flat = values.to(torch.float64).flatten()
        flat = flat[flat.isfinite()]
        if len(flat) > 100_000:
            flat = flat[:: len(flat) // 100_000]
        steps = torch.linspace(0, 1, 101, dtype=torch.float64)
        if not len(flat):
            return Reference(torch.zeros(101, dtype=torch.float64))
        return Reference(torch.quantile(flat, steps))

    def percentile(self, values: Tensor) -> Tensor:
        """Which share (in %) of the validation data lies below each value, ties at the middle."""
        values = values.to(torch.float64)
        left = places(self.quantiles, values)
        right = places(self.quantiles, values, right=True)
        return ((left + right - 1).to(torch.float64) / 2).clamp(0.0, 100.0)

    def excess(self, values: Tensor) -> Tensor:
        """How far above the median, in units of the step from the median to the 95th percentile.

        Tells apart what lies beyond all validation data, where percentiles are 100 for everything.
        """
        median, high = self.quantiles[50], self.quantiles[95]
        step = (high - median).clamp_min(1e-9 * (1.0 + high.abs()))
        return (values.to(torch.float64) - median) / step


@dataclass(frozen=True)
class Reason:
    """Why an input was refused, or how near it came to that.

    Attributes:
        kind: "" if accepted; else "ambiguous" (the base entropy is high), "unstable" (the
            envelope is stretched far), "unfamiliar" (the bound is high, or the features, their
            neighbours or inner stages are out of range; for methods that look at features alone,
            the score is high), or "invalid" (no score could be computed).
        percentiles: Where the input stands among validation data, in %, for each quantity.
        top_labels: The two most probable labels.
        top_probs: Their probabilities.

    Example:
        >>> print(Reason("ambiguous", {"entropy": 99.0}, (), ()))
        ambiguous: the network itself wavers (entropy above 99 % of validation data)
        >>> print(Reason("", {"entropy": 20.0}, (3, 8), (0.9, 0.1)))
        accepted (class 3: 90 %, class 8: 10 %)
    """

    kind: str
    percentiles: dict[str, float]
    top_labels: tuple[int, ...]
    top_probs: tuple[float, ...]

    @property
    def words(self) -> str:
        """The reason alone, without numbers; "" if accepted."""
        return f"{self.kind}: {_WORDS[self.kind]}" if self.kind else ""

    def __str__(self) -> str:
        if self.kind == "invalid":
            return self.words
        guesses = ", ".join(
            f"class {label}: {100 * prob:.0f} %"
            for label, prob in zip(self.top_labels, self.top_probs, strict=True)
        )
        if not self.kind:
            return f"accepted ({guesses})" if guesses else "accepted"
        where = ""
        if mine := self._mine():
            name = max(mine, key=lambda quantity: self.percentiles[quantity])
            share = int(self.percentiles[name])  # rounded down: it lies above no more than that
            where = f"{name} above {'all' if share == 100 else f'{share} % of'} validation data"
        return f"{self.words} ({'; '.join(filter(None, (where, guesses)))})"

    def _mine(self) -> list[str]:
        return [name for name in _QUANTITIES[self.kind] if name in self.percentiles]


# Which measured quantities speak for which reason.
_QUANTITIES = {
    "ambiguous": ("entropy",),
    "unstable": ("stretch",),
    "unfamiliar": ("bound", "features", "neighbours", "stages", "score"),
}


class Reasons(Sequence[Reason]):
    """One `Reason` for every input, made when it is looked at.

    Args:
        quantities: Name → (where each input stands in %, how far it stands out).
        accepted: Which inputs are accepted.
        valid: Which have a score at all.
        probs: Probabilities, or None where outputs are none.

    Example:
        >>> import torch
        >>> reasons = Reasons(
        ...     {"entropy": (torch.tensor([99.0, 10.0]), torch.tensor([2.0, -1.0]))},
        ...     accepted=torch.tensor([False, True]),
        ...     valid=torch.tensor([True, True]),
        ...     probs=torch.tensor([[0.6, 0.4], [1.0, 0.0]]),
        ... )
        >>> reasons[0].kind, reasons[1].kind
        ('ambiguous', '')
    """

    def __init__(
        self,
        quantities: dict[str, tuple[Tensor, Tensor]],
        *,
        accepted: Tensor,
        valid: Tensor,
        probs: Tensor | None,
    ) -> None:
        self._quantities = quantities
        self._accepted = accepted
        self._valid = valid
        self._probs = probs

    def __len__(self) -> int:
        return len(self._accepted)

    @overload
    def __getitem__(self, index: int) -> Reason: ...
    @overload
    def __getitem__(self, index: slice) -> list[Reason]: ...
    def __getitem__(self, index: int | slice) -> Reason | list[Reason]:
        if isinstance(index, slice):
            return [self._one(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._one(index % len(self))

    def __iter__(self) -> Iterator[Reason]:
        return (self._one(i) for i in range(len(self)))

    def _one(self, i: int) -> Reason:
        labels: tuple[int, ...] = ()
        probs: tuple[float, ...] = ()
        if self._probs is not None and bool(self._valid[i]):
            top = self._probs[i].topk(min(2, self._probs.shape[-1]))
            labels, probs = tuple(top.indices.tolist()), tuple(top.values.tolist())
        seen = {name: float(percent[i]) for name, (percent, _) in self._quantities.items()}
        if not bool(self._valid[i]):
            return Reason("invalid", {}, (), ())
        if bool(self._accepted[i]):
            return Reason("", seen, labels, probs)
        # Where several are beyond everything seen, the one that stands out furthest.
        height = {
            kind: max(
                ((seen[q], float(self._quantities[q][1][i])) for q in members if q in seen),
                default=(-1.0, 0.0),
            )
            for kind, members in _QUANTITIES.items()
        }
        return Reason(max(height, key=height.__getitem__), seen, labels, probs)


@dataclass(frozen=True)
class Prediction:
    """What `predict` returns, one entry an input (a position, for dense outputs).

    Attributes:
        label: The base network's own answer.
        probs: Calibrated probabilities (for regression, the mean).
        score: High = unsure; +inf marks an input that cannot be scored.
        p_value: Conformal: the share of ID inputs that look at least as odd.
        accepted: Whether the score is within the threshold.
        reason: Why not, for each input (empty for dense outputs).
        bound: S, the estimated bound; None for methods without one.
        stretch: γ, how far the envelope was stretched; None for methods without one.
        variance: The predictive variance (regression), else None.
        base_probs: The network's own probabilities (its own mean, for regression).

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> detector.predict(x).p_value.shape
        torch.Size([200])
    """

    label: Tensor
    probs: Tensor
    score: Tensor
    p_value: Tensor
    accepted: Tensor
    reason: Sequence[Reason]
    bound: Tensor | None = None
    stretch: Tensor | None = None
    variance: Tensor | None = None
    base_probs: Tensor | None = None

    def __len__(self) -> int:
        return len(self.score)
