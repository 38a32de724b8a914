"""Many detectors fitted and scored side by side: one that fails does not harm the others."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from torch import Tensor

from tulip_ood.benchmark.collecting import Collector
from tulip_ood.benchmark.entries import Entry
from tulip_ood.benchmark.results import Comparison
from tulip_ood.benchmark.shared_passes import SharedPasses
from tulip_ood.detectors.base import OOD_INPUTS, Detector
from tulip_ood.detectors.engine import Held, mark_invalid
from tulip_ood.detectors.ent import Entropy
from tulip_ood.detectors.lessons import Lessons
from tulip_ood.errors import InputError, ModelError, TulipError, kind_and_text
from tulip_ood.network import inputs as structures
from tulip_ood.network import loaders
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows, collect_rows
from tulip_ood.numerics.tasks import Task

__all__ = ["YARDSTICK", "Contest", "Progress", "on_train", "yardstick_of"]

YARDSTICK = "ent"  # what everything is held against
_YARDSTICKS = {"regression": "noise"}  # tasks whose outputs alone do not say how unsure they are
Progress = Callable[[str, int, int | None], None]  # (what, done, of how many)


def yardstick_of(task: Task) -> str:
    """The method that everything is held against: the plainest that ranks inputs at all.

    That is entropy, from the one pass that the network makes anyway. Where outputs are numbers it
    is the same for every input; then the spread of the output under weight noise stands in.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> yardstick_of(make_task("binary")), yardstick_of(make_task("regression"))
        ('ent', 'noise')
    """
    return _YARDSTICKS.get(task.name, YARDSTICK)


def on_train(name: str) -> str:
    """The name of a method's second fit, on training data.

    Example:
        >>> on_train("knn")
        'knn (train)'
    """
    return f"{name} (train)"


def _reason(error: Exception) -> str:
    ours = isinstance(error, TulipError)
    return " ".join(str(error).split()) if ours else kind_and_text(error)


class Contest:
    """The detectors of a comparison; one that fails goes, with the reason, and the others stay.

    Args:
        network: The network that all share.
        entries: The methods with their settings, the task's yardstick among them.
        given: Arguments of single methods, beside what stands in their brackets.
        common: Arguments of all.
        say: Told of progress.

    Example:
        >>> import torch
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> entries = [Entry.parse("ent"), Entry.parse("ensemble")]
        >>> contest = Contest(network, entries, {}, {"seed": 0}, lambda *what: None)
        >>> list(contest.detectors), list(contest.skipped)
        (['ent'], ['ensemble'])
    """

    def __init__(
        self,
        network: Network,
        entries: Sequence[Entry],
        given: Mapping[str, dict[str, Any]],
        common: dict[str, Any],
        say: Progress,
    ) -> None:
        self._network, self._given, self._common, self._say = network, given, common, say
        self._entries = {str(entry): entry for entry in entries}
        self.skipped: dict[str, str] = {}
        self.detectors: dict[str, Detector] = {}
        self.trained: dict[str, Detector] = {}
        self.n_train = 0
        self.repeated = 0  # ID test inputs that were fitted on
        self.tuned_on: dict[str, int] = {}  # OOD test inputs that were tuned on, by set
        self.inside: dict[str, int] = {}  # OOD test inputs that are ID inputs as well, by set
        self.yardstick = yardstick_of(network.task)
        self._fitted_on: frozenset[bytes] = frozenset()
        self._chosen_on: frozenset[bytes] = frozenset()
        self._fed: frozenset[Any] = frozenset()  # the structures of ID inputs
        # Never fitted: it makes the base pass that all share.
        self._plain = Entropy(network, **common)
        for name in self._entries:
            with self._guarded(name):
                self.detectors[name] = self._make(name)

    def _make(self, name: str) -> Detector:
        made = self._entries[name].make(
            self._network, {**self._common, **self._given.get(name, {})}
        )
        if isinstance(made, Entropy) and self.yardstick != YARDSTICK:
            raise InputError(
                f"a single number says nothing about how unsure it is: for task "
                f"{self._network.task.name!r} the score of {name} is the same for every input"
            )
        return made

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if name == self.yardstick:
                raise  # then nothing can be compared
            self.skipped[name] = _reason(error)
            self.detectors.pop(name, None)
            self.trained.pop(name.removesuffix(" (train)"), None)

    def hold(self, id_val: Iterable[Any], memory: int) -> Rows:
        """Validation inputs, as many as fit with the logits of the method that makes the most."""
        passes = max(d.pass_settings.n_passes for d in self.detectors.values())

        def bytes_of_logits(inputs: Inputs) -> int:
            return 4 * self._network.probe(inputs).outputs_per_input * passes

        seed = self._common["seed"]
        rows = collect_rows(id_val, seed=seed, memory=memory, row_cost=bytes_of_logits)
        self._fitted_on = frozenset(rows.digests)
        self._fed = frozenset(structures.structure(row) for row in rows.inputs)
        return rows

    def hold_outside(self, tune: Iterable[Any]) -> Rows:
        """OOD inputs to choose parameters on."""
        try:
            # A tensor is a batch; a tuple of one thing holds inputs, whatever they look like.
            loader = loaders.batches([tune] if isinstance(tune, Tensor) else tune)
            read = ((structures.inputs_only(batch, self._fed),) for batch in loader)
            rows = collect_rows(read, seed=self._common["seed"], labelled=False, limit=OOD_INPUTS)
        except InputError as error:
            raise InputError(f"tune: {error}") from error
        self._chosen_on = frozenset(rows.digests)
        return rows

    def _held(self, rows: Rows) -> Held:
        """The rows with their base pass, which most methods need and nothing else."""
        engine = self._plain.engine
        engine.look_at(rows)
        return engine.hold(rows, seed=self._plain.seed)

    def fit(self, rows: Rows, tune: Any) -> None:
        """Fit all on the same rows."""
        held, names = self._held(rows), list(self.detectors)
        for i, name in enumerate(names):
            self._say(f"fitting {name}", i, len(names))
            with self._guarded(name):
                self.detectors[name].fit(held, **self._how(name, tune))

    def fit_on_training_data(self, rows: Rows, train: Iterable[Any], tune: Any) -> None:
        """The second track: one reading of the training data for all that learn from it."""
        lessons = Lessons(self._plain.engine, lambda name: self._guarded(on_train(name)))
        for name, detector in list(self.detectors.items()):
            if detector.learns_from_data:
                with self._guarded(on_train(name)):
                    self.trained[name] = self._make(name)
                    lessons.enrol(name, self.trained[name])
        if not lessons:
            return
        for self.n_train in lessons.read(train):
            self._say("reading training data", self.n_train, None)
        held = self._held(rows)
        for name, detector in list(self.trained.items()):
            self._say(f"fitting {name} on training data", 0, None)
            with self._guarded(on_train(name)):
                detector.fit(held, train=lessons.learned(name), **self._how(name, tune))

    def _how(self, name: str, tune: Any) -> dict[str, Any]:
        """The arguments of a method's `fit`: what stands in its brackets goes first."""
        how: dict[str, Any] = {**self._entries[name].fitting}
        own = how.pop("tune", "ood")
        return {**how, "tune": {"none": None, "pseudo": "pseudo"}.get(own, tune)}

    # ------------------------------------------------------------------------- scoring

    def score(
        self, id_test: Iterable[Any], ood: Mapping[str, Iterable[Any]], groups: dict[str, str]
    ) -> Comparison:
        """All test sets, batch by batch, every detector on the same passes."""
        everyone = {**self.detectors, **{on_train(n): d for n, d in self.trained.items()}}
        self._collectors = {name: Collector(name, d) for name, d in everyone.items()}
        self._size = self._plain.engine.batch_size
        self._shared = SharedPasses(self._network, everyone, self._size)
        n_id, tested = self._score_inside(id_test)
        inside = tested | self._fitted_on
        sizes = {each: self._score_outside(each, loader, inside) for each, loader in ood.items()}
        results = {name: collector.result() for name, collector in self._collectors.items()}
        return Comparison(results, groups, n_id, sizes)

    def _score_inside(self, id_test: Iterable[Any]) -> tuple[int, set[bytes]]:
        """How many ID test inputs there are, and their digests."""
        n_id = 0
        tested: set[bytes] = set()
        for inputs, labels in self._pieces("ID test", id_test, labelled=True):
            assert labels is not None
            passes, valid = self._passes("ID test", inputs)
            digests = self._digests(inputs)
            self.repeated += _among(self._fitted_on, digests)
            tested.update(digests)
            n_id += structures.count_rows(inputs)
            checked = self._network.task.check_labels(labels.cpu(), passes[self.yardstick].base)
            for name, collector in list(self._collectors.items()):
                with self._dropping(name):
                    said = collector.detector.predict(passes[name])
                    collector.inside(replace(said, score=mark_invalid(said.score, valid)), checked)
            self._say("scoring ID", n_id, None)
        if not n_id:
            raise InputError("there are no ID test inputs")
        return n_id, tested

    def _score_outside(self, each: str, loader: Iterable[Any], inside: AbstractSet[bytes]) -> int:
        """How many inputs an OOD set has; `inside` are the digests of all ID inputs."""
        n = 0
        for inputs, _ in self._pieces(f"OOD set {each!r}", loader, labelled=False):
            passes, valid = self._passes(f"OOD set {each!r}", inputs)
            n += structures.count_rows(inputs)
            digests = self._digests(inputs)
            for counts, known in ((self.tuned_on, self._chosen_on), (self.inside, inside)):
                if found := _among(known, digests):
                    counts[each] = counts.get(each, 0) + found
            for name, collector in list(self._collectors.items()):
                with self._dropping(name):
                    score = collector.detector.score(passes[name])
                    collector.outside(each, mark_invalid(score, valid))
            self._say(f"scoring {each}", n, None)
        if n == 0:
            raise InputError(f"the OOD set {each!r} has no inputs")
        return n

    def _digests(self, inputs: Inputs) -> list[bytes]:
        return structures.row_digests(inputs, seed=self._common["seed"])

    @contextlib.contextmanager
    def _dropping(self, name: str) -> Iterator[None]:
        with self._guarded(name):
            try:
                yield
            except Exception:
                del self._collectors[name]
                raise

    def _pieces(
        self, what: str, loader: Iterable[Any], *, labelled: bool
    ) -> Iterator[tuple[Inputs, Tensor | None]]:
        """Batches in pieces that bounded memory is enough for; empty ones are passed over."""
        step = 8 * self._size
        try:
            for batch in loaders.batches(loader):
                if labelled:
                    inputs, labels = structures.split_batch(batch)
                else:
                    inputs, labels = structures.inputs_only(batch, self._fed), None
                for first in range(0, structures.count_rows(inputs), step):
                    part = slice(first, first + step)
                    yield structures.take(inputs, part), None if labels is None else labels[part]
        except InputError as error:
            raise InputError(f"{what}: {error}") from error

    def _passes(self, what: str, inputs: Inputs) -> tuple[dict[str, Passes], Tensor]:
        try:
            return self._shared.of(inputs)
        except Exception as error:
            failing = self._shared.failing(inputs)
            if not failing:
                raise ModelError(
                    f"{what}: the network cannot run on it: {_reason(error)}"
                ) from error
            for name, reason in failing.items():
                with self._dropping(name):
                    raise ModelError(reason) from error
            everyone = {name: c.detector for name, c in self._collectors.items()}
            self._shared = SharedPasses(self._network, everyone, self._size)
            return self._shared.of(inputs)


def _among(known: AbstractSet[bytes], digests: Sequence[bytes]) -> int:
    """How many of some inputs were seen before."""
    return sum(digest in known for digest in digests)
