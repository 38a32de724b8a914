"""The network that a detector file belongs to: named by the user, or by the file if it may be."""

from typing import Any

from tulip_ood.cli.failing import UsageError

__all__ = ["spec_for"]


def spec_for(
    model: str | None, header: dict[str, Any], path: str, *, option: str = "--model"
) -> str:
    """The network's spec: from the command line, or from the header where that runs no code.

    Args:
        model: What the user has named, or None.
        header: The header of the detector file.
        path: Where that is.
        option: What the user can name it with.

    Example:
        >>> spec_for(None, {"model_spec": "efficientnet-lite:0"}, "d.safetensors")
        'efficientnet-lite:0'
    """
    from tulip_ood.models.spec import REOPENABLE, may_reopen

    if model is not None:
        return model
    stored: str | None = header["model_spec"]
    if stored is not None and may_reopen(stored):
        return stored
    if stored is None:
        raise UsageError(f"{path} was fitted from Python and names no network: give {option} SPEC")
    raise UsageError(
        f"{path} was fitted on {stored!r}; a detector file may only open "
        f"{' '.join(REOPENABLE)} by itself: give {option} {stored}"
    )
