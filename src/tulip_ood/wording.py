"""How numbers are written for people, in one place."""

__all__ = ["percent"]


def percent(share: float, digits: int = 1) -> str:
    """A share in per cent.

    Example:
        >>> percent(0.0512), percent(0.5, 0)
        ('5.1 %', '50 %')
    """
    return f"{100 * share:.{digits}f} %"
