"""In which dtype passes are made."""

from collections.abc import Iterable

import torch
from torch import Tensor

from tulip_ood.errors import InputError

__all__ = ["PRECISIONS", "SMALL", "pass_dtype"]

PRECISIONS = ("float32", "half", "auto")
# Up to so many parameters a CPU makes its passes in float64: it costs nothing there, and rounding
# that differs between batches, stretched by a large J, does not show in any score.
SMALL = 100_000


def pass_dtype(
    precision: str, device: torch.device, parameters: Iterable[Tensor], *, may_widen: bool = True
) -> torch.dtype:
    """The dtype of passes; "auto" is float32 until it has been settled.

    Args:
        precision: "float32" (float64 networks stay float64), "half" on an accelerator, or "auto".
        device: Where passes run.
        parameters: Of the network.
        may_widen: Whether a small network may make float64 passes on a CPU.

    Example:
        >>> pass_dtype("float32", torch.device("cpu"), [torch.zeros(200_000)])
        torch.float32
    """
    if precision not in PRECISIONS:
        raise InputError(f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}")
    if precision == "half":
        if device.type == "cpu":
            raise InputError(
                "precision='half' is for accelerators: on a CPU it is slower, and on some "
                "machines it kills the process. Use precision='float32'"
            )
        return torch.float16
    every = list(parameters)
    small = may_widen and device.type == "cpu" and sum(p.numel() for p in every) <= SMALL
    wide = any(p.dtype == torch.float64 for p in every)
    return torch.float64 if wide or small else torch.float32
