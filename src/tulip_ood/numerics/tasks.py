"""What a network's outputs mean, by name: classes, yes/no answers, numbers, dense prediction."""

from tulip_ood.errors import InputError
from tulip_ood.numerics.answers import Binary, Multilabel
from tulip_ood.numerics.classes import Classification, Dense
from tulip_ood.numerics.regression import Regression
from tulip_ood.numerics.task import Task

__all__ = [
    "TASKS",
    "Binary",
    "Classification",
    "Dense",
    "Multilabel",
    "Regression",
    "Task",
    "make_task",
]

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Classification, Dense, Binary, Multilabel, Regression)
}


def make_task(name: str) -> Task:
    """The task called `name`.

    Example:
        >>> make_task("segmentation")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: unknown task 'segmentation'; choose from classification, \
dense, binary, multilabel, regression
    """
    if name not in TASKS:
        raise InputError(f"unknown task {name!r}; choose from {', '.join(TASKS)}")
    return TASKS[name]()
