"""How numbers are written, for people and for programs, in one place."""

import math
from typing import Any

__all__ = ["json_values", "percent"]


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
