"""The losses of Eq. 3: the gradient ℓ' by the outputs, and the constant L of assumption A2."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tulip_ood.errors import InputError

__all__ = ["CROSS_ENTROPY", "LOGISTIC", "MSE", "Loss"]


@dataclass(frozen=True)
class Loss:
    """ℓ(f; y) through what training needs of it.

    Attributes:
        name: What it is called.
        lipschitz: The smallest L of A2: ‖ℓ'(a; y) − ℓ'(b; y)‖ ≤ L ‖a − b‖ for all outputs a, b.
        gradient: ℓ'(outputs [..., N, o], targets [N, o]) → [..., N, o].

    `MSE` is ½‖f − y‖² (L = 1), `LOGISTIC` is for one output with targets in [0, 1] (L = ¼),
    `CROSS_ENTROPY` for o ≥ 2 outputs with rows of probabilities as targets (L = ½).

    Example:
        >>> import torch
        >>> LOGISTIC.gradient(torch.tensor([[0.0]]), torch.tensor([[1.0]]))
        tensor([[-0.5000]])
        >>> [loss.lipschitz for loss in (MSE, LOGISTIC, CROSS_ENTROPY)]
        [1.0, 0.25, 0.5]
    """

    name: str
    lipschitz: float
    gradient: Callable[[Tensor, Tensor], Tensor] = field(repr=False)

    def check(self, targets: Tensor) -> Tensor:
        """The targets in float64, if they are such that this loss is defined.

        Example:
            >>> import torch
            >>> CROSS_ENTROPY.check(torch.tensor([[1.0, 1.0]]))
            Traceback (most recent call last):
            ...
            tulip_ood.errors.InputError: cross_entropy needs targets [N, o], o ≥ 2, rows that sum to 1
        """  # noqa: E501
        targets = targets.to(torch.float64)
        if targets.ndim != 2 or targets.numel() == 0 or not bool(targets.isfinite().all()):
            raise InputError(
                f"{self.name} needs finite targets [N, o], got shape {tuple(targets.shape)}"
            )
        between = bool(((targets >= 0) & (targets <= 1)).all())
        if self.name == "logistic" and not (between and targets.shape[1] == 1):
            raise InputError("logistic needs targets [N, 1] between 0 and 1")
        if self.name == "cross_entropy":
            whole = bool(((targets.sum(dim=1) - 1).abs() < 1e-6).all())
            if not (between and whole and targets.shape[1] > 1):
                raise InputError("cross_entropy needs targets [N, o], o ≥ 2, rows that sum to 1")
        return targets


MSE = Loss("mse", 1.0, lambda outputs, targets: outputs - targets)
LOGISTIC = Loss("logistic", 0.25, lambda outputs, targets: outputs.sigmoid() - targets)
# The Hessian diag(p) − ppᵀ has its largest eigenvalue, ½, at p = (½, ½, 0, …).
CROSS_ENTROPY = Loss("cross_entropy", 0.5, lambda outputs, targets: outputs.softmax(-1) - targets)
