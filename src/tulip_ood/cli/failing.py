"""How a command ends when it does not end well: one line on stderr, and an exit code."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from tulip_ood.errors import TulipError, failure_in_network
from tulip_ood.wording import visible

__all__ = ["FAILED", "INTERRUPTED", "WRONG_USE", "Stopped", "UsageError", "as_usage", "one_line"]

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130
_EXTRAS = {"sklearn": ("scikit-learn", "demo")}


class UsageError(TulipError):
    """The command was called in a way that cannot work; exit code 2.

    Example:
        >>> str(UsageError("give --mean and --std"))
        'give --mean and --std'
    """


class Stopped(BaseException):
    """The user pressed Ctrl-C; the text says what was kept and how to go on. Exit code 130.

    Example:
        >>> str(Stopped("nothing was written"))
        'nothing was written'
    """


@contextmanager
def as_usage() -> Iterator[None]:
    """What goes wrong inside is the caller's to mend, for instance a file that is not there.

    Example:
        >>> from tulip_ood.errors import DataError
        >>> with as_usage():
        ...     raise DataError("there is no file or folder x")
        Traceback (most recent call last):
        ...
        tulip_ood.cli.failing.UsageError: there is no file or folder x
    """
    try:
        yield
    except UsageError:
        raise
    except TulipError as error:
        raise UsageError(str(error)) from error


@contextmanager
def one_line(*, debug: bool) -> Iterator[None]:
    """Turn what a command raises into one line on stderr and an exit code.

    Args:
        debug: Let the exception through, for its traceback.

    Example:
        >>> with one_line(debug=True):
        ...     raise UsageError("give --mean")
        Traceback (most recent call last):
        ...
        tulip_ood.cli.failing.UsageError: give --mean
    """
    try:
        yield
    except Stopped as stopped:
        raise _exit(str(stopped), INTERRUPTED) from stopped
    except KeyboardInterrupt as stopped:
        raise _exit("stopped; nothing was written", INTERRUPTED) from stopped
    except UsageError as error:
        if debug:
            raise
        raise _exit(str(error), WRONG_USE) from error
    except TulipError as error:
        if debug:
            raise
        raise _exit(str(error), FAILED) from error
    except Exception as error:
        if debug or (text := _in_words(error)) is None:
            raise  # typer's own ways to end; or a mistake of ours, to be seen with its traceback
        raise _exit(text, FAILED) from error


def _in_words(error: Exception) -> str | None:
    """What is said of an error that is not of our making; None where nothing is known of it."""
    if failed := failure_in_network(error):
        return f"{failed}. Mend it there; tulip --debug … shows the whole traceback"
    if isinstance(error, ModuleNotFoundError):
        package, extra = _EXTRAS.get((error.name or "").partition(".")[0], (None, None))
        return package and f"this needs {package}: pip install 'tulip-ood[{extra}]'"
    if isinstance(error, OSError) and error.errno != errno.EPIPE:
        return str(error)  # a full disk, a folder that may not be written to
    return None


def _exit(text: str, code: int) -> typer.Exit:
    typer.echo(f"tulip: {visible(' '.join(text.split()))}", err=True)
    return typer.Exit(code)
