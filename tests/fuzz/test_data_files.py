"""Image lists, class files, sets.json, npz and parquet of strangers, and images themselves."""

import io
import json
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from tulip_ood.data.batches import batches
from tulip_ood.data.opening import open_sources, read_classes
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.root import Root
from tulip_ood.data.row_names import row_names

from .fence import fuzz, held, survives
from .hostile import HOSTILE, damaged, one_changed

PREPARED = Preprocess(8, 8, (0.5,) * 3, (0.5,) * 3)


def picture(kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (12, 10, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def read(file: Path) -> None:
    """Everything that is read of a source."""
    source = open_sources([str(file)])
    labels = source.labels()
    for _ in range(20):
        next(labels, None)
    for batch in batches(source, None if source.ready else PREPARED, batch_size=4, stop=8):
        assert batch.size
    next(source.files(), None)


def packed(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def table(columns: dict[str, Any], **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, **options)
    return out.getvalue()


IMAGES = [{"bytes": picture(), "path": "a.png"}, {"bytes": None, "path": "b.png"}, None]
SEEDS = {
    "list.txt": b"cat/1.png 0\ndog 2.png 1\nbird.png -1\nx.png\n",
    "images.npz": packed(x=np.zeros((3, 4, 4, 3), np.uint8), y=np.arange(3), path=["a", "b", "c"]),
    "ready.npz": packed(x=np.zeros((3, 2), np.float32), y=np.zeros(3)),
    "set.parquet": table({"image": IMAGES, "label": [0, -1, None]}),
    "plain.parquet": table({"img": [picture(), b"", None]}, compression="none"),
}


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_whole_files_are_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(SEEDS[name])
    assert survives(lambda: read(tmp_path / name)) is None


@fuzz(4)
@given(data=st.data(), name=st.sampled_from(sorted(SEEDS)))
def test_damage(data: Any, name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(data.draw(damaged(SEEDS[name])))
    survives(lambda: read(file))
    if not name.endswith(".txt"):
        survives(lambda: row_names(str(file)))


@fuzz(2)
@given(content=st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
@example(content=b"a.png " + b"9" * 5000)
@example(content=b"a.png " + b"9" * 30)
@example(content=b"a.png -" + b"9" * 30)
def test_lists_and_class_files(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_bytes(content)
    survives(lambda: read(file))
    survives(lambda: read_classes(str(file)))


# ------------------------------------------------------------------------------- npz

DTYPES = ("u1", "i8", "u8", "f2", "f8", "c16", "?", "U3", "S2", "M8[s]", "O", "i4,f4", "f4")
shapes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 8]), max_size=5)


@fuzz(1)
@given(x=st.sampled_from(DTYPES), y=st.sampled_from(DTYPES), shape=shapes, labels=shapes)
def test_arrays_of_every_kind(
    x: str, y: str, shape: list[int], labels: list[int], tmp_path: Path
) -> None:
    file = tmp_path / "x.npz"
    path = np.zeros(shape[:1], y)
    np.savez(file, x=np.zeros(shape, x), y=np.zeros(labels, y), path=path)
    survives(lambda: read(file))
    survives(lambda: row_names(str(file)))


def npy(shape: tuple[int, ...], data: bytes) -> bytes:
    out = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, about)
    return out.getvalue() + data


@pytest.mark.parametrize("shape", [(2**40, 8, 8, 3), (2**62,), (-3, 4), (2**31, 2**31, 2**31)])
def test_an_array_that_claims_terabytes(shape: tuple[int, ...], tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    with zipfile.ZipFile(file, "w") as out:
        out.writestr("x.npy", npy(shape, bytes(100)))
    assert survives(lambda: read(file))


def test_an_array_that_unpacks_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tulip_ood.data.npz._ALWAYS", 16 << 20)  # a real one would take long
    file = tmp_path / "x.npz"
    np.savez_compressed(file, x=np.zeros((17, 1024, 1024), np.uint8))
    assert "attack on the memory" in (survives(lambda: read(file)) or "")
    np.savez(file, x=np.zeros((17, 1024, 1024), np.uint8))
    assert survives(lambda: read(file)) is None


# --------------------------------------------------------------------------- parquet

columns = st.sampled_from(
    [
        pa.array([b"x", None]),
        pa.array(["x", "y"]),
        pa.array([1, 2]),
        pa.array([2**63, 1], pa.uint64()),
        pa.array([1.5, float("nan")]),
        pa.array([[1], []]),
        pa.array([True, None]),
        pa.array([None, None]),
        pa.array([{"bytes": b"x"}, None]),
        pa.array([{"bytes": b"x", "path": 3}, {"bytes": None, "path": 4}]),
        pa.array([{"bytes": None, "path": "a\0b"}, {"bytes": None, "path": "/dev/zero"}]),
        pa.array([{"bytes": "x", "path": "y"}, None]),
        pa.array([{"path": "y"}, None]),
        pa.array([b"abc", None], pa.binary(3)),
        pa.array([b"x", None], pa.large_binary()),
        pa.array(["x", "x"]).dictionary_encode(),
        pa.array([0, 1], pa.timestamp("s")),
        pa.array([1, 2], pa.decimal128(5, 2)),
    ]
)
names = st.sampled_from(["image", "img", "label", "labels", "fine_label", "other", "\0"])


@fuzz(2)
@given(found=st.dictionaries(names, columns, min_size=1, max_size=4), about=HOSTILE)
def test_columns_of_every_kind(found: dict[str, Any], about: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    info = {"info": {"features": {"label": {"names": about}}}}
    made = pa.table(found).replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(made, file)
    survives(lambda: read(file))
    survives(lambda: row_names(str(file)))


def test_class_names_nested_without_end(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    made = pa.table({"image": [picture()]}).replace_schema_metadata({"huggingface": "[" * 10**5})
    pq.write_table(made, file)
    assert survives(lambda: read(file)) is None


# ------------------------------------------------------------------ sets.json and folders

SETS = {
    "cifar10": {"test": {"file": "ten.npz", "list": "none", "stand_in": None}},
    "svhn": {"file": "ten.npz", "list": "path", "lists": "imglist"},
}


@fuzz(1)
@given(sets=one_changed(SETS) | HOSTILE)
def test_sets(sets: Any, tmp_path: Path) -> None:
    x = np.zeros((20, 4, 4, 3), np.uint8)
    np.savez(tmp_path / "ten.npz", x=x, y=np.arange(20) % 2)
    (tmp_path / "sets.json").write_text(json.dumps(sets))
    for role in ("val", "test", "ood_val", "svhn"):
        survives(lambda role=role: Root.open(tmp_path).part("cifar10", role))


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**5, "\udcff", "9" * 5000])
def test_sets_that_are_no_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "sets.json").write_text(text, errors="surrogateescape")
    assert survives(lambda: Root.open(tmp_path))


@pytest.mark.parametrize("name", ["pipe.txt", "pipe.npz", "pipe.parquet"])
def test_what_never_ends_is_not_begun(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    assert "regular" in (survives(lambda: read(tmp_path / name)) or "")
    zero = tmp_path / f"zero-{name}"
    zero.symlink_to("/dev/zero")
    assert "regular" in (survives(lambda: read(zero)) or "")


# ---------------------------------------------------------------------------- images

KINDS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO")


@fuzz(2)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_a_damaged_image_is_a_row_with_a_reason(data: Any, kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(data.draw(damaged(picture(kind))))
    (tmp_path / "b.png").write_bytes(picture())
    (batch,) = batches(open_sources([str(tmp_path)]), PREPARED, batch_size=4)
    assert batch.size == 2
    assert all(error.reason for error in batch.errors)


@pytest.mark.parametrize(("width", "height"), [(60_000, 60_000), (80_000_000, 1)])
def test_an_image_that_unpacks_without_end(width: int, height: int, tmp_path: Path) -> None:
    row = b"\0" * (1 + width)
    (tmp_path / "a.png").write_bytes(png(width, height, row))
    before = held()
    (batch,) = batches(open_sources([str(tmp_path)]), PREPARED, batch_size=4)
    assert "more than the limit" in batch.errors[0].reason
    assert held() - before < 400 << 20


def png(width: int, height: int, row: bytes) -> bytes:
    """A greyscale PNG whose header promises more than its one row."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    about = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(row, 1)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", about) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )
