"""Folders, lists, parquet, arrays: order, labels, and clear words about what does not fit."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tulip_ood.data.arrays import Arrays
from tulip_ood.data.folder import open_folder
from tulip_ood.data.imagelist import open_list, parse_line
from tulip_ood.data.opening import open_sources, read_classes
from tulip_ood.data.parquet import Parquet
from tulip_ood.data.source import Source
from tulip_ood.errors import DataError

Make = Callable[[dict[str, bytes]], Path]


def names_and_labels(source: Source, folder: Path) -> list[tuple[str, object]]:
    return [(os.path.relpath(row.path, folder), row.label) for row, _ in source.read()]


# ------------------------------------------------------------------------- folders


def test_class_folders_are_numbered_in_sorted_order(make_folder: Make) -> None:
    folder = make_folder(
        {
            "dog/b.png": b"",
            "dog/a.JPG": b"",
            "cat/deep/x.png": b"",
            "cat/notes.txt": b"",
            ".h/a.png": b"",
        }
    )
    (folder / "ant").mkdir()  # empty, but still a class
    source = open_folder(str(folder))
    assert source.classes == ("ant", "cat", "dog")
    assert names_and_labels(source, folder) == [
        ("cat/deep/x.png", 1),
        ("dog/a.JPG", 2),
        ("dog/b.png", 2),
    ]


def test_classes_override_the_order_and_unknown_names_have_no_label(make_folder: Make) -> None:
    folder = make_folder({"dog/a.png": b"", "cat/a.png": b"", "eel/a.png": b""})
    source = open_folder(str(folder), ["eel", "dog"])
    assert list(source.labels()) == [None, 1, 0]
    assert list(open_folder(str(folder), ["0", "1"]).labels()) == [None] * 3


def test_a_run_that_writes_beside_the_images_is_no_class(make_folder: Make) -> None:
    folder = make_folder(
        {"dog/a.png": b"", "a.parquet.parts/manifest.json": b"{}", "b.parts/a.png": b""}
    )
    assert open_folder(str(folder)).classes == ("b.parts", "dog")


def test_a_flat_folder_has_no_labels(make_folder: Make) -> None:
    source = open_folder(str(make_folder({"b.png": b"", "a.png": b"", "readme.md": b""})))
    assert source.classes is None
    assert list(source.labels()) == [None, None]


def test_images_beside_class_folders_have_no_label(make_folder: Make) -> None:
    folder = make_folder({"stray.png": b"", "cat/a.png": b""})
    assert names_and_labels(open_folder(str(folder)), folder) == [
        ("stray.png", None),
        ("cat/a.png", 0),
    ]


def test_links_are_followed_and_loops_end(make_folder: Make) -> None:
    folder = make_folder({"cat/a.png": b"", "other/b.png": b""})
    (folder / "cat" / "up").symlink_to(folder)
    (folder / "cat" / "self").symlink_to(folder / "cat")
    (folder / "cat" / "more").symlink_to(folder / "other")
    (folder / "cat" / "broken.png").symlink_to(folder / "nowhere")
    (folder / "cat" / "loop.png").symlink_to(folder / "cat" / "loop.png")
    found = names_and_labels(open_folder(str(folder)), folder)
    assert [name for name, _ in found] == [
        "cat/a.png", "cat/broken.png", "cat/loop.png", "cat/more/b.png", "other/b.png",
    ]  # fmt: skip


def test_a_hundred_thousand_files_in_one_folder(tmp_path: Path) -> None:
    for i in range(100_000):
        os.close(os.open(f"{tmp_path}/{i}.png", os.O_CREAT))
    source = open_folder(str(tmp_path))
    assert len(source) == 100_000
    assert sum(1 for _ in source.files()) == 100_000


def test_a_folder_without_images_says_what_it_holds(make_folder: Make) -> None:
    with pytest.raises(DataError, match=r"\.heic"):
        open_folder(str(make_folder({"a.heic": b""})))


# --------------------------------------------------------------------------- lists

path_text = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=12
).map(lambda text: f"d/{text}.png")


@given(st.lists(st.tuples(path_text, st.none() | st.integers(-1, 10**6)), min_size=1, max_size=20))
def test_a_list_reads_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int | None]]
) -> None:
    file = tmp_path_factory.mktemp("list") / "list.txt"
    lines = [path if label is None else f"{path} {label}" for path, label in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = open_list(str(file), root="/r")
    assert [row.path for row, _ in source.read()] == [f"/r/{path}" for path, _ in rows]
    assert list(source.labels()) == [None if label in (None, -1) else label for _, label in rows]


@given(st.text())
def test_no_line_breaks_the_parser(text: str) -> None:
    try:
        line = parse_line(text)
    except DataError as error:
        assert "label" in str(error)
        return
    assert (line is None) == (not text.strip())


def test_blanks_in_paths_windows_ends_and_odd_bytes(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_bytes(
        b"\xef\xbb\xbfmy cat 1.png 3\r\n\r\n  b.png\t-1\r\n\xff\xfe.png 0\r\n/abs/c.png"
    )
    source = open_list(str(file))
    assert list(source.labels()) == [3, None, 0, None]
    paths = [row.path for row, _ in source.read()]
    assert paths[0] == str(tmp_path / "my cat 1.png")
    assert os.fsencode(paths[2]) == os.fsencode(tmp_path) + b"/\xff\xfe.png"
    assert paths[3] == "/abs/c.png"


def test_a_list_stamps_itself_first(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text("a.png 0\n")
    assert [stamp.path for stamp in open_list(str(file)).files()] == [
        str(file),
        str(tmp_path / "a.png"),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\n\n", "names no images"),
        (b"a.png 0\nb.png -7\n", "line 2.*-7"),
        (b"a\0b 1\n", "not a text"),
    ],
)
def test_a_bad_list_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "list.txt"
    file.write_bytes(content)
    with pytest.raises(DataError, match=words):
        open_list(str(file))


# ------------------------------------------------------------------------- parquet


def hugging_face(rows: int) -> pa.Table:
    images = [
        {"bytes": f"{i}".encode(), "path": f"p/{i}.png" if i % 2 else None} for i in range(rows)
    ]
    return pa.table({"image": images, "label": [i % 4 - 1 for i in range(rows)]})


@given(first=st.integers(0, 30), count=st.integers(0, 30), group=st.integers(1, 12))
def test_any_range_of_a_parquet_file(
    tmp_path_factory: pytest.TempPathFactory, first: int, count: int, group: int
) -> None:
    file = str(tmp_path_factory.getbasetemp() / f"groups-{group}.parquet")
    if not os.path.exists(file):
        pq.write_table(hugging_face(25), file, row_group_size=group)
    source = Parquet(file)
    found = list(source.read(first, first + count))
    assert [row.number for row, _ in found] == list(range(25))[first : first + count]
    assert [raw for _, raw in found] == [f"{row.number}".encode() for row, _ in found]
    for row, _ in found:
        assert row.label == (None if row.number % 4 == 0 else row.number % 4 - 1)
        assert row.path == (f"p/{row.number}.png" if row.number % 2 else f"{file}#{row.number}")


def test_a_long_parquet_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """Arrow would fetch every row group that will be asked for before the first row comes out."""
    rng, file = np.random.default_rng(0), str(tmp_path / "lake.parquet")
    table = pa.table({"image": [rng.bytes(100_000) for _ in range(400)]})
    pq.write_table(table, file, row_group_size=20)
    del table
    before, most = pa.total_allocated_bytes(), 0
    for row, raw in Parquet(file).read():
        assert isinstance(raw, bytes)
        if row.number % 10 == 0:
            most = max(most, pa.total_allocated_bytes() - before)
    assert most < 10 * 2_000_000  # of 40 MB in twenty row groups


def test_plain_binary_null_images_and_paths_without_bytes(tmp_path: Path) -> None:
    plain, files = str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")
    pq.write_table(pa.table({"img": pa.array([b"x", None])}), plain)
    assert [raw for _, raw in Parquet(plain).read()] == [b"x", None]
    assert list(Parquet(plain).labels()) == [None, None]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({"image": pa.array([{"bytes": None, "path": "x.png"}], kind)}), files)
    assert [raw for _, raw in Parquet(files).read()] == [str(tmp_path / "x.png")]


def test_class_names_from_hugging_face(tmp_path: Path) -> None:
    info = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    file = str(tmp_path / "a.parquet")
    table = hugging_face(3).replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, file)
    assert Parquet(file).classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"x": [1]}, "no column image or img"),
        ({"image": ["text"]}, "expected encoded images"),
        ({"image": [b"x"], "label": ["cat"]}, "not class numbers"),
        ({"image": pa.array([], pa.binary())}, "no rows"),
    ],
)
def test_other_parquet_is_refused(tmp_path: Path, table: dict[str, object], words: str) -> None:
    file = str(tmp_path / "a.parquet")
    pq.write_table(pa.table(table), file)
    with pytest.raises(DataError, match=words):
        Parquet(file)


def test_images_of_which_none_has_a_path(tmp_path: Path) -> None:
    """pyarrow gives such a column the type null."""
    file = str(tmp_path / "x.parquet")
    images = [{"bytes": b"a", "path": None}, {"bytes": b"b", "path": None}]
    pq.write_table(pa.table({"image": images, "label": [0, 1]}), file)
    found = [(row.path, row.label, raw) for row, raw in Parquet(file).read()]
    assert found == [(f"{file}#0", 0, b"a"), (f"{file}#1", 1, b"b")]


def test_a_parquet_file_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    """As many rows as before, but other ones: they would be scored under the old one's name."""
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": [b"old"], "label": [0]}), file)
    source = Parquet(str(file))
    assert [raw for _, raw in source.read()] == [b"old"]
    pq.write_table(pa.table({"image": [b"new!"], "label": [1]}), tmp_path / "b.parquet")
    os.replace(tmp_path / "b.parquet", file)
    for read in (source.read, source.labels):
        with pytest.raises(DataError, match=r"a\.parquet was changed meanwhile"):
            list(read())


