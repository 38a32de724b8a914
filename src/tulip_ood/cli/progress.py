"""A progress bar with rate and time left, on stderr; where nobody watches, silent or in lines."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, Task

__all__ = ["LogLines", "make_progress", "rate"]


def rate(task: "Task") -> str:
    """How fast a task goes.

    Example:
        >>> from types import SimpleNamespace
        >>> rate(SimpleNamespace(speed=1234.5, finished_speed=None))
        '1,234/s'
    """
    speed = task.finished_speed or task.speed
    if not speed:
        return ""
    return f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s"


class LogLines:
    """How far a long task is, a line a minute, where stderr is no terminal and shows no bar.

    Args:
        seconds: Between two lines.
        clock: Seconds since whenever.

    Example:
        >>> LogLines()("scoring", 1, 2)  # nothing before a minute has passed
    """

    def __init__(
        self, *, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._clock = seconds, clock
        self._watched = sys.stderr.isatty()
        self._next = clock() + seconds

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say it, if it is time to."""
        now = self._clock()
        if not self._watched and now >= self._next:
            self._next = now + self._seconds
            typer.echo(f"{what}: {done:,} of {total:,}", err=True)


def make_progress() -> "Progress":
    """A rich progress bar; use it as a context manager.

    Example:
        >>> with make_progress() as bar:
        ...     task = bar.add_task("scoring", total=2)
        ...     bar.advance(task, 2)
        >>> bar.finished
        True
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: "Task") -> Text:
            return Text(rate(task), style="progress.data.speed")

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        speed_estimate_period=300.0,  # a batch of a large network takes a while on a CPU
    )
