"""Θ and D: what TULiP's bound needs of the passes (Alg. 1, lines 6 and 7)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.network.passes import Passes
from tulip_ood.numerics import envelope
from tulip_ood.numerics.blocks import cached_blocks

__all__ = ["Measured", "measure"]


@dataclass(frozen=True)
class Measured:
    """Θ and D of every input (and position): all that the bound needs from the passes.

    Example:
        >>> import torch
        >>> Measured(torch.ones(2), torch.ones(2)).bound(1.0, 0.5)
        tensor([1.5000, 1.5000])
    """

    trace: Tensor
    drift: Tensor

    def take(self, index: Tensor | slice) -> "Measured":
        """Of some of the inputs."""
        return Measured(self.trace[index], self.drift[index])

    def bound(self, trace_xx: float, lam: float) -> Tensor:
        """S/J² = Θ + Θ_XX − λD."""
        return envelope.bound(self.trace, self.drift, trace_xx=trace_xx, lam=lam)

    def stretch(self, trace_xx: float, lam: float) -> Tensor:
        """γ at J = 1; γ is linear in J."""
        return envelope.stretch(self.bound(trace_xx, lam), self.trace)


def measure(passes: Passes, *, sqrt_outputs: bool) -> Measured:
    """Θ(z) and D(z) of Alg. 1, lines 6 and 7, in bounded memory; once for each record.

    Example:
        >>> import torch
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> base = torch.zeros(1, 2)
        >>> p = Passes(base, torch.ones(3, 1, 2), base + 2, None, None, PassSettings(0.01))
        >>> measure(p, sqrt_outputs=False).trace
        tensor([2.], dtype=torch.float64)
    """
    return passes.once(("measured", sqrt_outputs), lambda: _measured(passes, sqrt_outputs))


def _measured(passes: Passes, sqrt_outputs: bool) -> Measured:
    traces, drifts = [], []
    for rows in cached_blocks(len(passes), passes.noisy[:, :1].numel(), passes.base.device):
        base, drifted = passes.base[rows], None if passes.drift is None else passes.drift[rows]
        traces.append(envelope.trace(base, passes.noisy[:, rows]))
        drifts.append(envelope.drift(base, drifted, sqrt_outputs=sqrt_outputs))
    return Measured(torch.cat(traces), torch.cat(drifts))