def test_a_parquet_file_that_is_cut_short(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(hugging_face(5), str(file))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match="cut short"):
        Parquet(str(file))


# -------------------------------------------------------------------------- arrays


@given(
    n=st.integers(1, 5),
    kind=st.sampled_from(["<f4", "<f8", "<f2"]),
    labels=st.lists(st.integers(-1, 9), min_size=5, max_size=5),
)
def test_floating_arrays_go_in_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, n: int, kind: str, labels: list[int]
) -> None:
    file = str(tmp_path_factory.getbasetemp() / "x.npz")
    x = np.random.default_rng(n).normal(size=(n, 3, 2, 2)).astype(kind)
    np.savez(file, x=x, y=np.array(labels[:n]))
    source = Arrays(file)
    assert source.ready
    assert list(source.labels()) == [None if label == -1 else label for label in labels[:n]]
    for (row, raw), expected in zip(source.read(), x, strict=True):
        assert row.path == f"{file}#{row.number}"
        assert raw.dtype == np.float32
        np.testing.assert_array_equal(raw, expected.astype(np.float32))


def test_labels_of_other_tasks(tmp_path: Path) -> None:
    file = str(tmp_path / "x.npz")
    np.savez(file, x=np.zeros((2, 3), dtype=np.float32), y=np.array([-1.0, 2.5]))
    assert list(Arrays(file).labels()) == [-1.0, 2.5]  # a number, not a class
    np.savez(file, x=np.zeros((2, 3), dtype=np.float32), y=np.array([[0, 1], [1, 1]]))
    assert [list(label) for label in Arrays(file).labels()] == [[0, 1], [1, 1]]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": np.zeros(3)}, "no array 'x'; it has a"),
        ({"x": np.zeros((2, 3, 8, 8), dtype=np.uint8)}, "looks like NCHW"),
        ({"x": np.zeros((2, 8), dtype=np.int64)}, "expected uint8"),
        ({"x": np.zeros((0, 3, 8, 8), dtype=np.float32)}, "no rows"),
        ({"x": np.zeros((2, 3), dtype=np.float32), "y": np.zeros(3)}, "every row needs one label"),
        ({"x": np.array([None, "a"], dtype=object)}, "holds Python objects"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, arrays: dict[str, object], words: str) -> None:
    file = str(tmp_path / "x.npz")
    np.savez(file, **arrays)
    with pytest.raises(DataError, match=words):
        Arrays(file)


