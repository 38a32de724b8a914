"""Who decodes: nobody else (0 workers), threads, or processes where these pay.

Pillow lets go of Python's lock while it decodes and resizes, but a fifth of the work on a
500 × 375 JPEG is Python: beyond a few threads they wait for each other. A process costs a start and
a copy of the pixels through a pipe, so that it takes many large pictures to pay for it. Results are
the same in all cases.
"""

import contextlib
import io
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tulip_ood.data.decoding import Raw
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.worker import pixels_or_why, read_answer, request, send
from tulip_ood.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Decoders", "default_workers"]

MOST_WORKERS = 16
_FEW_WORKERS = 2  # up to here threads do not get in each other's way
_MANY_ROWS = 2048
_LARGE_SIDE = 96
_PIPE_BYTES = 1 << 20  # a picture of 224 × 224 goes through in one piece
_LEAST_PIPE_BYTES = 4096  # what a pipe holds where the system does not say
_KEEP_MEMORY = {  # glibc: fetching each picture's memory anew takes a quarter of the time
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
_AHEAD = 4  # requests with a process: one is worked on, the others wait in its pipe

Decoded = NDArray[np.uint8] | str


class _Task(NamedTuple):
    raw: Raw
    done: "Future[Decoded]"


def default_workers() -> int:
    """One for each processor that this process may use, at most 16.

    Example:
        >>> 1 <= default_workers() <= 16
        True
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(MOST_WORKERS, usable or 1)


class Decoders:
    """Decodes images, in this thread or elsewhere.

    Args:
        preprocess: From a raw image to pixels.
        workers: How many work beside this thread; 0 for none, None for `default_workers()`.
        rows: How many images there are.
        processes: Whether the workers are processes; by default where they pay.

    Example:
        >>> with Decoders(Preprocess(None, None, (0.5,), (0.5,)), 1, rows=1) as decoders:
        ...     decoders.submit(None).result()
        'there is no image in this row'
    """

    def __init__(
        self,
        preprocess: Preprocess,
        workers: int | None,
        *,
        rows: int,
        processes: bool | None = None,
    ) -> None:
        self.workers = default_workers() if workers is None else workers
        if self.workers < 0:
            raise InputError(f"workers must not be negative, got {self.workers}")
        if processes is None:
            side = preprocess.crop or preprocess.resize or _LARGE_SIDE
            many = self.workers > _FEW_WORKERS and rows >= _MANY_ROWS
            processes = many and side >= _LARGE_SIDE
        self._preprocess = preprocess
        self._helpers: list[_Helper] = []
        self._threads: list[threading.Thread] = []
        self._todo: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._work: Callable[[], None] = self._by_process if processes else self._here

    def __enter__(self) -> "Decoders":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            for helper in self._helpers:  # a thread that waits for one hears of it
                helper.end()
        for _thread in self._threads:  # and so does one that waits for something to do
            self._todo.put(None)
        for thread in self._threads:
            thread.join()
        while not self._todo.empty():
            if (task := self._todo.get()) is not None:
                task.done.cancel()

    def submit(self, raw: Raw) -> "Future[Decoded]":
        """Pixels, or the reason why there are none, soon."""
        task = _Task(raw, Future())
        if not self.workers:
            self._do(task)
            return task.done
        self._todo.put(task)
        if len(self._threads) < self.workers:
            name = f"tulip-decode-{len(self._threads)}"
            # A daemon: a program that ends without closing us does not wait for it.
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        return task.done

    def _do(self, task: _Task) -> None:
        task.done.set_result(pixels_or_why(self._preprocess, task.raw))

    # ------------------------------------------------------------- what a thread does

    def _here(self) -> None:
        while not self._closed and (task := self._next(wait=True)) is not None:
            self._do(task)

    def _by_process(self) -> None:
        """Ask a process of this thread's own, a few pictures ahead of its answers.

        A process that has answered finds its next request in the pipe, and need not wait until
        this thread gets Python's lock.
        """
        helper: _Helper | None = None
        while not self._closed:
            task = self._next(wait=helper is None or not helper.asked)
            if task is not None and not isinstance(task.raw, str | bytes):
                self._do(task)  # there is nothing to decode
                continue
            if helper is None and task is not None:
                helper = self._start(task)
            if helper is not None and not self._turn(helper, task):
                self._drop(helper)
                for left in helper.asked:
                    self._alone(left)
                helper = None
        if helper is not None:
            self._drop(helper)
            for left in helper.asked:
                left.done.cancel()

    def _turn(self, helper: "_Helper", task: _Task | None) -> bool:
        """Ask, and hear an answer if it is time to; whether the process is still there."""
        try:
            if task is not None:
                helper.ask(task)
            if task is None or len(helper.asked) == _AHEAD:
                helper.hear()
        except Exception:  # it is gone, or has more to say than this process has memory for
            return False
        return True

    def _alone(self, task: _Task) -> None:
        """Once more, with a process for this picture alone: what ends that as well is to blame.

        The first may have been ended by a picture beside it, or killed for something else.
        """
        helper = None if self._closed else self._start(task)
        if helper is None:
            task.done.cancel()  # unless the start has failed: then it has an error
            return
        survived = self._turn(helper, task) and self._turn(helper, None)
        ended = self._drop(helper)
        if self._closed:
            task.done.cancel()
        elif not survived:
            how = f"signal {-ended}" if ended < 0 else f"exit code {ended}"
            task.done.set_result(f"decoding it ended a process twice ({how})")

    def _next(self, *, wait: bool) -> _Task | None:
        """What to do; None where there is nothing now, or the end has come."""
        try:
            return self._todo.get(block=wait)
        except queue.Empty:
            return None

    def _start(self, task: _Task) -> "_Helper | None":
        """A process; where the system refuses one, that is an error for this task."""
        try:
            helper = _Helper(self._preprocess)
        except Exception as error:
            task.done.set_exception(error)
            return None
        with self._lock:
            self._helpers.append(helper)
            if self._closed:
                helper.end()
        return helper

    def _drop(self, helper: "_Helper") -> int:
        """How it ended, now if not before."""
        with self._lock:
            self._helpers.remove(helper)
        ended = helper.end()
        helper.close()
        return ended


class _Helper:
    """One process, see `worker`."""

    def __init__(self, preprocess: Preprocess) -> None:
        paths = [path or os.getcwd() for path in sys.path]
        self._process = subprocess.Popen(
            # -P: what happens to lie in the folder at hand is not imported.
            [sys.executable, "-P", "-W", "ignore", "-m", "tulip_ood.data.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**_KEEP_MEMORY, **os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is for us: we end it
        )
        _widen(self._out)
        self._room = _widen(self._in) // _AHEAD
        # Read as much as there is: the pixels of a picture come with what is said before them.
        self._answers = io.BufferedReader(self._out, _PIPE_BYTES)
        first = {"preprocess": preprocess.to_json(), "most_pixels": Image.MAX_IMAGE_PIXELS}
        self._to_say = request(json.dumps(first))
        self.asked: deque[_Task] = deque()

    @property
    def _in(self) -> Any:
        return self._process.stdin

    @property
    def _out(self) -> Any:
        return self._process.stdout

    def ask(self, task: _Task) -> None:
        assert isinstance(task.raw, str | bytes)
        said = self._to_say + request(task.raw)
        self._to_say = b""
        self.asked.append(task)  # whatever happens now happens to it as well
        # Two that wait for each other: a process to get rid of an answer, and we of a request that
        # does not fit into the pipe beside others. So that one is sent when nothing else is asked.
        while len(said) > self._room and len(self.asked) > 1:
            self.hear()
        send(self._in, said)

    def hear(self) -> None:
        if self.asked:
            found = read_answer(self._answers)
            self.asked.popleft().done.set_result(found)

    def end(self) -> int:
        """Stop it now; how it ended, as `subprocess` says it."""
        self._process.kill()
        return self._process.wait()

    def close(self) -> None:
        """Let go of the pipes, when no thread uses them any more."""
        for pipe in (self._in, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()


def _widen(pipe: IO[bytes]) -> int:
    """Fewer turns between the two ends of a pipe, where the system can; what the pipe holds."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        return fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return _LEAST_PIPE_BYTES
