"""Batches: in order, bounded, the same whatever the threads, cut where a resumed run will cut."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tulip_ood.data.arrays import Arrays
from tulip_ood.data.batches import batches
from tulip_ood.data.decoding import Raw
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.source import FileStamp, Label, Row, Source
from tulip_ood.errors import InputError

PREPROCESS = Preprocess(None, None, (0.0,), (1.0,))


class Pictures(Source):
    """Pictures whose first pixel is their number; some have another size, some are missing."""

    def __init__(
        self, n: int, odd: frozenset[int] = frozenset(), bad: frozenset[int] = frozenset()
    ):
        self.name = "pictures"
        self._n, self._odd, self._bad = n, odd, bad
        self.given = 0

    def __len__(self) -> int:
        return self._n

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[tuple[Row, Raw]]:
        for i in range(first, self._n if stop is None else stop):
            self.given += 1
            shape = (3, 5) if i in self._odd else (4, 4)
            raw = None if i in self._bad else np.full(shape, i, dtype=np.uint8)
            yield Row(i, f"{i}", i), raw

    def labels(self) -> Iterator[Label]:
        return iter(range(self._n))

    def files(self) -> Iterator[FileStamp]:
        return iter(())


@pytest.mark.parametrize("workers", [1, 4])
def test_rows_stay_in_order_and_go_together_as_the_arguments_say(workers: int) -> None:
    source = Pictures(23, odd=frozenset({8}), bad=frozenset({2, 3, 16}))
    found = list(
        batches(source, PREPROCESS, batch_size=4, first=1, stop=21, cut=10, workers=workers)
    )
    together = [sorted([r.number for r in b.rows] + [e.row for e in b.errors]) for b in found]
    assert together == [
        [1, 2, 3, 4], [5, 6, 7], [8], [9], [10, 11, 12, 13], [14, 15, 16, 17], [18, 19], [20],
    ]  # fmt: skip
    for batch in found:
        if batch.inputs is not None:
            numbers = (batch.inputs[:, 0, 0, 0] * 255).round().to(torch.int64).tolist()
            assert numbers == [row.number for row in batch.rows] == batch.labels
    errors = {e.row: e for b in found for e in b.errors}
    assert errors[2].reason == "there is no image in this row"
    assert [errors[row].label for row in (2, 3, 16)] == [
        2,
        3,
        16,
    ]  # the truth is known all the same


def test_a_resumed_run_makes_the_same_batches() -> None:
    source = Pictures(40, odd=frozenset({13, 14}), bad=frozenset({25}))
    whole = list(batches(source, PREPROCESS, batch_size=4, cut=10))
    for start in (10, 20, 30):
        again = list(batches(source, PREPROCESS, batch_size=4, first=start, cut=10))
        same = [b for b in whole if (b.rows or b.errors) and _first(b) >= start]
        assert [(b.rows, b.errors) for b in again] == [(b.rows, b.errors) for b in same]
        for a, b in zip(again, same, strict=True):
            assert (a.inputs is None) == (b.inputs is None)
            assert a.inputs is None or torch.equal(a.inputs, b.inputs)


def _first(batch: object) -> int:
    return min([r.number for r in batch.rows] + [e.row for e in batch.errors])  # type: ignore[attr-defined]


def test_reading_ahead_is_bounded() -> None:
    source = Pictures(200)
    stream = batches(source, PREPROCESS, batch_size=4, workers=2)
    for done in range(1, 6):
        next(stream)
        time.sleep(0.01)
        assert source.given <= 4 * (done + 4) + 2 * 2 + 2
    stream.close()


def test_threads_end_when_the_consumer_does() -> None:
    stream = batches(Pictures(200), PREPROCESS, batch_size=4)
    next(stream)
    assert any(t.name.startswith("tulip-decode") for t in threading.enumerate())
    stream.close()
    assert not any(t.name.startswith("tulip-decode") for t in threading.enumerate())


def test_ready_arrays_pass_through(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    found = list(batches(Arrays(str(tmp_path / "x.npz")), None, batch_size=2))
    assert [b.size for b in found] == [2, 2, 1]
    np.testing.assert_array_equal(torch.cat([b.inputs for b in found]).numpy(), x)


def test_images_need_to_be_prepared() -> None:
    with pytest.raises(InputError, match="say how they are prepared"):
        next(batches(Pictures(1), None, batch_size=1))
