"""An OpenOOD postprocessor: any detector of ours in OpenOOD's evaluation.

`openood.evaluation_api.Evaluator(net, id_name=…, postprocessor=TulipPostprocessor())`. OpenOOD is
not needed to import this.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from tulip_ood.adapters.guest import Guest, found
from tulip_ood.adapters.method import Pairs, data_and_label, finite, fitted, hyperparameters
from tulip_ood.detectors.base import Detector
from tulip_ood.errors import InputError, NotFittedError

__all__ = ["TulipPostprocessor"]

Array = npt.NDArray[Any]
_TRACKS = ("val", "train")
_TRAINING = ("main_train", "train")  # what OpenOOD's releases call it


class TulipPostprocessor(Guest):
    """A detector of ours by name, where OpenOOD expects a postprocessor.

    `setup` fits it on the ID validation data and uses no OOD data, unless `tune="ood"`.

    Args:
        config: OpenOOD's, or None. Its `postprocessor.postprocessor_args` are taken as further
            arguments (what is given here goes first), `postprocessor_sweep` as `args_dict`.
        method: Any name of `tulip_ood.detectors.available()`, or a composition ("tulip+scale").
        recipe: TULiP's.
        track: "val": methods learn from the validation data; "train": those that can learn from
            the training data, as OpenOOD has it.
        tune: None, "ood" (choose parameters on OpenOOD's OOD validation data), or "pseudo".
        **settings: Arguments of the detector, for instance `n_samples` or `seed`.

    Example:
        >>> import torch
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> net = Sequential(Linear(4, 32), ReLU(), Linear(32, 3))
        >>> val = {"data": torch.randn(400, 4), "label": torch.randint(3, (400,))}
        >>> postprocessor = TulipPostprocessor(method="ent")
        >>> postprocessor.setup(net, {"val": [val]}, {})
        >>> prediction, confidence, label = postprocessor.inference(net, [val], progress=False)
        >>> prediction.shape, confidence.dtype, bool((label == val["label"].numpy()).all())
        ((400,), dtype('float64'), True)
    """

    hosts = (("openood.postprocessors.base_postprocessor", "BasePostprocessor"),)
    APS_mode = False  # parameters are chosen in `setup`; OpenOOD's own search works too
    hyperparam_search_done = False

    def __init__(
        self,
        config: Any = None,
        *,
        method: str | None = None,
        recipe: str | None = None,
        track: str | None = None,
        tune: str | None = None,
        **settings: Any,
    ) -> None:
        own = {"method": method, "recipe": recipe, "track": track, "tune": tune}
        given = _part(config, "postprocessor_args") | settings
        given |= {name: value for name, value in own.items() if value is not None}
        self.config = config
        self.method: str = given.pop("method", "tulip")
        self.recipe: str = given.pop("recipe", "self")
        self.track: str = given.pop("track", "val")
        self.tune: str | None = given.pop("tune", None)
        self.settings = given
        if self.track not in _TRACKS:
            raise InputError(f"track must be 'val' or 'train', got {self.track!r}")
        if self.tune not in (None, "ood", "pseudo"):
            raise InputError(f"tune must be None, 'ood' or 'pseudo', got {self.tune!r}")
        self._detector: Detector | None = None
        self._setup: tuple[nn.Module, Any, Any] | None = None

    # ------------------------------------------------------------------- OpenOOD's

    def setup(self, net: nn.Module, id_loader_dict: Any, ood_loader_dict: Any) -> None:
        """Fit on the ID validation data; called once more, it fits once more.

        Args:
            net: The network; neither weights nor mode are changed.
            id_loader_dict: OpenOOD's loaders by split; "val" is needed.
            ood_loader_dict: The same for OOD data; "val" is read with `tune="ood"`, nothing else.
        """
        data = Pairs(_loader(id_loader_dict, ("val",), "the ID loaders"))
        train, tune = None, self.tune
        if self.track == "train":
            train = Pairs(_loader(id_loader_dict, _TRAINING, "the ID loaders"))
        against: Any = tune
        if tune == "ood":
            against = _Inputs(_loader(ood_loader_dict, ("val",), "the OOD loaders"))
        self._detector = fitted(
            net,
            data,
            method=self.method,
            recipe=self.recipe,
            settings=self.settings,
            train=train,
            tune=against,
        )
        self._setup = (net, id_loader_dict, ood_loader_dict)

    def postprocess(self, net: nn.Module, data: Any) -> tuple[Tensor, Tensor]:
        """(prediction, confidence) of a batch; the confidence is float64, high = ID.

        Args:
            net: The network that `setup` was called with.
            data: Inputs as the network takes them.
        """
        if self._setup is not None and net is not self._setup[0]:
            raise InputError("this is another network than `setup` was called with: call it again")
        made = self.detector.predict(data)
        return made.label, -finite(made.score)

    def inference(
        self, net: nn.Module, data_loader: Iterable[Any], progress: bool = True
    ) -> tuple[Array, Array, Array]:
        """(predictions, confidences, labels) of a loader, as arrays.

        Args:
            net: The network that `setup` was called with.
            data_loader: Batches with "data" and "label".
            progress: Show a bar, if tqdm is installed.
        """
        columns: list[tuple[Tensor, Tensor, Tensor]] = []
        for batch in _shown(data_loader, progress):
            data, label = data_and_label(batch)
            prediction, confidence = self.postprocess(net, data)
            columns.append((prediction.cpu(), confidence.cpu(), label.cpu()))
        if not columns:
            raise InputError("the loader gave no batch: there is nothing to score")
        prediction, confidence, label = map(torch.cat, zip(*columns, strict=True))
        return prediction.numpy().astype(int), confidence.numpy(), label.numpy().astype(int)

    # ------------------------------------------------- OpenOOD's search of parameters

    @property
    def args_dict(self) -> dict[str, list[Any]]:
        """What OpenOOD's own search tries: the config's sweep, or else what this method has."""
        sweep = _part(self.config, "postprocessor_sweep")
        if sweep:
            return {name.removesuffix("_list"): list(values) for name, values in sweep.items()}
        made = self._detector
        return {} if made is None else {name: list(tried) for name, tried in made.search.items()}

    def set_hyperparam(self, hyperparam: Any) -> None:
        """Take other parameters, and fit again.

        Args:
            hyperparam: Values in the order of `args_dict` (or, where that is empty, of
                `get_hyperparam`), or a mapping from names.
        """
        if self._setup is None:
            raise NotFittedError("call setup(net, id_loader_dict, ood_loader_dict) first")
        if not isinstance(hyperparam, Mapping):
            names, values = list(self.args_dict or self.get_hyperparam()), list(hyperparam)
            if len(names) != len(values):
                raise InputError(
                    f"expected values of {', '.join(names) or 'nothing'}; got {values}"
                )
            hyperparam = dict(zip(names, values, strict=True))
        self.settings |= hyperparam
        self.setup(*self._setup)

    def get_hyperparam(self) -> dict[str, Any]:
        """The parameters as they are now, by name."""
        return hyperparameters(self.detector)

    # -------------------------------------------------------------------------- ours

    @property
    def detector(self) -> Detector:
        """The fitted detector, with its threshold, report and `save`."""
        if self._detector is None:
            raise NotFittedError(
                "this postprocessor is not set up: call setup(net, id_loader_dict, ood_loader_dict)"
            )
        return self._detector

    def __getstate__(self) -> dict[str, Any]:
        """Without network and fit: OpenOOD calls `setup` again, and the result is the same."""
        return super().__getstate__() | {"_detector": None, "_setup": None}


class _Inputs:
    """The inputs of a loader without labels; may be read again."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield data_and_label(batch)[0]


def _loader(loaders: Any, names: tuple[str, ...], what: str) -> Any:
    for name in names:
        if isinstance(loaders, Mapping) and name in loaders:
            return loaders[name]
    have = ", ".join(map(str, loaders)) if isinstance(loaders, Mapping) else type(loaders).__name__
    raise InputError(f"{what} need {' or '.join(map(repr, names))}; they have: {have or 'nothing'}")


def _part(config: Any, name: str) -> dict[str, Any]:
    """A part of `config.postprocessor` as a dict; OpenOOD's configs answer None if it is not."""
    part = getattr(getattr(config, "postprocessor", None), name, None)
    if part is None:
        return {}
    return dict(part) if isinstance(part, Mapping) else dict(vars(part))


def _shown(loader: Iterable[Any], progress: bool) -> Iterable[Any]:
    distributed = torch.distributed
    if progress and distributed.is_available() and distributed.is_initialized():
        progress = distributed.get_rank() == 0
    if not progress:
        return loader
    bar: Any = found("tqdm", "tqdm")  # OpenOOD has it; we do not ask for it
    shown: Iterable[Any] = loader if bar is None else bar(loader)
    return shown
