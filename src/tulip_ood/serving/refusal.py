"""A request that is not answered, with the right status and a reason in words."""

from collections.abc import Sequence
from typing import Any

from tulip_ood.errors import TulipError

__all__ = ["RefusalError"]


class RefusalError(TulipError):
    """Becomes a response with this status and `{"error": {"code": …, "reason": …}}`.

    Args:
        status: The HTTP status.
        code: A short stable name, for programs.
        reason: What came, what was expected, what to do; for people.
        headers: What else the response says, for instance `("retry-after", "1")`.

    Example:
        >>> RefusalError(413, "too-large", "the body has more than 10 bytes").to_json()
        {'error': {'code': 'too-large', 'reason': 'the body has more than 10 bytes'}}
    """

    def __init__(
        self, status: int, code: str, reason: str, *, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.headers = tuple(headers)

    def __reduce__(self) -> tuple[Any, ...]:
        """Whole in another process, too: a replica's refusal reaches the client."""
        return _refusal, (self.status, self.code, str(self), self.headers)

    def to_json(self) -> dict[str, Any]:
        """What the client is told."""
        return {"error": {"code": self.code, "reason": str(self)}}


def _refusal(
    status: int, code: str, reason: str, headers: Sequence[tuple[str, str]]
) -> RefusalError:
    return RefusalError(status, code, reason, headers=headers)
