"""What a service asks of whatever scores: a detector in this process, or replicas elsewhere."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tulip_ood.serving.counting import Metrics
from tulip_ood.serving.images import Upload
from tulip_ood.serving.limits import Holding, Limits

if TYPE_CHECKING:
    from tulip_ood.serving.judging import Judged
    from tulip_ood.serving.refusal import RefusalError

__all__ = ["Backend"]


class Backend(Protocol):
    """Scores images, knows its threshold, and can be told another one.

    Attributes:
        limits: How much may be asked for.
        metrics: What is counted.

    Example:
        >>> from tulip_ood.serving.scoring import Scoring
        >>> all(hasattr(Scoring, name) for name in ("answers", "describe", "set_threshold"))
        True
    """

    limits: Limits
    metrics: Metrics

    @property
    def version(self) -> str:
        """What the detector is called in answers."""

    @property
    def threshold(self) -> dict[str, Any] | None:
        """What is accepted now, with its promise, ready for JSON; None if nothing is set."""

    async def answers(
        self, uploads: Sequence[Upload], holding: Holding
    ) -> "list[Judged | RefusalError]":
        """One entry an upload: what is said of it, or why nothing can be said."""

    async def describe(self) -> dict[str, Any]:
        """Everything but what changes while a server runs; ready for JSON."""

    async def set_threshold(self, asked: dict[str, float]) -> None:
        """Promise something else from the next image on, or refuse."""

    def close(self) -> None:
        """Work off what waits, then end."""
