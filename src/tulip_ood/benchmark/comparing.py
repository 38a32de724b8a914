"""Which detector is best for *my* network? All of them on the user's own data, in one call."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from tulip_ood.benchmark.bootstrap import Interval, differences, resample
from tulip_ood.benchmark.collecting import Collector
from tulip_ood.benchmark.results import Comparison, check_groups
from tulip_ood.benchmark.shared_passes import SharedPasses
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.engine import mark_invalid
from tulip_ood.detectors.learning import Learned
from tulip_ood.detectors.registry import METHODS, class_of, make
from tulip_ood.errors import InputError, TulipError, TulipWarning
from tulip_ood.network import inputs as structures
from tulip_ood.network.network import Network
from tulip_ood.network.rows import Rows, collect_rows
from tulip_ood.network.running import Needs
from tulip_ood.numerics.tasks import make_task

if TYPE_CHECKING:
    from tulip_ood.network.passes import Passes

__all__ = ["COMPOSITIONS", "Compared", "compare"]

COMPOSITIONS = ("tulip+react", "tulip+scale", "tulip&knn")
"""What "all" tries beside the single methods."""

Progress = Callable[[str, int, int | None], None]  # (what, done, of how many)


@dataclass(frozen=True)
class Compared:
    """What `compare` found. `print` it, or look inside.

    Attributes:
        val: Every method, fitted on the same validation inputs.
        train: Those that can learn from training data, fitted on that; None without any.
        skipped: Methods that could not be run here, with the reason.
        against: Differences to entropy on each track, with 95 % intervals.
        tied: On each track the methods whose AUROC cannot be told from the best one's.
        n_val: Validation inputs.
        n_train: Training inputs.
        detectors: The fitted detectors of the validation track.

    Example:
        >>> import torch, tulip_ood
        >>> x, y, model = torch.randn(200, 4), torch.randint(3, (200,)), torch.nn.Linear(4, 3)
        >>> data = {"id_val": [(x, y)], "id_test": [(x, y)], "ood": {"wide": [9 * x]}}
        >>> found = compare(model, **data, methods=["msp", "ebo"])
        >>> sorted(found.val.methods)
        ['ebo', 'ent', 'msp']
    """

    val: Comparison
    train: Comparison | None
    skipped: dict[str, str]
    against: dict[str, dict[str, dict[str, Interval]]]
    tied: dict[str, list[str]]
    n_val: int
    n_train: int
    detectors: dict[str, Detector]

    def __str__(self) -> str:
        from tulip_ood.benchmark.ranking import as_text  # it knows of this class

        return as_text(self)

    def to_dict(self) -> dict[str, Any]:
        """Every number but the scores, ready for JSON."""
        tracks = {"val": self.val, "train": self.train}
        return {
            "n_val": self.n_val,
            "n_train": self.n_train,
            "skipped": self.skipped,
            "tied_with_the_best": self.tied,
            "tracks": {name: c.to_dict() for name, c in tracks.items() if c is not None},
            "against_entropy": {
                track: {
                    method: {metric: vars(interval) for metric, interval in found.items()}
                    for method, found in methods.items()
                }
                for track, methods in self.against.items()
            },
        }


def compare(
    model: nn.Module,
    *,
    id_val: Iterable[Any],
    id_test: Iterable[Any],
    ood: Mapping[str, Iterable[Any]],
    train: Iterable[Any] | None = None,
    ensemble: Sequence[nn.Module] | None = None,
    methods: str | Sequence[str] = "all",
    groups: Mapping[str, str] | None = None,
    tune: Any = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    resamples: int = 200,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
    **network: Any,
) -> Compared:
    """Fit every detector on the same data, score the same images with all, and say which is best.

    Passes are shared: the base pass of an image is made once, whatever number of methods look at
    it. Loaders are read once and nothing of the test sets is held.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        id_val: A loader of labelled ID inputs to fit on, which training has not seen.
        id_test: A loader of other labelled ID inputs to judge on.
        ood: Loaders of OOD inputs, by name.
        train: A loader of the training data; adds the second track.
        ensemble: Further networks for the method "ensemble".
        methods: "all", or names: single methods, "score+shaping", or sums "a&b".
        groups: "near" or "far" for names of OOD sets.
        tune: A loader of OOD validation inputs to choose parameters against, or "pseudo".
        settings: Arguments for single methods, by name.
        resamples: Of the bootstrap.
        seed: Of noise, splits and bootstrap.
        batch_size: Inputs in one forward pass.
        progress: Called with (what, done, of how many).
        **network: `task`, `output`, `head`, `device`, `precision`.

    Example:
        >>> import torch
        >>> x, y, model = torch.randn(200, 4), torch.randint(3, (200,)), torch.nn.Linear(4, 3)
        >>> data = {"id_val": [(x, y)], "id_test": [(x, y)], "ood": {"wide": [9 * x]}}
        >>> print(str(compare(model, **data, methods=["msp"])).splitlines()[0])
        Fitted on the same 200 validation inputs, judged on 200 ID inputs and 1 OOD set
    """
    task = make_task(network.pop("task", "classification"))
    shared = Network(model, task, **network)
    say = progress or (lambda what, done, total: None)
    groups = check_groups(groups or {}, ood)
    names = _names(methods, ensemble)
    given = {name: dict(own) for name, own in (settings or {}).items()}
    if ensemble:
        given.setdefault("ensemble", {})["others"] = list(ensemble)
    skipped: dict[str, str] = {}
    detectors: dict[str, Detector] = {}
    for name in names:
        try:
            own = given.get(name, {})
            detectors[name] = make(name, shared, seed=seed, batch_size=batch_size, **own)
        except TulipError as error:
            skipped[name] = str(error)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TulipWarning)  # every report has them
        rows = collect_rows(id_val, seed=seed)
        shared.probe(rows.first(4))
        _fit(detectors, skipped, rows, tune, say)
        trained, n_train = _fit_on_training_data(detectors, given, rows, train, tune, say, seed)
    if not detectors:
        raise InputError(f"none of the methods could be run: {skipped}")
    everyone = {**detectors, **{f"{name} (train)": d for name, d in trained.items()}}
    size = next(iter(detectors.values())).engine.batch_size
    whole = _score(shared, everyone, id_test, ood, groups, size, say)
    val = replace(whole, methods={name: whole.methods[name] for name in detectors})
    on_train = None
    if trained:
        kept = {name: whole.methods[f"{name} (train)"] for name in trained}
        kept["ent"] = whole.methods["ent"]  # the same yardstick on both tracks
        on_train = replace(whole, methods=kept)
    against, tied = {}, {}
    for track, comparison in {"val": val, "train": on_train}.items():
        if comparison is not None:
            say("bootstrap", 0, None)
            drawn = resample(comparison, resamples=resamples, seed=seed)
            against[track] = differences(comparison, drawn, "ent")
            best = max(comparison.methods, key=lambda name: comparison.mean(name, "auroc"))
            gaps = differences(comparison, drawn, best)
            tied[track] = [name for name, gap in gaps.items() if not gap["auroc"].clear]
    return Compared(val, on_train, skipped, against, tied, len(rows), n_train, detectors)


def _names(methods: str | Sequence[str], ensemble: Sequence[nn.Module] | None) -> list[str]:
    if methods == "all":
        chosen = [*METHODS, *(c for c in COMPOSITIONS if _is_known(c))]
    else:
        chosen = [methods] if isinstance(methods, str) else list(methods)
        for name in chosen:
            class_of(name)  # refuses what is not known
    if "ent" not in chosen:
        chosen.insert(0, "ent")  # what everything is held against
    return chosen


def _is_known(name: str) -> bool:
    try:
        class_of(name)
    except InputError:
        return False
    return True


def _fit(
    detectors: dict[str, Detector],
    skipped: dict[str, str],
    rows: Rows,
    tune: Any,
    say: Progress,
) -> None:
    """Fit all on the same rows; who cannot work here goes, with the reason."""
    batches = _as_loader(rows)
    passes: Passes | None = None
    for i, name in enumerate(list(detectors)):
        say(f"fitting {name}", i, len(detectors))
        detector = detectors[name]
        try:
            if detector._settings().n_samples or tune is not None:
                detector.fit(batches, tune=tune)
                continue
            needs = detector._needs()
            if needs.measures:
                detector.fit(batches)
                continue
            if passes is None:
                passes = detector.engine.passes_of(rows, Needs(needs.settings), seed=detector.seed)
            detector.fit(passes)
        except TulipError as error:
            skipped[name] = str(error)
            del detectors[name]


def _as_loader(rows: Rows) -> list[Any]:
    assert rows.labels is not None
    return [(batch, rows.labels[index]) for index, batch in rows.batches(256)]


def _fit_on_training_data(
    detectors: Mapping[str, Detector],
    given: Mapping[str, Mapping[str, Any]],
    rows: Rows,
    train: Iterable[Any] | None,
    tune: Any,
    say: Progress,
    seed: int,
) -> tuple[dict[str, Detector], int]:
    """The second track: one reading of the training data for all that learn from it."""
    learning = {name: d for name, d in detectors.items() if d.learns_from_data}
    if train is None or not learning:
        return {}, 0
    fresh = {
        name: make(name, d.network, seed=seed, **given.get(name, {}))
        for name, d in learning.items()
    }
    first = next(iter(fresh.values()))
    measures = {m.key: m for d in fresh.values() for m in d._needs().measures}
    needs = Needs(first._needs().settings.with_(n_samples=0), measures=tuple(measures.values()))
    learners = {name: d._learner() for name, d in fresh.items()}
    n = 0
    first.engine.take_model()
    for part in first.engine.stream(train, needs):
        n += len(part)
        say("reading training data", n, None)
        for learner in learners.values():
            learner.add(part)
    batches = _as_loader(rows)
    for name, detector in fresh.items():
        say(f"fitting {name} on training data", 0, None)
        detector.fit(batches, train=Learned(learners[name].finish(), n), tune=tune)
    return fresh, n


def _score(
    network: Network,
    detectors: Mapping[str, Detector],
    id_test: Iterable[Any],
    ood: Mapping[str, Iterable[Any]],
    groups: dict[str, str],
    batch_size: int,
    say: Progress,
) -> Comparison:
    """All test sets, batch by batch, every detector on the same passes."""
    shared = SharedPasses(network, detectors, batch_size)
    collectors = {name: Collector(name, detector) for name, detector in detectors.items()}
    n_id = 0
    for batch in structures.batches(id_test):
        inputs, labels = structures.split_batch(batch)
        passes, valid = shared.of(inputs)
        n_id += structures.count_rows(inputs)
        for name, detector in detectors.items():
            part = passes[name]
            checked = detector.task.check_labels(labels.cpu(), part.base)
            said = detector.predict(part)
            said = replace(said, score=mark_invalid(said.score, valid))
            collectors[name].inside(said, checked)
        say("scoring ID", n_id, None)
    sizes = {}
    for each, loader in ood.items():
        n = 0
        for batch in structures.batches(loader):
            inputs = structures.inputs_only(batch)
            passes, valid = shared.of(inputs)
            n += structures.count_rows(inputs)
            for name, detector in detectors.items():
                score = detector.score(passes[name])
                collectors[name].outside(each, mark_invalid(score, valid))
            say(f"scoring {each}", n, None)
        if n == 0:
            raise InputError(f"the OOD set {each!r} has no inputs")
        sizes[each] = n
    results = {name: collector.result() for name, collector in collectors.items()}
    return Comparison(results, groups, n_id, sizes)
