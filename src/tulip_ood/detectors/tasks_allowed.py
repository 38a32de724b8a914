"""Which tasks a method is for."""

from tulip_ood.errors import InputError
from tulip_ood.numerics.tasks import Task

__all__ = ["need_classification", "refuse_dense"]


def need_classification(task: Task, method: str) -> None:
    """Refuse a method that is defined for one of o classes and nothing else.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> need_classification(make_task("regression"), "odin")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: odin is defined for task 'classification' (one of o classes \
for each input), not for 'regression'
    """
    if task.name != "classification":
        raise InputError(
            f"{method} is defined for task 'classification' (one of o classes for each input), "
            f"not for {task.name!r}"
        )


def refuse_dense(task: Task, method: str) -> None:
    """Refuse answers at every position, which are kept at some positions only while fitting.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> refuse_dense(make_task("binary"), "mcd")
    """
    if task.name == "dense":
        raise InputError(f"{method} is not written for task 'dense': use tulip, or a logit score")
