"""The driver of a job: a bounded number of shards under way, and what to do when workers die.

Ray restarts nothing here (`max_restarts=0`, `max_retries=0`): a shard that was lost is given out
again from one place, which counts how often, so that an input that kills its worker ends the job
with its name instead of killing workers for ever.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tulip_ood.cluster.worker import Order, Scorer, decode
from tulip_ood.data.source import Shard
from tulip_ood.errors import ClusterError, TulipError, warn

__all__ = ["Limits", "Pool"]

_ATTEMPTS = 4  # workers that a shard may bring down
_STILLBORN = 4  # workers that may die in a row before any one has begun
_QUEUED = 2  # shards at a worker: one that it scores, one that waits
_PATIENCE = 60.0  # seconds without a worker before it is said


@dataclass(frozen=True)
class Limits:
    """How much runs at once.

    Attributes:
        actors: Workers that hold the network.
        decoders: Shards that are decoded at once by processes of their own; 0 if workers decode.
        ahead: Shards under way in all: read, decoded, scored, but not yet in the table.
        resources: What a worker needs, in Ray's words.

    Example:
        >>> Limits(actors=4, decoders=0, ahead=8, resources={"num_gpus": 1}).ahead
        8
    """

    actors: int
    decoders: int
    ahead: int
    resources: dict[str, float]


@dataclass
class _Slot:
    """The place of one worker: an actor, and after its death another."""

    actor: Any
    starting: Any  # the reference of its start; None once it has begun
    shards: dict[Any, int] = field(default_factory=dict)  # reference → shard, the oldest first


class Pool:
    """Workers, and the shards that they have.

    Args:
        ray: The module, connected.
        order: What workers are told.
        limits: How much runs at once.

    Example:
        >>> from inspect import signature
        >>> list(signature(Pool.run).parameters)[1:]
        ['indices', 'shard_of', 'put']
    """

    def __init__(self, ray: Any, order: Order, limits: Limits) -> None:
        self._ray = ray
        self._limits = limits
        self._order = ray.put(order)
        spread = {"scheduling_strategy": "SPREAD"}
        needs = {"max_restarts": 0, "max_task_retries": 0, **limits.resources}
        self._scorer = ray.remote(**needs, **spread)(Scorer)
        self._decode = ray.remote(num_cpus=1, max_retries=0, **spread)(decode)
        self._slots: list[_Slot] = []
        self._decoding: dict[Any, int] = {}
        self._waiting: deque[tuple[int, Any]] = deque()  # a shard, or where it lies decoded
        self._again: deque[int] = deque()
        self._lost: Counter[int] = Counter()
        self._stillborn = 0
        self._patient = True

    def run(
        self,
        indices: Iterator[int],
        shard_of: Callable[[int], Shard],
        put: Callable[[int, bytes], None],
    ) -> None:
        """Score shards until none is left.

        Args:
            indices: Which ones.
            shard_of: Their rows.
            put: Takes a finished part; called in this process alone.
        """
        self._slots = [self._new() for _ in range(self._limits.actors)]
        try:
            while self._fill(indices, shard_of):
                self._give()
                for reference in self._wait():
                    self._take(reference, put)
        finally:
            for slot in self._slots:
                self._ray.kill(slot.actor)

    # ------------------------------------------------------------------- giving

    def _new(self) -> _Slot:
        actor = self._scorer.remote(self._order)
        return _Slot(actor, actor.start.remote())

    @property
    def _under_way(self) -> int:
        scored = sum(len(slot.shards) for slot in self._slots)
        return scored + len(self._decoding) + len(self._waiting)

    def _fill(self, indices: Iterator[int], shard_of: Callable[[int], Shard]) -> bool:
        """Take up shards, as many as there may be; whether there is anything left to wait for."""
        while self._under_way < self._limits.ahead:
            if self._limits.decoders and len(self._decoding) >= self._limits.decoders:
                break
            index = self._again.popleft() if self._again else next(indices, None)
            if index is None:
                break
            if self._limits.decoders:
                self._decoding[self._decode.remote(self._order, shard_of(index))] = index
            else:
                self._waiting.append((index, shard_of(index)))
        return self._under_way > 0

    def _give(self) -> None:
        """Shards to those workers that have begun, the idle ones first."""
        for busy in range(_QUEUED):
            for slot in self._slots:
                if self._waiting and slot.starting is None and len(slot.shards) == busy:
                    index, shard = self._waiting.popleft()
                    slot.shards[slot.actor.score.remote(index, shard)] = index

    # ------------------------------------------------------------------- taking

    def _wait(self) -> list[Any]:
        references = list(self._decoding)
        for slot in self._slots:
            references += slot.shards
            if slot.starting is not None:
                references.append(slot.starting)
        # Decoded images must not come here, where nobody wants them.
        done, _ = self._ray.wait(references, timeout=_PATIENCE, fetch_local=False)
        if not done and self._patient and all(slot.starting is not None for slot in self._slots):
            self._patient = False
            warn(
                f"no worker has begun for {_PATIENCE:.0f} seconds: the cluster has "
                f"{self._ray.available_resources()} free, a worker needs {self._limits.resources}"
            )
        found: list[Any] = done
        return found

    def _take(self, reference: Any, put: Callable[[int, bytes], None]) -> None:
        """What came of a start, of decoding, or of a shard."""
        index = self._decoding.pop(reference, None)
        if index is not None:  # if that failed, whoever scores it says so
            self._waiting.append((index, reference))
            return
        slot = next(s for s in self._slots if s.starting == reference or reference in s.shards)
        try:
            found = self._ray.get(reference)
        except self._ray.exceptions.RayActorError:
            self._replace(slot)
        except self._ray.exceptions.RayError as error:
            self._check(error)
            if reference in slot.shards:
                self._lose(slot.shards.pop(reference))
            else:
                self._replace(slot)
        else:
            self._stillborn = 0
            if slot.starting == reference:
                slot.starting = None
            else:
                put(slot.shards.pop(reference), found)

    def _check(self, error: Any) -> None:
        """What our own code raised there is raised here; what Ray lost can be done again."""
        if not isinstance(error, self._ray.exceptions.RayTaskError):
            return
        cause = error.cause
        if isinstance(cause, TulipError):
            raise cause from None
        if not isinstance(cause, self._ray.exceptions.RayError):
            raise ClusterError(f"a worker failed: {type(cause).__name__}: {cause}") from error

    def _replace(self, slot: _Slot) -> None:
        """The worker is dead: another one in its place, its shards to whoever is free."""
        if slot.starting is not None:
            self._stillborn += 1
            if self._stillborn >= _STILLBORN:
                raise ClusterError(
                    f"{_STILLBORN} workers in a row died while they loaded the network: is there "
                    f"memory for it and its perturbed copies? Ray's own log says more"
                )
        queued = list(slot.shards.values())
        for index in queued[:1]:  # what it was doing; the others only waited
            self._lose(index)
        self._again.extend(queued[1:])
        self._ray.kill(slot.actor)  # one that only cannot be reached must not come back
        self._slots[self._slots.index(slot)] = self._new()

    def _lose(self, index: int) -> None:
        self._lost[index] += 1
        if self._lost[index] >= _ATTEMPTS:
            raise ClusterError(
                f"{_ATTEMPTS} workers died over part {index} of the table (out of memory?): try a "
                f"smaller --batch-size, or look at these inputs; all other parts are kept, run the "
                f"same command again to go on"
            )
        self._again.append(index)
