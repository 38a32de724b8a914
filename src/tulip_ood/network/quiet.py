"""PyTorch says much while it exports a network; we say one line."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_export", "why_not_exported"]


def why_not_exported(error: BaseException) -> str:
    """Why a network could not be exported: the two usual reasons in words, or the first line.

    Example:
        >>> why_not_exported(RuntimeError("Could not guard on data-dependent expression …"))
        'its code goes one way or another by the values that it sees (if, for, .item())'
    """
    if "Constraints violated (rows)" in str(error):
        return "its code fixes the number of inputs (as len(x) does, and x.shape[0] does not)"
    if "data-dependent" in str(error):
        return "its code goes one way or another by the values that it sees (if, for, .item())"
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:200]


@contextmanager
def quiet_export(*more: str) -> Iterator[None]:
    """While PyTorch exports: no warnings of its own internals, no logs of what we say ourselves.

    Args:
        *more: Further loggers to silence.

    Example:
        >>> with quiet_export("onnxscript"):
        ...     logging.getLogger("onnxscript").error("not shown")
    """
    names = ("torch.export", "torch.fx", "torch._dynamo", *more)
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
