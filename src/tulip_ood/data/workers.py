"""Who decodes: nobody else (0 workers), threads, or processes where these pay.

Pillow lets go of Python's lock while it decodes and resizes, but a fifth of the work on a
500 × 375 JPEG is Python: beyond a few threads they wait for each other. A process costs a start and
a copy of the pixels through a pipe, so that it takes many large pictures to pay for it. Results are
the same in all cases.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tulip_ood.data.decoding import Raw
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.worker import pixels_or_why, read_answer, write_request
from tulip_ood.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Decoders", "default_workers"]

MOST_WORKERS = 16
_FEW_WORKERS = 2  # up to here threads do not get in each other's way
_MANY_ROWS = 2048
_LARGE_SIDE = 96
_PIPE_BYTES = 1 << 20  # a picture of 224 × 224 goes through in one piece

Decoded = NDArray[np.uint8] | str


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
        self._own = threading.local()
        self._lock = threading.Lock()
        self._closed = False
        self._work: Callable[[Raw], Decoded] = self._by_process if processes else self._here
        self._pool: ThreadPoolExecutor | None = None
        if self.workers:
            self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="tulip-decode")

    def __enter__(self) -> "Decoders":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is None:
            return
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            for helper in self._helpers:  # a thread that waits for one hears of it
                helper.end()
        self._pool.shutdown(wait=True)
        for helper in self._helpers:
            helper.close()

    def submit(self, raw: Raw) -> "Future[Decoded]":
        """Pixels, or the reason why there are none, soon."""
        if self._pool is not None:
            return self._pool.submit(self._work, raw)
        done: Future[Decoded] = Future()
        done.set_result(self._here(raw))
        return done

    def _here(self, raw: Raw) -> Decoded:
        return pixels_or_why(self._preprocess, raw)

    def _by_process(self, raw: Raw) -> Decoded:
        if not isinstance(raw, str | bytes):  # there is nothing to decode
            return self._here(raw)
        ended = 0
        for _ in range(2):  # a process may have been killed for something else
            try:
                return self._helper().ask(raw)
            except (EOFError, OSError):
                ended = self._own.helper.end()
                self._own.helper = None
                if self._closed:
                    return "stopped"
        how = f"signal {-ended}" if ended < 0 else f"exit code {ended}"
        return f"decoding it ended a process twice ({how})"

    def _helper(self) -> "_Helper":
        """The process that belongs to this thread."""
        found: _Helper | None = getattr(self._own, "helper", None)
        if found is None:
            found = self._own.helper = _Helper(self._preprocess)
            with self._lock:
                self._helpers.append(found)
                if self._closed:
                    found.end()
        return found


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
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is for us: we end it
        )
        for pipe in (self._in, self._out):
            _widen(pipe)
        first = {"preprocess": preprocess.to_json(), "most_pixels": Image.MAX_IMAGE_PIXELS}
        self._to_say: str | None = json.dumps(first)

    @property
    def _in(self) -> Any:
        return self._process.stdin

    @property
    def _out(self) -> Any:
        return self._process.stdout

    def ask(self, raw: str | bytes) -> Decoded:
        if self._to_say is not None:
            write_request(self._in, self._to_say)
            self._to_say = None
        write_request(self._in, raw)
        return read_answer(self._out)

    def end(self) -> int:
        """Stop it now; how it ended, as `subprocess` says it."""
        self._process.kill()
        return self._process.wait()

    def close(self) -> None:
        """Let go of the pipes, when no thread uses them any more."""
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):
                pipe.close()


def _widen(pipe: IO[bytes]) -> None:
    """Fewer turns between the two ends of a pipe, where the system can."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
