"""How far weight noise moves an input's outputs, beside how far training has moved them."""

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from tulip_ood.detectors.envelope_fit import FittedEnvelope, fit_envelope
from tulip_ood.detectors.measured import Measured, measure
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.network.passes import Passes
from tulip_ood.network.running import Needs

__all__ = ["Ratio", "log_ratio"]

_NO_DRIFT = 1e-9  # an input that the drift does not move at all


def log_ratio(measured: Measured, trace_xx: float) -> Tensor:
    """log((Θ + Θ_XX) / D) of every input.

    Example:
        >>> import torch
        >>> log_ratio(Measured(torch.tensor([1.0]), torch.tensor([2.0])), 1.0)
        tensor([0.])
    """
    return ((measured.trace + trace_xx) / measured.drift.clamp_min(_NO_DRIFT)).log()


class Ratio(Tulip):
    """log((Θ + Θ_XX) / D): the two sides of TULiP's bound as a ratio, without λ and J.

    A part of `Auto`; everything else is as in `Tulip`, and probabilities are the network's own.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Linear(4, 3), torch.randn(200, 4)
        >>> y = (model(x) + torch.randn(200, 3) / 2).argmax(1)
        >>> detector = Ratio(model).fit([(x, y)], recipe="balanced")
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "ratio"

    def _needs_to_score(self) -> Needs:
        return self._needs()

    def _learn(self, passes: Passes) -> FittedEnvelope:
        any_j = replace(self._setting, j=1.0)  # it has no part in the ratio
        return fit_envelope(passes, self.task, any_j, sqrt_outputs=self._uses_sqrt, search=False)

    def _score(self, state: FittedEnvelope, passes: Passes) -> Tensor:
        measured = measure(passes, sqrt_outputs=self._uses_sqrt)
        return log_ratio(measured, state.plain.trace_xx)