def test_what_is_no_npz_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    for content in (b"", b"nonsense", b"PK\x03\x04 cut"):
        file.write_bytes(content)
        with pytest.raises(DataError, match="npz"):
            Arrays(str(file))
    with open(file, "wb") as opened:
        np.save(opened, np.zeros(3))
    with pytest.raises(DataError, match="not an npz"):
        Arrays(str(file))


# ------------------------------------------------------------------------- opening


def test_sources_one_after_another(make_folder: Make) -> None:
    folder = make_folder({"f/a.png": b"", "g/b.png": b"", "c.png": b"", "d.png": b""})
    source = open_sources(
        [str(folder / "f"), str(folder / "c.png"), str(folder / "d.png"), str(folder / "g")]
    )
    found = [(row.number, os.path.basename(row.path)) for row, _ in source.read(1, 4)]
    assert found == [(1, "c.png"), (2, "d.png"), (3, "b.png")]
    assert len(source) == 4
    assert len(list(source.files())) == len(list(source.labels())) == 4


def test_images_and_ready_arrays_do_not_mix(make_folder: Make) -> None:
    folder = make_folder({"f/a.png": b""})
    np.savez(folder / "x.npz", x=np.zeros((1, 3), dtype=np.float32))
    with pytest.raises(DataError, match="cannot go into one run"):
        open_sources([str(folder / "f"), str(folder / "x.npz")])


def test_folders_with_other_classes_need_the_order(make_folder: Make) -> None:
    folder = make_folder({"f/cat/a.png": b"", "g/dog/a.png": b""})
    both = [str(folder / "f"), str(folder / "g")]
    with pytest.raises(DataError, match="--classes"):
        open_sources(both)
    assert list(open_sources(both, classes=["dog", "cat"]).labels()) == [1, 0]


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "x.csv").touch()
    for name, words in (
        ("gone", "no file or folder"),
        ("gone.png", "no file"),
        ("x.csv", "expected a folder"),
    ):
        with pytest.raises(DataError, match=words):
            open_sources([str(tmp_path / name)])


def test_class_names(tmp_path: Path) -> None:
    file = tmp_path / "classes.txt"
    file.write_bytes(b"\xef\xbb\xbfdog \r\n\r\nsea lion\r\n")
    assert read_classes(str(file)) == ("dog", "sea lion")
    file.write_text("a\nb\na\n")
    with pytest.raises(DataError, match="'a' twice"):
        read_classes(str(file))


def test_labels_of_an_npz_file_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "words.npz"
    np.savez(path, x=np.zeros((2, 3), dtype=np.float32), y=np.array(["cat", "dog"]))
    with pytest.raises(DataError, match="labels must be numbers"):
        Arrays(str(path))
