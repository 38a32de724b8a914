"""Other libraries, as far as they call our adapters: stand-ins that need not be installed."""

import sys
from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the other libraries can be imported, whether it is installed or not."""
    for name in ("openood", "pytorch_ood", "sklearn"):
        monkeypatch.setitem(sys.modules, name, None)
        for module in [m for m in sys.modules if m.startswith(name + ".")]:
            monkeypatch.delitem(sys.modules, module)


def install(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """Make a module importable, with all packages above it."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:i]))
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(sys.modules[name]).update(content)


@pytest.fixture
def openood_base(monkeypatch: pytest.MonkeyPatch) -> type:
    """OpenOOD's base class, and the loop in it: batches are mappings, results go to the CPU."""

    class BasePostprocessor:
        def __init__(self, config: Any) -> None:
            self.config = config

        def setup(self, net: Any, id_loader_dict: Any, ood_loader_dict: Any) -> None:
            raise AssertionError("ours goes first")

        def inference(self, net: Any, data_loader: Any, progress: bool = True) -> Any:
            made = [
                (*self.postprocess(net, batch["data"]), batch["label"])  # type: ignore[attr-defined]
                for batch in data_loader
            ]
            pred, conf, label = (
                torch.cat(column).cpu().numpy() for column in zip(*made, strict=True)
            )
            return pred.astype(int), conf, label.astype(int)

    install(
        monkeypatch,
        "openood.postprocessors.base_postprocessor",
        BasePostprocessor=BasePostprocessor,
    )
    return BasePostprocessor


@pytest.fixture
def pytorch_ood_api(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """pytorch-ood's abstract base class and its exceptions."""

    class Detector(ABC):
        requires_fit = False
        hyperparameter_space: Any = {}  # noqa: RUF012 – theirs

        def to(self, device: Any) -> Any:
            raise AssertionError("ours goes first")

        def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
            return self.predict(*args, **kwargs)

        @abstractmethod
        def predict(self, x: Tensor) -> Tensor: ...

    class RequiresFittingException(Exception):  # noqa: N818 – theirs
        def __init__(self, msg: str = "You have to call fit() before predict()") -> None:
            super().__init__(msg)

    class ModelNotSetException(ValueError):  # noqa: N818 – theirs
        def __init__(self, msg: str = "model must not be None") -> None:
            super().__init__(msg)

    install(
        monkeypatch,
        "pytorch_ood.api",
        Detector=Detector,
        RequiresFittingException=RequiresFittingException,
        ModelNotSetException=ModelNotSetException,
    )
    return sys.modules["pytorch_ood.api"]
