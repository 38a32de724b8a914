"""What comes next is made while the network works: by a thread, and on a GPU by a second stream."""

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tulip_ood.data.preprocess import Preprocess

__all__ = ["Delivery", "ahead"]

T = TypeVar("T")
DEPTH = 2  # batches that are ready and wait


class Delivery:
    """From pixels to inputs where the network is; to a GPU through pinned memory, beside its work.

    Args:
        preprocess: How pixels become inputs.
        device: Where they are wanted; anything but a GPU of CUDA leaves them on the CPU.

    Example:
        >>> deliver = Delivery(Preprocess(None, None, (0.5,), (0.5,)), None)
        >>> deliver(np.zeros((1, 2, 2, 1), dtype=np.uint8)).shape
        torch.Size([1, 1, 2, 2])
    """

    def __init__(self, preprocess: Preprocess, device: torch.device | None) -> None:
        self._preprocess = preprocess
        self._device = device if device is not None and device.type == "cuda" else None
        self._stream = None if self._device is None else torch.cuda.Stream(self._device)

    def __call__(self, pixels: NDArray[np.uint8]) -> Tensor:
        """The inputs; on a GPU perhaps not there yet, see `stamp` and `receive`."""
        if self._stream is None:
            return self._preprocess.normalise(pixels)
        pinned = torch.from_numpy(pixels).pin_memory()
        with torch.cuda.stream(self._stream):
            return self._preprocess.normalise(pinned, self._device)

    def stamp(self) -> Any:
        """What to wait for before using what was delivered last."""
        return None if self._stream is None else self._stream.record_event()

    def receive(self, inputs: Tensor | None, stamp: Any) -> None:
        """Let the stream that will use these inputs wait for them."""
        if stamp is not None and inputs is not None:
            now = torch.cuda.current_stream(inputs.device)
            now.wait_event(stamp)
            inputs.record_stream(now)  # their memory is not given away before it has used them


class _End(Generic[T]):
    """There is nothing more, perhaps because of an error."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(items: Iterator[T], stamp: Callable[[], Any] = lambda: None) -> Generator[tuple[T, Any]]:
    """The items with a stamp each, made by a thread of its own, at most two ahead.

    An error comes out where the item would have; nothing is left running afterwards.

    Args:
        items: A generator; it is closed when the consumer stops.
        stamp: Called in that thread after each item.

    Example:
        >>> [item for item, _ in ahead(iter("abc"))]
        ['a', 'b', 'c']
    """
    ready: queue.Queue[tuple[T, Any] | _End[T]] = queue.Queue(DEPTH)
    stopped = threading.Event()

    def put(what: tuple[T, Any] | _End[T]) -> None:
        while not stopped.is_set():
            try:
                ready.put(what, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                put((item, stamp()))
                if stopped.is_set():
                    break
        except BaseException as found:  # it belongs to whoever asked for the items
            error = found
        finally:
            if hasattr(items, "close"):
                items.close()
        put(_End(error))

    thread = threading.Thread(target=work, name="tulip-feed", daemon=True)
    thread.start()
    try:
        while True:
            found = ready.get()
            if isinstance(found, _End):
                if found.error is not None:
                    raise found.error
                return
            yield found
    finally:
        stopped.set()
        thread.join()
