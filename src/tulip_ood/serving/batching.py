"""Dynamic batching: what comes within a few milliseconds is worked on together, by one thread.

A batch is formed of items of one kind (images of one size). The first of them waits for others at
most `wait` seconds; where the worker was busy meanwhile, it has waited enough and goes at once.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, NamedTuple, TypeVar

from tulip_ood.serving.limits import overloaded
from tulip_ood.serving.refusal import RefusalError

__all__ = ["Batcher"]

_LOG = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Waiting(NamedTuple):
    item: Any
    since: float
    future: "Future[Any]"


class Batcher(Generic[Item, Result]):
    """Collects items and lets one thread work on them.

    The thread starts with the first item. If the work on a batch fails, its items are tried one by
    one: a bad one costs nobody else's answer.

    Args:
        work: From items to results, as many and in their order.
        kind: What must be equal within a batch.
        largest: Items in a batch.
        wait: Seconds that the first item waits for others.
        room: Items that may wait.
        after: Called with the items and results of each batch, after these were given out.

    Example:
        >>> batcher = Batcher(lambda items: [2 * item for item in items], largest=8)
        >>> [future.result() for future in batcher.submit([1, 2, 3])]
        [2, 4, 6]
        >>> batcher.close()
    """

    def __init__(
        self,
        work: Callable[[list[Item]], list[Result]],
        *,
        kind: Callable[[Item], Hashable] = lambda item: None,
        largest: int = 32,
        wait: float = 0.004,
        room: int = 512,
        after: Callable[[list[Item], list[Result]], None] | None = None,
    ) -> None:
        self._work, self._kind, self._after = work, kind, after
        self._largest, self._wait, self._room = largest, wait, room
        self._lines: dict[Hashable, deque[_Waiting]] = {}
        self._changed = threading.Condition()
        self._waiting = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Items that nobody works on yet."""
        return self._waiting

    def submit(self, items: Sequence[Item]) -> "list[Future[Result]]":
        """Take all of these items, or refuse them all."""
        now = time.monotonic()
        futures: list[Future[Result]] = [Future() for _ in items]
        with self._changed:
            if self._closed:
                raise RefusalError(
                    503, "closing", "this server is about to stop", headers=[("retry-after", "5")]
                )
            if self._waiting + len(items) > self._room:
                raise overloaded()
            for item, future in zip(items, futures, strict=True):
                line = self._lines.setdefault(self._kind(item), deque())
                line.append(_Waiting(item, now, future))
            self._waiting += len(items)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tulip-score", daemon=True)
                self._thread.start()
            self._changed.notify()
        return futures

    def close(self) -> None:
        """Take nothing more, work off what waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        while batch := self._next():
            # Who has given up meanwhile (a time limit, a closed connection) costs no work.
            wanted = [one for one in batch if one.future.set_running_or_notify_cancel()]
            if wanted:
                self._do(wanted)

    def _next(self) -> list[_Waiting]:
        """The next batch; empty when closed and all is done."""
        with self._changed:
            while not self._lines:
                if self._closed:
                    return []
                self._changed.wait()
            key, line = min(self._lines.items(), key=lambda pair: pair[1][0].since)
            until = line[0].since + self._wait
            while len(line) < self._largest and not self._closed:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            batch = [line.popleft() for _ in range(min(self._largest, len(line)))]
            if not line:
                del self._lines[key]
            self._waiting -= len(batch)
            return batch

    def _do(self, batch: list[_Waiting]) -> None:
        items = [one.item for one in batch]
        try:
            results = self._work(items)
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            for one in batch:
                self._do([one])
            return
        for one, result in zip(batch, results, strict=True):
            one.future.set_result(result)
        if self._after is not None:
            try:
                self._after(items, results)
            except Exception:  # the answers are out, and the next batch must not suffer
                _LOG.exception("after a batch")
