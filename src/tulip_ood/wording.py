"""How numbers are written and read, for people and for programs, in one place."""

import json
import math
from collections.abc import Callable
from typing import Any

__all__ = ["counted", "from_json", "json_values", "percent", "visible"]


def counted(number: int, thing: str) -> str:
    """A number of things; one of them is not many.

    Example:
        >>> counted(1, "input"), counted(1200, "input"), counted(2, "pass")
        ('1 input', '1,200 inputs', '2 passes')
    """
    if number == 1:
        return f"{number} {thing}"
    return f"{number:,} {thing}{'es' if thing.endswith('s') else 's'}"


def percent(share: float, digits: int = 1) -> str:
    """A share in per cent.

    Example:
        >>> percent(0.0512), percent(0.5, 0)
        ('5.1 %', '50 %')
    """
    return f"{100 * share:.{digits}f} %"


def visible(text: str) -> str:
    r"""A stranger's text on one line of a terminal: what is no letter is written as Python does.

    A file may be called anything: with an escape sequence in its name it could write over what
    stands on the terminal, with a line feed a line of its own.

    Example:
        >>> print(visible("a\n\x1b[31mb.png"), visible("für alle.png"))
        a\n\x1b[31mb.png für alle.png
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def json_values(value: Any) -> Any:
    """Values as JSON knows them: NaN and infinity become null, tuples lists, keys text.

    Example:
        >>> json_values({"aurc": float("nan"), 3: (1.5, "x")})
        {'aurc': None, '3': [1.5, 'x']}
    """
    if isinstance(value, dict):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def from_json(text: str | bytes, *, pairs: Callable[[list[tuple[str, Any]]], Any] = dict) -> Any:
    """What a stranger's JSON says; whatever is wrong with it is a ValueError.

    Args:
        text: Nested more deeply than Python can follow, it is no JSON either.
        pairs: What an object's names and values become.

    Example:
        >>> from_json("[" * 100_000)
        Traceback (most recent call last):
        ...
        ValueError: it is nested too deeply
    """
    try:
        return json.loads(text, object_pairs_hook=None if pairs is dict else pairs)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
