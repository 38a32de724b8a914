"""Which detector is best for *my* network? All of them on the user's own data, in one call."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from tulip_ood.benchmark.bootstrap import Interval, clear_gains, differences, resample
from tulip_ood.benchmark.contest import Contest, Progress, on_train, yardstick_of
from tulip_ood.benchmark.entries import Entry, parse_entries
from tulip_ood.benchmark.results import Comparison, check_groups
from tulip_ood.detectors.base import FIT_MEMORY, Detector
from tulip_ood.errors import InputError, TulipWarning
from tulip_ood.network.network import Network
from tulip_ood.numerics.default_device import on_the_cpu
from tulip_ood.numerics.tasks import make_task

__all__ = ["Compared", "compare"]

FEWEST_RESAMPLES = 20


@dataclass(frozen=True)
class Compared:
    """What `compare` found. `print` it, or look inside.

    Attributes:
        val: Every method, fitted on the same validation inputs.
        train: Those that can learn from training data, fitted on that; None without any.
        skipped: Methods that could not be run here, with the reason.
        task: What the network's outputs mean.
        yardstick: The method that all are held against: entropy, or for regression, where that
            ranks nothing, plain noise averaging.
        against: Differences to the yardstick on each track, with 95 % intervals.
        gains: On each track whether a method's AUROC is surely above the yardstick's, although
            many were tried.
        tied: On each track the methods whose AUROC cannot be told from the best one's.
        n_val: Validation inputs.
        n_train: Training inputs.
        repeated: ID test inputs that were also fitted on.
        tuned_on: OOD test inputs that parameters were also chosen on, for each set that has any.
        inside: OOD test inputs that are ID inputs as well, for each set that has any.
        seen: Finite validation inputs that the loader gave; more than `n_val` if memory was short.
        detectors: The fitted detectors of the validation track.
        train_detectors: Those of the train track.

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
    task: str
    yardstick: str
    against: dict[str, dict[str, dict[str, Interval]]]
    gains: dict[str, dict[str, bool]]
    tied: dict[str, list[str]]
    n_val: int
    n_train: int
    repeated: int
    tuned_on: dict[str, int]
    inside: dict[str, int]
    seen: int
    detectors: dict[str, Detector]
    train_detectors: dict[str, Detector]

    def __str__(self) -> str:
        from tulip_ood.benchmark.ranking import as_text  # it knows of this class

        return as_text(self)

    def to_dict(self) -> dict[str, Any]:
        """Every number but the scores, ready for JSON."""
        tracks = {"val": self.val, "train": self.train}
        return {
            "n_val": self.n_val,
            "n_train": self.n_train,
            "repeated": self.repeated,
            "tuned_on": self.tuned_on,
            "inside": self.inside,
            "skipped": self.skipped,
            "task": self.task,
            "yardstick": self.yardstick,
            "tied_with_the_best": self.tied,
            "tracks": {name: c.to_dict() for name, c in tracks.items() if c is not None},
            "against": {
                track: {
                    method: {metric: vars(interval) for metric, interval in found.items()}
                    for method, found in methods.items()
                }
                for track, methods in self.against.items()
            },
        }


