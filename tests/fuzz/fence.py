"""A stranger's file may be read, or be refused with an error of ours; nothing else may happen."""

import os
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

from tulip_ood.errors import TulipError

__all__ = ["fuzz", "held", "survives"]

# TULIP_FUZZ=2000 for the long run (make evidence-fuzz); the short one is the same every time.
LONG = int(os.environ.get("TULIP_FUZZ", "0"))
ROOM = 3 << 30  # bytes of address space that one file may ask for
PATIENCE = 60  # seconds after which a file that is still being read counts as endless


def fuzz(share: float = 1.0) -> settings:
    """How many files are tried; a share of them where one takes long."""
    return settings(
        max_examples=round(share * (LONG or 100)),
        derandomize=not LONG,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def held(field: int = 1) -> int:
    """Bytes that this process holds; with field 0 its address space."""
    return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()


@contextmanager
def _fenced() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)

    def endless(*_: Any) -> None:
        raise AssertionError(f"still reading after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, endless)
    signal.alarm(PATIENCE)
    resource.setrlimit(resource.RLIMIT_AS, (held(0) + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def survives(read: Callable[[], object]) -> str | None:
    """Read a stranger's file: the text of our error, or None if there was nothing to refuse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _fenced():
                read()
        except TulipError as error:
            assert str(error)
            return str(error)
    return None
