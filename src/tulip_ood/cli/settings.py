"""From options to the arguments of a detector, its `fit` and its threshold."""

import inspect
from typing import TYPE_CHECKING, Any

from tulip_ood.cli.failing import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_settings", "fit_arguments", "method_and_settings", "threshold_arguments"]

_OPTION_NAMES = {"n_samples": "samples", "batch_size": "batch-size"}
_WHERE = ("batch_size", "device")


def method_and_settings(word: str | None) -> tuple[str | None, dict[str, Any]]:
    """A method, and what stands in brackets behind it: written as for `tulip bench`.

    Example:
        >>> method_and_settings("auto[strength=2,mirror=false]")
        ('auto', {'strength': 2, 'mirror': False})
    """
    from tulip_ood.benchmark.entries import Entry

    if word is None:
        return None, {}
    entry = Entry.parse(word)
    for name in entry.fitting:
        raise UsageError(f"--method {word}: {name} has an option of its own, --{name}")
    return entry.method, dict(entry.settings)


def check_settings(
    method: str, settings: dict[str, Any], own: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Those settings that were given; refuses what the method's constructor does not know.

    Args:
        method: Its name.
        settings: From options; None where one was not given.
        own: From the brackets behind the method.

    Example:
        >>> check_settings("tulip", {"epsilon": 0.01, "seed": None}, {"delta": 4})
        {'epsilon': 0.01, 'delta': 4}
        >>> check_settings("msp", {"epsilon": 0.01})
        Traceback (most recent call last):
        ...
        tulip_ood.cli.failing.UsageError: the method msp has no --epsilon
    """
    from tulip_ood.adapters.method import check_settings as check_arguments
    from tulip_ood.detectors.registry import class_of

    given = {name: value for name, value in settings.items() if value is not None}
    known: set[str] = set()
    for part in class_of(method).__mro__:
        known.update(_parameters(part.__init__))  # type: ignore[misc]
    for name in given:
        if name not in known:
            raise UsageError(f"the method {method} has no --{_OPTION_NAMES.get(name, name)}")
    check_arguments(method, own or {})
    for name in own or {}:
        if name in settings or name in _WHERE:
            option = _OPTION_NAMES.get(name, name)
            raise UsageError(f"--method {method}[…]: {name} has an option of its own, --{option}")
    return given | (own or {})


def fit_arguments(method: str, *, recipe: str | None, tune: Any) -> dict[str, Any]:
    """The arguments of `fit` beside the data.

    Example:
        >>> fit_arguments("tulip", recipe="paper", tune=None)
        {'recipe': 'paper-1'}
    """
    from tulip_ood.detectors.recipes import recipe_named
    from tulip_ood.detectors.registry import class_of

    kind = class_of(method)
    known = _parameters(kind.fit)
    arguments: dict[str, Any] = {}
    if recipe is not None:
        arguments["recipe"] = recipe_named(recipe).name
    if tune is not None:
        arguments["tune"] = tune
    shaped = "+" in method or getattr(kind, "family", None)
    chooses = bool(kind.search or shaped) or "recipe" in known or "&" in method
    for name in arguments:
        if name not in known or not chooses:
            raise UsageError(f"the method {method} has nothing to choose: leave out --{name}")
    return arguments


def threshold_arguments(
    false_alarm: float | None, max_error: float | None, confidence: float | None
) -> dict[str, float]:
    """The arguments of `set_threshold`; none if the user has not asked for anything.

    Example:
        >>> threshold_arguments(None, 0.02, 0.9)
        {'max_error': 0.02, 'confidence': 0.9}
    """
    if false_alarm is not None and max_error is not None:
        raise UsageError("give either --false-alarm or --max-error: a detector has one threshold")
    if confidence is not None and max_error is None:
        raise UsageError("--confidence belongs to --max-error")
    asked = {"false_alarm": false_alarm, "max_error": max_error, "confidence": confidence}
    for name, value in asked.items():
        if value is not None and not 0.0 < value < 1.0:
            raise UsageError(f"--{name.replace('_', '-')} must lie between 0 and 1, got {value}")
    return {name: value for name, value in asked.items() if value is not None}


def _parameters(function: "Callable[..., Any]") -> set[str]:
    return set(inspect.signature(function).parameters)