@on_the_cpu()
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
    fit_memory: int = FIT_MEMORY,
    progress: Progress | None = None,
    **network: Any,
) -> Compared:
    """Fit every detector on the same data, score the same images with all, and say which is best.

    Passes are shared: the base pass of an image is made once, whatever number of methods look at
    it. Loaders are read once and nothing of the test sets is held. A method that cannot be run
    here, or fails, is listed with the reason; the others go on.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`).
        id_val: A loader of labelled ID inputs to fit on, which training has not seen.
        id_test: A loader of other labelled ID inputs to judge on.
        ood: Loaders (or single batches) of OOD inputs, by name. Batches may carry labels: each is
            read so that its inputs have the structure of ID inputs.
        train: A loader of the training data; adds the second track.
        ensemble: Further networks for the method "ensemble".
        methods: "all", or names: single methods, "score+shaping", or sums "a&b"; each may carry
            settings, `tulip[recipe=balanced]`, `auto[strength=0.5]`, `knn[k=5,tune=none]`.
        groups: "near" or "far" for names of OOD sets.
        tune: A loader of OOD validation inputs to choose parameters against, or "pseudo".
        settings: Arguments for single methods, by name.
        resamples: Of the bootstrap.
        seed: Of noise, splits and bootstrap.
        batch_size: Inputs in one forward pass.
        fit_memory: Bytes that validation inputs and their logits may take.
        progress: Called with (what, done, of how many).
        **network: `task`, `output`, `head`, `device`, `precision`.

    Example:
        >>> import torch
        >>> x, y, model = torch.randn(200, 4), torch.randint(3, (200,)), torch.nn.Linear(4, 3)
        >>> data = {"id_val": [(x, y)], "id_test": [(x, y)], "ood": {"wide": [9 * x]}}
        >>> print(str(compare(model, **data, methods=["msp"])).splitlines()[0])
        Fitted on the same 200 validation inputs, judged on 200 ID inputs and 1 OOD set
    """
    ood = _check_ood(ood)
    groups = check_groups(groups or {}, ood)
    task = make_task(network.pop("task", "classification"))
    yardstick = yardstick_of(task)
    entries = _entries(methods, yardstick)
    given = _check_settings(settings or {}, entries, ensemble)
    if resamples < FEWEST_RESAMPLES:
        raise InputError(f"resamples must be at least {FEWEST_RESAMPLES}, got {resamples}")
    if isinstance(tune, str) and tune != "pseudo":
        raise InputError(f"tune={tune!r}: pass a loader of OOD inputs, or 'pseudo'")
    for entry in entries:
        if entry.fitting.get("tune") == "ood" and (tune is None or isinstance(tune, str)):
            raise InputError(f"{entry}: there are no OOD inputs to tune on: pass them as tune=…")
    shared = Network(model, task, **network)
    for entry in entries:
        entry.check_settings(shared)
    say = progress or (lambda what, done, total: None)
    work = Contest(shared, entries, given, {"seed": seed, "batch_size": batch_size}, say)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TulipWarning)  # every report has them
        rows = work.hold(id_val, fit_memory)
        if tune is not None and not isinstance(tune, str):
            tune = work.hold_outside(tune)
        work.fit(rows, tune)
        if train is not None:
            work.fit_on_training_data(rows, train, tune)
    whole = work.score(id_test, ood, groups)
    val = replace(whole, methods={n: whole.methods[n] for n in work.detectors})
    kept = {n: whole.methods[on_train(n)] for n in work.trained}
    # It is the same yardstick on both tracks.
    trained = replace(whole, methods={**kept, yardstick: val.methods[yardstick]}) if kept else None
    against, gains, tied = {}, {}, {}
    for track, comparison in {"val": val, "train": trained}.items():
        if comparison is None:
            continue
        say("bootstrap", 0, None)
        drawn = resample(comparison, resamples=resamples, seed=seed)
        against[track] = differences(comparison, drawn, yardstick)
        gains[track] = clear_gains(comparison, drawn, yardstick)
        best = max(comparison.methods, key=lambda name: comparison.mean(name, "auroc"))
        gaps = differences(comparison, drawn, best)
        tied[track] = [name for name, gap in gaps.items() if not gap["auroc"].clear]
    return Compared(
        val=val,
        train=trained,
        skipped=work.skipped,
        task=task.name,
        yardstick=yardstick,
        against=against,
        gains=gains,
        tied=tied,
        n_val=len(rows),
        n_train=work.n_train,
        repeated=work.repeated,
        tuned_on=work.tuned_on,
        inside=work.inside,
        seen=rows.seen - rows.dropped,
        detectors=work.detectors,
        train_detectors=work.trained,
    )


def _check_ood(ood: Mapping[str, Iterable[Any]]) -> dict[str, Iterable[Any]]:
    if not isinstance(ood, Mapping) or not ood:
        raise InputError("ood must name at least one set of OOD inputs: ood={'name': loader}")
    # A tensor or a mapping is a batch, not a loader of its rows or keys.
    return {n: [part] if isinstance(part, Tensor | Mapping) else part for n, part in ood.items()}


def _entries(methods: str | Sequence[str], yardstick: str) -> list[Entry]:
    asked = parse_entries(methods)
    missing = yardstick not in map(str, asked)
    return [Entry.parse(yardstick), *asked] if missing else asked


def _canonical(name: str) -> str:
    """A method's name as results have it; what is no method stays, to be refused as it is."""
    try:
        return str(Entry.parse(name))
    except InputError:
        return name


def _check_settings(
    settings: Mapping[str, Mapping[str, Any]],
    entries: Sequence[Entry],
    ensemble: Sequence[nn.Module] | None,
) -> dict[str, dict[str, Any]]:
    """Arguments of single methods, by their names with brackets."""
    given = {_canonical(name): dict(own) for name, own in settings.items()}
    if unknown := set(given) - set(map(str, entries)):
        raise InputError(
            f"settings are given for {', '.join(sorted(unknown))}, which is not among the methods"
        )
    if ensemble is not None:
        single: Any = ensemble
        if isinstance(single, nn.Module) and not isinstance(single, nn.ModuleList):
            raise InputError("ensemble must be a list of networks, got a single network")
        asked = [str(entry) for entry in entries if entry.method == "ensemble"]
        if not asked:
            raise InputError("ensemble=… is given, but the method 'ensemble' is not asked for")
        for name in asked:
            given.setdefault(name, {})["others"] = list(ensemble)
    return given
