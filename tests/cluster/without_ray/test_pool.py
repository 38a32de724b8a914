"""The driver's decisions, with a Ray that does at once, and fails, as it is told."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tulip_ood.cluster.pool import Limits, Pool
from tulip_ood.errors import ClusterError, DataError, TulipError, TulipWarning


class RayError(Exception): ...


class RayActorError(RayError): ...


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class FakeRay:
    """Starts and scores answer as `fate(what, index)` says; every answer is known at once."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayActorError=RayActorError, RayTaskError=RayTaskError
    )

    def __init__(self, fate: Callable[[str, int], Any]) -> None:
        self._fate = fate
        self._answers: dict[int, Any] = {}
        self.killed = self.made = self.most = 0

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **_: Any) -> Callable[[Any], Any]:
        def decorate(what: Any) -> Any:
            if isinstance(what, type):
                return SimpleNamespace(remote=self._actor)
            return SimpleNamespace(remote=lambda order, shard: self._answer("decode", shard))

        return decorate

    def _actor(self, _: Any) -> Any:
        self.made += 1
        start = SimpleNamespace(remote=lambda: self._answer("start", -1))
        score = SimpleNamespace(remote=lambda index, shard: self._answer("score", index))
        return SimpleNamespace(start=start, score=score)

    def _answer(self, what: str, index: int) -> int:
        reference = 1000 + len(self._answers)
        self._answers[reference] = self._fate(what, index)
        return reference

    def wait(self, references: list[int], **_: Any) -> tuple[list[int], list[int]]:
        self.most = max(self.most, len(references))
        ready = [r for r in references if self._answers[r] is not None][:1]
        return ready, []

    def get(self, reference: int) -> Any:
        found = self._answers[reference]
        if isinstance(found, Exception):
            raise found
        return found

    def kill(self, _: Any) -> None:
        self.killed += 1

    def available_resources(self) -> dict[str, float]:
        return {}


def run(
    fate: Callable[[str, int], Any], *, n: int = 20, decoders: int = 0, actors: int = 2
) -> tuple[FakeRay, list[int]]:
    ray, found = FakeRay(fate), []
    limits = Limits(actors, decoders, ahead=2 * actors + decoders, resources={"num_cpus": 1.0})
    pool = Pool(ray, None, limits)  # type: ignore[arg-type]
    asked: Iterator[int] = iter(range(n))
    pool.run(asked, lambda index: index, lambda index, _: found.append(index))  # type: ignore
    return ray, found


@pytest.mark.parametrize("decoders", [0, 3])
def test_every_shard_once_and_never_too_many_under_way(decoders: int) -> None:
    ray, found = run(lambda what, index: b"x", decoders=decoders)
    assert sorted(found) == list(range(20))
    assert ray.most <= 2 * 2 + decoders + 2  # shards under way, and two starts
    assert ray.killed == ray.made == 2


def test_whatever_dies_every_shard_is_there_once() -> None:
    """Each shard is lost once: with its worker, with what was decoded, or with the start."""
    seen: set[tuple[str, int]] = set()

    def fate(what: str, index: int) -> Any:
        first = (what, index) not in seen
        seen.add((what, index))
        if what == "decode" or not first:
            return b"x"
        return RayActorError() if index % 2 else RayError()

    ray, found = run(fate, decoders=2)
    assert sorted(found) == list(range(20))
    assert ray.killed == ray.made > 10


def test_a_shard_that_kills_every_worker_is_named() -> None:
    with pytest.raises(ClusterError, match="4 workers died over part 7 of the table"):
        run(lambda what, index: RayActorError() if (what, index) == ("score", 7) else b"x")


def test_what_waited_behind_a_deadly_shard_is_not_blamed() -> None:
    """With one worker, shard 8 always stands behind shard 7 when the worker dies."""
    times = {"n": 0}

    def fate(what: str, index: int) -> Any:
        if (what, index) == ("score", 7):
            times["n"] += 1
            return RayActorError() if times["n"] < 4 else b"x"
        return b"x"

    _, found = run(fate, actors=1)
    assert sorted(found) == list(range(20))


@pytest.mark.parametrize("error", [RayActorError(), RayError()])
def test_workers_that_never_begin(error: RayError) -> None:
    with pytest.raises(ClusterError, match="died while they loaded the network"):
        run(lambda what, index: error if what == "start" else b"x")


@pytest.mark.parametrize(
    ("cause", "kind", "words"),
    [
        (DataError("set.parquet is damaged"), DataError, "set.parquet is damaged"),
        (ValueError("a surprise"), ClusterError, "a worker failed: ValueError: a surprise"),
    ],
)
def test_our_own_errors_are_raised_here(
    cause: Exception, kind: type[TulipError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        run(lambda what, index: RayTaskError(cause) if index == 3 else b"x")


def test_a_full_cluster_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([None, None, b"x"])
    ray = FakeRay(lambda what, index: b"x")
    waited = ray.wait
    monkeypatch.setattr(
        ray, "wait", lambda r, **how: ([], []) if next(answers, b"x") is None else waited(r)
    )
    pool = Pool(ray, None, Limits(1, 0, 2, {"num_gpus": 1.0}))  # type: ignore[arg-type]
    found: list[int] = []
    with pytest.warns(TulipWarning, match="a worker needs") as caught:
        pool.run(iter([0]), lambda index: index, lambda index, _: found.append(index))  # type: ignore
    assert (found, len(caught)) == ([0], 1)
