"""A pytorch-ood detector: any detector of ours in that library's benchmarks and metrics.

pytorch-ood is not needed to import this.
"""

from collections.abc import Iterable
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from tulip_ood.adapters.guest import Guest, as_theirs
from tulip_ood.adapters.method import Pairs, finite, fitted, hyperparameters, packed, unpacked
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.registry import make
from tulip_ood.errors import InputError, NotFittedError, TulipError

__all__ = ["NeedsInputsError", "TulipDetector"]

_API = "pytorch_ood.api"


class NeedsInputsError(TulipError, NotImplementedError):
    """Features or logits were given to a method that runs the network itself.

    Example:
        >>> issubclass(NeedsInputsError, NotImplementedError)
        True
    """


class TulipDetector(Guest):
    """A detector of ours by name, where pytorch-ood expects a `Detector`.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        method: Any name of `tulip_ood.detectors.available()`, or a composition ("tulip+scale").
        recipe: TULiP's.
        **settings: Arguments of the detector, for instance `n_samples` or `seed`.

    Example:
        >>> import torch
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = TulipDetector(torch.nn.Linear(4, 3), method="ebo").fit([(x, y)])
        >>> detector(x).shape
        torch.Size([200])
    """

    hosts = ((_API, "Detector"),)
    requires_fit = True
    info = None  # theirs names a paper for each class; here it is the method that has one

    def __init__(
        self,
        model: nn.Module | None,
        method: str = "tulip",
        *,
        recipe: str = "self",
        **settings: Any,
    ) -> None:
        self.model, self.method, self.recipe, self.settings = model, method, recipe, settings
        self._detector: Detector | None = None
        self._space: dict[str, list[Any]] | None = None

    def fit(
        self, data_loader: Iterable[Any], *, train: Iterable[Any] | None = None, tune: Any = None
    ) -> Self:
        """Fit on labelled ID data that training has not seen; rows with a negative label go.

        Args:
            data_loader: (inputs, labels) batches. Other detectors there take training data here;
                ours set their threshold on this, so give validation data.
            train: Training data, for methods that learn from it.
            tune: A loader of OOD validation inputs to choose parameters against, or "pseudo".
        """
        self._detector = fitted(
            self._model(),
            Pairs(data_loader, known_only=True),
            method=self.method,
            recipe=self.recipe,
            settings=self.settings,
            train=None if train is None else Pairs(train, known_only=True),
            tune=tune,
        )
        return self

    def predict(self, x: Tensor) -> Tensor:
        """Scores, float64, high = OOD, on the device of x; finite also where there is no score.

        Args:
            x: Inputs as the model takes them.
        """
        self._model()
        score = finite(self.detector.score(x))
        return score.to(x.device) if isinstance(x, Tensor) else score

    def __call__(self, x: Tensor) -> Tensor:
        """The same as `predict`."""
        return self.predict(x)

    def fit_features(self, x: Tensor, y: Tensor) -> NoReturn:
        """Not possible: raises `NeedsInputsError`, a NotImplementedError."""
        self._refuse("fit(data_loader)")

    def predict_features(self, x: Tensor) -> NoReturn:
        """Not possible: raises `NeedsInputsError`, a NotImplementedError."""
        self._refuse("predict(x)")

    def _refuse(self, instead: str) -> NoReturn:
        raise NeedsInputsError(
            f"{self.method} runs the network itself and cannot work on features or logits that "
            f"were taken from it: use {instead}"
        )

    # --------------------------------------------------------------------- devices

    @property
    def device(self) -> torch.device | None:
        """Where the passes run."""
        if self._detector is not None:
            return self._detector.network.device
        first = None if self.model is None else next(self.model.parameters(), None)
        return None if first is None else first.device

    def to(self, device: str | torch.device) -> Self:
        """Move the model, and the passes with it.

        Args:
            device: Where to.
        """
        if self.model is not None:
            self.model.to(device)
        if self._detector is not None:
            self._detector.engine.move(torch.device(device))
        return self

    # ------------------------------------------------------------------ parameters

    @property
    def hyperparameter_space(self) -> dict[str, list[Any]]:
        """What pytorch-ood's `GridSearch` tries; it may set another one."""
        if self._space is None:
            made = make(self.method, self._model(), **self.settings)
            self._space = {name: list(values) for name, values in made.search.items()}
        return self._space

    @hyperparameter_space.setter
    def hyperparameter_space(self, space: dict[str, list[Any]]) -> None:
        self._space = dict(space)

    def get_hyperparameters(self) -> dict[str, Any]:
        """The parameters as they are now, by name."""
        if self._detector is not None:
            return hyperparameters(self._detector)
        return make(self.method, self._model(), **self.settings).parameters

    def set_hyperparameters(self, **values: Any) -> Self:
        """Take other parameters; the detector has to be fitted again.

        Args:
            **values: By name, out of `hyperparameter_space`.
        """
        unknown = sorted(set(values) - set(self.hyperparameter_space))
        if unknown:
            known = ", ".join(self.hyperparameter_space) or "none"
            raise InputError(f"{self.method} has no parameter {', '.join(unknown)}; known: {known}")
        self.settings = self.settings | values
        self._detector = None
        return self

    # ------------------------------------------------------------------------ ours

    @property
    def detector(self) -> Detector:
        """The fitted detector, with its threshold, report and `save`."""
        if self._detector is None:
            raise as_theirs(
                NotFittedError("this detector is not fitted: call fit(val_loader) first"),
                _API,
                "RequiresFittingException",
            )
        return self._detector

    def _model(self) -> nn.Module:
        if self.model is None:
            raise as_theirs(
                InputError("there is no model: give one, this method runs it"),
                _API,
                "ModelNotSetException",
            )
        return self.model

    def __getstate__(self) -> dict[str, Any]:
        """A fitted detector goes as its file."""
        made = self._detector
        return super().__getstate__() | {"_detector": None if made is None else packed(made)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load that file."""
        super().__setstate__(state)
        content = state["_detector"]
        if content is not None:
            self._detector = unpacked(content, self._model(), self.settings)
