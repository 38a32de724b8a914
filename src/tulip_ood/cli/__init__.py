"""The command `tulip`: parse, call, show."""

import io
import sys

__all__ = ["main"]


def main() -> None:
    """The entry point; exits 0 (done), 1 (failed), 2 (wrong use) or 130 (interrupted).

    Example:
        >>> sys.argv = ["tulip", "--version"]
        >>> main()
        Traceback (most recent call last):
        ...
        SystemExit: 0
    """
    from tulip_ood.cli.app import app

    _never_fail_to_show()
    app()


def _never_fail_to_show() -> None:
    """A terminal that knows no λ shows a ?: what took hours is not lost for that."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
