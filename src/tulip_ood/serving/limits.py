"""How much one request, and all of them together, may ask for."""

from dataclasses import dataclass, fields

from tulip_ood.errors import InputError
from tulip_ood.serving.refusal import RefusalError

__all__ = ["Holding", "Limits", "Memory", "overloaded"]


@dataclass(frozen=True)
class Limits:
    """What is refused, and how inputs are put together.

    Attributes:
        body: Bytes of one request's body.
        pixels: Pixels of one image, as its header says: decompression bombs stop here.
        images: Images in one request.
        batch: Images in one call of the detector.
        wait: Seconds that the first image of a batch waits for others.
        queue: Images that wait to be scored.
        held: Bytes of bodies and images under way, over all requests.
        seconds: Time for one request, from its first byte to its answer.

    Example:
        >>> Limits(seconds=5.0).batch
        32
        >>> Limits(images=0)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: the limit 'images' must be positive, got 0
    """

    body: int = 32 << 20
    pixels: int = 64_000_000
    images: int = 64
    batch: int = 32
    wait: float = 0.004
    queue: int = 512
    held: int = 512 << 20
    seconds: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value > 0 or (field.name == "wait" and value == 0)):
                raise InputError(f"the limit {field.name!r} must be positive, got {value}")
        for part, whole in (("images", "queue"), ("body", "held")):
            if getattr(self, part) > getattr(self, whole):
                raise InputError(
                    f"the limit {whole!r} must be at least {part!r}, or a request that is allowed "
                    f"never fits: got {getattr(self, whole)} and {getattr(self, part)}"
                )


class Memory:
    """Bytes that requests under way hold together.

    Args:
        limit: How many there may be.

    Example:
        >>> memory = Memory(10)
        >>> with memory.holding() as mine:
        ...     mine.add(8)
        ...     memory.held
        8
        >>> memory.held
        0
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def holding(self) -> "Holding":
        """What one request holds; it is given back at the end of a `with` block."""
        return Holding(self)


class Holding:
    """What one request holds of a `Memory`. For one thread: that of the event loop.

    Example:
        >>> with Memory(10).holding() as mine:
        ...     mine.add(11)
        Traceback (most recent call last):
        ...
        tulip_ood.serving.refusal.RefusalError: too many images are under way: try again in a moment
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._mine = 0

    def __enter__(self) -> "Holding":
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.held -= self._mine
        self._mine = 0

    def add(self, size: int) -> None:
        """Hold so many bytes more, or refuse."""
        if self._memory.held + size > self._memory.limit:
            raise overloaded()
        self._memory.held += size
        self._mine += size


def overloaded() -> RefusalError:
    """More has come than can be worked off.

    Example:
        >>> overloaded().status
        503
    """
    return RefusalError(
        503,
        "overloaded",
        "too many images are under way: try again in a moment",
        headers=[("retry-after", "1")],
    )
