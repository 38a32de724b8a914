"""A scikit-learn outlier detector: any detector of ours in that library's pipelines.

Numpy in, numpy out, and the signs of scikit-learn: high = normal, 1 for inliers, −1 for outliers.
scikit-learn is not needed to import this.
"""

from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tulip_ood.adapters.guest import Guest, as_theirs
from tulip_ood.adapters.method import HIGHEST, check_settings, finite, fitted, packed, unpacked
from tulip_ood.detectors.base import Detector
from tulip_ood.errors import InputError, NotFittedError

__all__ = ["TulipOutlier"]

Array = npt.NDArray[Any]


class TulipOutlier(Guest):
    """A detector of ours by name, with scikit-learn's methods.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        method: Any name of `tulip_ood.detectors.available()`, or a composition ("tulip+scale").
        contamination: At most this share of in-distribution inputs is called −1.
        recipe: TULiP's.
        **settings: Arguments of the detector, for instance `n_samples` or `seed`.

    Attributes:
        offset_: Inputs whose `score_samples` is at least this are inliers.
        detector_: The fitted detector, with its report and `save`.
        n_features_in_: The length of a row of X.

    Example:
        >>> import numpy, torch
        >>> X, y = numpy.random.default_rng(0).normal(size=(400, 4)), numpy.arange(400) % 3
        >>> outlier = TulipOutlier(torch.nn.Linear(4, 3), method="ent").fit(X, y)
        >>> sorted(set(outlier.predict(X).tolist())), outlier.score_samples(X).shape
        ([-1, 1], (400,))
    """

    hosts = (("sklearn.base", "OutlierMixin"), ("sklearn.base", "BaseEstimator"))
    _own: ClassVar[tuple[str, ...]] = ("model", "method", "contamination", "recipe")

    def __init__(
        self,
        model: nn.Module,
        method: str = "tulip",
        contamination: float = 0.05,
        recipe: str = "self",
        **settings: Any,
    ) -> None:
        # As they came: scikit-learn compares what goes in with what `get_params` gives.
        self.model, self.method = model, method
        self.contamination, self.recipe = contamination, recipe
        self.settings = settings

    # ------------------------------------------------------------------------- fit

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None, *, train: Any = None) -> Self:
        """Fit on labelled in-distribution data that the network was not trained on.

        Args:
            X: Inputs [N, …]; floating numbers become what the network computes in.
            y: Classes 0, 1, … [N], as the network counts them.
            train: (X, y) of the training data, for methods that learn from it.
        """
        if y is None:
            raise InputError(
                "fit needs labels: fit(X, y) with the true classes of X. Where there are none, "
                "the network's own answers say how sure it is, but not how often it is wrong"
            )
        made = fitted(
            self.model,
            [(self._inputs(X), _labels(y))],
            method=self.method,
            recipe=self.recipe,
            settings=self.settings,
            train=None if train is None else [(self._inputs(train[0]), _labels(train[1]))],
        )
        made.set_threshold(false_alarm=self.contamination)
        assert made.threshold is not None
        self.detector_: Detector = made
        # Where all that can be scored is accepted (+inf), what cannot is still not.
        self.offset_ = max(-made.threshold.value, float(np.nextafter(-HIGHEST, 0.0)))
        self.n_features_in_ = int(np.shape(X)[1]) if np.ndim(X) > 1 else 1
        return self

    def fit_predict(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> Array:
        """1 or −1 for the data that it is fitted on.

        Args:
            X: As in `fit`.
            y: As in `fit`.
        """
        return self.fit(X, y).predict(X)

    # ---------------------------------------------------------------------- answer

    def score_samples(self, X: npt.ArrayLike) -> Array:
        """How normal, float64 [N]; −3.4e38 where there is no score (NaN inputs).

        Args:
            X: Inputs [N, …].
        """
        scores: Array = -finite(self._fitted().score(self._inputs(X))).cpu().numpy()
        return scores

    def decision_function(self, X: npt.ArrayLike) -> Array:
        """`score_samples` less `offset_`: negative for outliers.

        Args:
            X: Inputs [N, …].
        """
        return self.score_samples(X) - self.offset_

    def predict(self, X: npt.ArrayLike) -> Array:
        """1 for inliers, −1 for outliers.

        Args:
            X: Inputs [N, …].
        """
        return np.where(self.decision_function(X) >= 0, 1, -1)

    # ------------------------------------------------------------------ parameters

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments.

        Args:
            deep: Of no effect: no part of this is an estimator.
        """
        return {name: getattr(self, name) for name in self._own} | self.settings

    def set_params(self, **params: Any) -> Self:
        """Take other arguments, for the next `fit`.

        Args:
            **params: Any of the constructor's.
        """
        settings = {name: value for name, value in params.items() if name not in self._own}
        check_settings(params.get("method", self.method), settings)
        for name in params.keys() & set(self._own):
            setattr(self, name, params[name])
        self.settings = {**self.settings, **settings}
        return self

    def __sklearn_clone__(self) -> Self:
        """With the same network, not a copy of it: nothing here changes it."""
        return type(self)(**self.get_params())

    def __getstate__(self) -> dict[str, Any]:
        """A fitted detector goes as its file."""
        state = super().__getstate__()
        if "detector_" in state:
            state["detector_"] = packed(state["detector_"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load that file."""
        super().__setstate__(state)
        if "detector_" in state:
            self.detector_ = unpacked(state["detector_"], self.model, self.settings)

    # ------------------------------------------------------------------------ ours

    def _fitted(self) -> Detector:
        if not hasattr(self, "detector_"):
            raise as_theirs(
                NotFittedError("this estimator is not fitted: call fit(X, y) first"),
                "sklearn.exceptions",
                "NotFittedError",
            )
        return self.detector_

    def _inputs(self, X: npt.ArrayLike) -> Tensor:
        array = np.asarray(X)
        if array.dtype.kind not in "fiub":
            raise InputError(f"X must be numbers; got an array of {array.dtype}")
        tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
        theirs = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), None)
        return tensor.to(theirs) if tensor.is_floating_point() and theirs else tensor


def _labels(y: npt.ArrayLike) -> Tensor:
    array = np.asarray(y)
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"y must be the network's classes as numbers 0, 1, …; got an array of {array.dtype}"
        )
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
