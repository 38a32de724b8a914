"""All passes over a batch as one function of the batch: CUDA graphs and `torch.compile` are here.

A *round* is the base pass, the M noisy passes and the drift pass over one batch, with weights that
are held ready. On a GPU a round that comes again with as many rows is recorded once and replayed:
hundreds of kernels are then started by one call. Nothing of this happens on import, on a CPU, or
for a number of rows that has come only once.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from tulip_ood.errors import in_one_line
from tulip_ood.network.features import Head
from tulip_ood.network.forking import fork_safe_lock
from tulip_ood.network.measures import View
from tulip_ood.network.network import Output
from tulip_ood.network.partition import Partition, Weights

__all__ = ["Acceleration", "Round", "RoundOutput"]

_log = logging.getLogger("tulip_ood")
_WARM_UP = 2  # runs before a recording: libraries choose kernels and take memory in the first ones
_COMPILE_ROWS = 16  # a smaller batch is not worth compiling for
Values = list[tuple[Any, ...]]
_Kept = TypeVar("_Kept")


@dataclass(frozen=True)
class Acceleration:
    """What may be used on a GPU.

    Attributes:
        capture: Record rounds as CUDA graphs.
        compile: Compile both parts of the network with `torch.compile`.
        choose_kernels: Let cuDNN try its kernels and take the fastest.
        after: So many rounds with the same number of rows before one is recorded.

    Example:
        >>> Acceleration().capture, Acceleration().compile
        (True, False)
    """

    capture: bool = True
    compile: bool = False
    choose_kernels: bool = True
    after: int = 1


@dataclass(frozen=True)
class RoundOutput:
    """What a round gives, on the device.

    Attributes:
        base: The base pass.
        looked: What was found in it, by key.
        logits: Of the perturbed passes, [passes, N, …, o]; None if there are none.
        features: Of the perturbed passes, [passes, N, d], where asked for and there are any.
        heads: Their last linear layers, along with features.
        views: The passes of the views.

    Example:
        >>> base = Output(torch.zeros(2, 3), None, None)
        >>> RoundOutput(base, {}, None, None, (), ()).base.logits.shape
        torch.Size([2, 3])
    """

    base: Output
    looked: dict[str, Tensor]
    logits: Tensor | None
    features: Tensor | None
    heads: tuple[Head | None, ...]
    views: tuple[Output, ...]


class Round:
    """The passes of one perturbation through a partition. Any number of threads may call it.

    Args:
        partition: The network in two parts.
        weights: Of every pass, ready; the base pass first.
        acceleration: What may be used on a GPU.

    Example:
        >>> from tulip_ood.network.network import Network
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> partition = Partition.of(network, ["bias"], torch.rand(2, 4))
        >>> own = partition.weights()
        >>> made = Round(partition, [own, own, own])(torch.rand(5, 4))
        >>> made.base.logits.shape, made.logits.shape
        (torch.Size([5, 3]), torch.Size([2, 5, 3]))
    """

    def __init__(
        self,
        partition: Partition,
        weights: Sequence[Weights],
        acceleration: Acceleration | None = None,
    ) -> None:
        self.weights = list(weights)
        self._partition = partition
        self._acceleration = acceleration or Acceleration()
        self._on_gpu = partition.network.device.type == "cuda"
        self._captures = self._on_gpu and self._acceleration.capture
        self._seen: Counter[Any] = Counter()
        self._recorded: dict[Any, _Recorded] = {}
        self._pool: Any = None
        self._lock = fork_safe_lock()

    def __call__(
        self, inputs: Any, views: Sequence[View] = (), *, features: bool = False
    ) -> "RoundOutput":
        """All passes over a batch, on the device.

        Args:
            inputs: As the model takes them, of the kind that the partition is made for.
            views: Whose passes are made as well.
            features: Whether the features of the perturbed passes are kept.
        """
        return self._over(
            inputs,
            views,
            lambda values, size, rows: self._kept(
                [self._first_rows(one, size, rows) for one in values],
                rows,
                len(views),
                features,
            ),
        )

    def _first_rows(self, values: tuple[Any, ...], size: int, rows: int) -> tuple[Any, ...]:
        """As many rows as there were, of what inputs have a part in: all but the last layer."""
        weights = range(3, self._partition.outputs)
        return tuple(
            v if i in weights or not isinstance(v, Tensor) or len(v) != size else v[:rows]
            for i, v in enumerate(values)
        )

    def _kept(self, values: Values, rows: int, n_views: int, features: bool) -> "RoundOutput":
        """Copies: a recording writes to its memory again."""
        partition, passes = self._partition, len(values) - n_views
        own, *others = values[:passes]
        # Which token the logits are from is told by values: not asked where nobody wants it.
        moved = [partition.output(one, rows) for one in others] if features else []
        fed = [one.features for one in moved if one.features is not None]
        logits = [partition.network.task.outputs(one[0]) for one in others]
        return RoundOutput(
            base=_copied(partition.output(own, rows)),
            looked={key: found.clone() for key, found in partition.looked(own).items()},
            logits=torch.stack(logits) if logits else None,
            features=torch.stack(fed) if fed and len(fed) == len(others) else None,
            heads=tuple(one.head for one in moved),
            views=tuple(_copied(partition.output(one, rows)) for one in values[passes:]),
        )

    def _over(
        self,
        inputs: Any,
        views: Sequence[View],
        keep: Callable[[Values, int, int], _Kept],
    ) -> _Kept:
        """All passes; `keep` copies what is wanted of their values."""

        def run(handed: tuple[Tensor, ...]) -> Values:
            return self._partition.all_values(handed, self.weights, views)

        if not self._captures:
            handed = self._partition.handed(inputs)
            return keep(run(handed), len(handed[0]), len(handed[0]))
        brought = self._partition.brought(inputs)
        rows = len(brought[0])
        with self._lock:
            size = _size_for(rows)
            kind = (size, *(view.key for view in views))
            self._seen[kind] += 1
            if kind not in self._recorded and self._seen[kind] > self._acceleration.after:
                self._record(kind, run, _padded(self._partition.laid_out(brought), size))
            found = self._recorded.get(kind)
            if found is None:
                with _choosing(self._acceleration.choose_kernels):
                    return keep(run(self._partition.laid_out(brought)), rows, rows)
            # The recording's own memory is written to again by the next round.
            return keep(found(brought), size, rows)

    def _record(
        self,
        kind: Any,
        run: Callable[[tuple[Tensor, ...]], Values],
        handed: tuple[Tensor, ...],
    ) -> None:
        size = len(handed[0])
        compiles = self._acceleration.compile and size >= _COMPILE_ROWS
        for compiled in (True, False) if compiles else (False,):
            try:
                if self._pool is None:
                    self._pool = torch.cuda.graph_pool_handle()
                with _compiled(self._partition, compiled):
                    self._recorded[kind] = _Recorded(
                        run, handed, self._pool, self._acceleration.choose_kernels
                    )
                return
            except Exception as error:  # whatever goes wrong in there, plain calls will do
                reason = in_one_line(error)
                what = "compiled" if compiled else "recorded as a CUDA graph"
                _log.warning("passes of %d inputs could not be %s: %s", size, what, reason)
                torch.cuda.empty_cache()
        self._captures = False


class _Recorded:
    """A CUDA graph of a round, for one number of rows."""

    def __init__(
        self,
        run: Callable[[tuple[Tensor, ...]], Values],
        handed: tuple[Tensor, ...],
        pool: Any,
        choose_kernels: bool,
    ) -> None:
        self._handed = tuple(t.clone(memory_format=torch.preserve_format) for t in handed)
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with _choosing(choose_kernels):
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    run(self._handed)
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # what the warm-up took is the recording's now
            with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                self._values = run(self._handed)

    def __call__(self, brought: tuple[Tensor, ...]) -> Values:
        """With inputs of any layout and dtype: one copy changes both."""
        for mine, given in zip(self._handed, brought, strict=True):
            rows = len(given)
            mine[:rows].copy_(given, non_blocking=True)
            if rows < len(mine):
                mine[rows:].copy_(given[-1:].expand(len(mine) - rows, *given.shape[1:]))
        self._graph.replay()
        return self._values


@contextmanager
def _compiled(partition: Partition, on: bool) -> Iterator[None]:
    """Both parts run through `torch.compile` meanwhile."""
    before = [part.run for part in partition.parts]
    try:
        for part in partition.parts if on else ():
            part.run = torch.compile(part.run, dynamic=False, fullgraph=True)
        yield
    finally:
        for part, run in zip(partition.parts, before, strict=True):
            part.run = run


@contextmanager
def _choosing(on: bool) -> Iterator[None]:
    """cuDNN tries its kernels meanwhile."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = on or before
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _size_for(rows: int) -> int:
    """The next power of two, or a multiple of 64: few numbers of rows are recorded."""
    if rows > 64:
        return -(-rows // 64) * 64
    return 1 << (rows - 1).bit_length()


def _padded(handed: tuple[Tensor, ...], size: int) -> tuple[Tensor, ...]:
    """With the last row repeated: every row has an output of its own, whatever the others are."""
    more = size - len(handed[0])
    if not more:
        return handed
    return tuple(torch.cat([t, t[-1:].expand(more, *t.shape[1:])]) for t in handed)


def _copied(out: Output) -> Output:
    features = None if out.features is None else out.features.clone()
    return Output(out.logits.clone(), features, out.head)
