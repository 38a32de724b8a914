"""Many machines: a lake of images scored on a Ray cluster, every row exactly once."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tulip_ood.cluster.scoring import score

__all__ = ["score"]


def __getattr__(name: str) -> Any:
    if name != "score":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tulip_ood.cluster.scoring import score

    return score
