"""How numbers are written, for people and for programs, in one place."""

import math
from typing import Any

__all__ = ["counted", "json_values", "percent"]


def counted(number: int, thing: str) -> str:
    """A number of things; one of them is not many.

    Example:
        >>> counted(1, "input"), counted(1200, "input")
        ('1 input', '1,200 inputs')
    """
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def percent(share: float, digits: int = 1) -> str:
    """A share in per cent.

    Example:
        >>> percent(0.0512), percent(0.5, 0)
        ('5.1 %', '50 %')
    """
    return f"{100 * share:.{digits}f} %"


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
