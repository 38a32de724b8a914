"""A progress bar with rate and time left, on stderr; silent where nobody watches."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, Task

__all__ = ["make_progress", "rate"]


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
