"""One reading of training data for several detectors: a million images are not read twice."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.engine import Engine
from tulip_ood.detectors.learning import Learned, Learner
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.running import Needs

__all__ = ["Lessons"]

Guard = Callable[[str], AbstractContextManager[None]]


class Lessons:
    """Detectors of one network that learn from the same training data.

    What goes wrong with one of them ends its own lesson, and not those of the others.

    Args:
        engine: Makes the base pass and all measures, for everyone.
        guard: Entered with a detector's name around all that is its own affair; keeps an error to
            itself, or lets it end the reading.

    Example:
        >>> import contextlib, torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> knn = tulip_ood.detectors.KNN(torch.nn.Linear(4, 3))
        >>> lessons = Lessons(knn.engine, lambda name: contextlib.nullcontext())
        >>> lessons.enrol("knn", knn)
        >>> list(lessons.read([(x[:150], y[:150]), (x[150:], y[150:])]))
        [150, 200]
        >>> knn.fit([(x, y)], train=lessons.learned("knn")).report().facts["n_train"]
        200
    """

    def __init__(
        self, engine: Engine, guard: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._engine, self._guard = engine, guard
        self._detectors: dict[str, Detector] = {}
        self._learners: dict[str, Learner] = {}
        self.n = 0  # inputs read so far

    def __contains__(self, name: str) -> bool:
        return name in self._learners

    def __len__(self) -> int:
        return len(self._learners)

    def enrol(self, name: str, detector: Detector) -> None:
        """Let a detector learn, too; not fitted yet."""
        self._detectors[name], self._learners[name] = detector, detector._learner()

    @contextmanager
    def _own(self, name: str) -> Iterator[None]:
        with self._guard(name):
            try:
                yield
            except Exception:
                del self._learners[name], self._detectors[name]
                raise

    @property
    def measure_more(self) -> bool:
        """Whether any detector needs more than the base pass."""
        return any(detector._measures() for detector in self._detectors.values())

    def try_measures(self, inputs: Inputs) -> None:
        """Find out with a few inputs whose measure cannot be made; it would end the reading."""
        for name, detector in list(self._detectors.items()):
            with self._own(name):
                for measure in detector._measures():
                    measure(self._engine.network, inputs)

    def read(self, train: Iterable[Any]) -> Iterator[int]:
        """Read labelled batches; says how many inputs these were so far, before they are learned.

        Args:
            train: A loader of training data.
        """
        measures = {m.key: m for d in self._detectors.values() for m in d._measures()}
        needs = Needs.base_pass(measures=tuple(measures.values()))
        for part in self._engine.stream(train, needs):
            self.n += len(part)
            yield self.n
            for name in list(self._learners):
                with self._own(name):
                    self._learners[name].add(part)

    def learned(self, name: str) -> Learned:
        """What a detector has learned, for its `fit`; its lesson ends here."""
        return Learned(self._learners.pop(name).finish(), self.n)
