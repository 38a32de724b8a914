"""The command `tulip`: parse, call, show."""

__all__ = ["main"]


def main() -> None:
    """The entry point; exits 0 (done), 1 (failed), 2 (wrong use) or 130 (interrupted).

    Example:
        >>> import sys
        >>> sys.argv = ["tulip", "--version"]
        >>> main()
        Traceback (most recent call last):
        ...
        SystemExit: 0
    """
    from tulip_ood.cli.app import app

    app()
