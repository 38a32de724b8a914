"""Every public name has a docstring with an example that runs (pytest runs them as doctests)."""

import importlib
import inspect
import pkgutil

import tulip_ood


def public_names() -> list[tuple[str, object]]:
    """(where, what) for all that a module's `__all__` offers and the module defines itself."""
    found = []
    for info in pkgutil.walk_packages(tulip_ood.__path__, "tulip_ood."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if (inspect.isclass(value) or inspect.isfunction(value)) and (
                value.__module__ == info.name
            ):
                found.append((f"{info.name}.{name}", value))
    return found


def test_every_public_name_has_an_example() -> None:
    names = public_names()
    assert len(names) > 150
    without = [where for where, value in names if ">>>" not in (value.__doc__ or "")]
    assert without == []


def test_every_module_says_what_it_holds() -> None:
    for info in pkgutil.walk_packages(tulip_ood.__path__, "tulip_ood."):
        if not info.name.endswith("__main__"):
            assert importlib.import_module(info.name).__doc__, info.name
