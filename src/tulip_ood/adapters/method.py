"""What the adapters share: a method of ours by name, fitted; scores that stay finite; files."""

import inspect
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.registry import class_of, make
from tulip_ood.detectors.saving import load
from tulip_ood.detectors.tulip_fitting import TulipFitting
from tulip_ood.errors import InputError
from tulip_ood.network import inputs as structures

__all__ = [
    "HIGHEST",
    "Pairs",
    "check_settings",
    "data_and_label",
    "finite",
    "fitted",
    "hyperparameters",
    "packed",
    "unpacked",
]

# What stands for +inf ("no score": NaN inputs, logits that are not finite) where a library refuses
# infinities. It stays finite, and the highest, when somebody makes float32 of it.
HIGHEST = torch.finfo(torch.float32).max


def finite(score: Tensor) -> Tensor:
    """Scores in the same order, the infinite ones as ±3.4e38.

    Example:
        >>> finite(torch.tensor([0.5, torch.inf], dtype=torch.float64)).isfinite()
        tensor([True, True])
    """
    return score.clamp(-HIGHEST, HIGHEST)


def fitted(
    model: nn.Module,
    data: Iterable[Any],
    *,
    method: str = "tulip",
    recipe: str = "self",
    settings: dict[str, Any] | None = None,
    train: Iterable[Any] | None = None,
    tune: Any = None,
) -> Detector:
    """A method of ours, by name, after `fit`; the recipe is TULiP's alone.

    Example:
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> fitted(torch.nn.Linear(4, 3), [(x, y)], method="ebo").name
        'ebo'
    """
    check_settings(method, settings or {})
    detector = make(method, model, **(settings or {}))
    if isinstance(detector, TulipFitting):
        return detector.fit(data, recipe=recipe, train=train, tune=tune)
    return detector.fit(data, train=train, tune=tune)


def check_settings(method: str, settings: Iterable[str]) -> None:
    """Refuse arguments that the constructor of a method does not have.

    Example:
        >>> check_settings("knn", ["k", "seed"])
        >>> check_settings("tulip", ["samples"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: tulip has no argument 'samples'; it takes antithetic, ...
    """
    known: set[str] = set()
    for kind in class_of(method).__mro__:
        if "__init__" in vars(kind) and kind is not object:
            found = inspect.signature(vars(kind)["__init__"]).parameters.values()
            known |= {one.name for one in found if one.kind is one.KEYWORD_ONLY}
    wrong = [repr(name) for name in settings if name not in known]
    if wrong:
        raise InputError(
            f"{method} has no argument {', '.join(wrong)}; it takes {', '.join(sorted(known))}"
        )


def hyperparameters(detector: Detector) -> dict[str, Any]:
    """What a fitted detector was given or has chosen, by the names of its arguments.

    Example:
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> knn = fitted(torch.nn.Linear(4, 3), [(x, y)], method="knn", settings={"k": 9})
        >>> hyperparameters(knn)
        {'k': 9}
    """
    if isinstance(detector, TulipFitting):
        state = detector.fitted
        return {"epsilon": state.setting.epsilon, "lam": state.plain.lam, "j": state.j_score}
    return detector.parameters


class Pairs:
    """A loader as (inputs, labels), whatever its batches are; may be read again if it may.

    Args:
        loader: Batches that are mappings with `data` and `label` (OpenOOD's), or pairs.
        known_only: Leave out rows whose label is negative (pytorch-ood's sign of OOD).

    Example:
        >>> batch = {"data": torch.zeros(2, 3), "label": torch.tensor([0, -1])}
        >>> [(tuple(x.shape), y.tolist()) for x, y in Pairs([batch], known_only=True)]
        [((1, 3), [0])]
    """

    def __init__(self, loader: Iterable[Any], *, known_only: bool = False) -> None:
        self.loader, self.known_only = loader, known_only

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        """One pair after the other."""
        for batch in self.loader:
            x, y = data_and_label(batch)
            if self.known_only:
                known = y >= 0
                x, y = structures.take(x, known), y[known]
            if len(y):
                yield x, y


def data_and_label(batch: Any) -> tuple[Any, Tensor]:
    """The two parts of a batch, of OpenOOD's kind or a pair.

    Example:
        >>> data_and_label({"data": "inputs", "label": [1], "soft_label": 0})
        ('inputs', tensor([1]))
    """
    if isinstance(batch, Mapping) and not {"data", "label"} <= set(batch):
        keys = ", ".join(map(str, batch)) or "none"
        raise InputError(f"a batch must have the keys 'data' and 'label'; it has {keys}")
    if not isinstance(batch, Mapping) and not (isinstance(batch, tuple | list) and len(batch) == 2):
        raise InputError(
            f"a batch must be a pair (inputs, labels), or a mapping with 'data' and 'label'; "
            f"got {type(batch).__name__}"
        )
    x, y = (batch["data"], batch["label"]) if isinstance(batch, Mapping) else batch
    return x, torch.as_tensor(y)


def packed(detector: Detector) -> bytes:
    """A fitted detector as the bytes of its file; the network is not in them.

    Example:
        >>> model = torch.nn.Linear(4, 3)
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = fitted(model, [(x, y)], method="msp")
        >>> torch.equal(unpacked(packed(detector), model, {}).score(x), detector.score(x))
        True
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "detector.safetensors"
        detector.save(path)
        return path.read_bytes()


def unpacked(content: bytes, model: nn.Module, settings: dict[str, Any]) -> Detector:
    """The detector again, for the same network; `settings` has what a file does not hold.

    Example:
        >>> unpacked(b"", torch.nn.Linear(2, 2), {})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tulip_ood.errors.FileFormatError: ...
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "detector.safetensors"
        path.write_bytes(content)
        not_stored = ("output", "device", "batch_size")
        return load(path, model, **{name: settings.get(name) for name in not_stored})
