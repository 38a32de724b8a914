"""Logs, tables of scores, and what runs note for going on: whatever a stranger has put there."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given
from safetensors.torch import save_file
from torch import nn

from tulip_ood.benchmark.bench_folder import BenchFolder
from tulip_ood.data.parts import Parts, written_manifest
from tulip_ood.data.remote_parts import RemoteParts
from tulip_ood.errors import DataError, FileFormatError
from tulip_ood.models.training import TrainingRecipe, train
from tulip_ood.serving.monitoring import read_streams

from .fence import fuzz, survives
from .hostile import HOSTILE

DEEP = "[" * 200_000  # more than Python's own reader of JSON can follow
WHOLE = {"score": [0.5], "accepted": [True], "error": pa.array([None], pa.string())}


def table(path: Path, manifest: str, **other: Any) -> Path:
    columns = {name: values for name, values in (WHOLE | other).items() if values is not None}
    noted = pa.table(columns).replace_schema_metadata({"tulip.manifest": manifest})
    pq.write_table(noted, path)
    return path


def test_a_log_nested_without_end(tmp_path: Path) -> None:
    log = tmp_path / "scores.jsonl"
    log.write_text(f"{DEEP}\n" * 20)
    with pytest.raises(DataError, match="no JSON"):
        read_streams([log])


def test_a_whole_table_is_read(tmp_path: Path) -> None:
    (stream,) = read_streams([table(tmp_path / "x.parquet", '{"detector": "0123456789abcdef"}')])
    assert (stream.version, stream.scores, stream.accepted) == ("0123456789ab", [0.5], [True])


@pytest.mark.parametrize("manifest", [DEEP, "{}", "[]", "null", '{"detector": null}', "{"])
def test_tables_that_do_not_say_whose_they_are(manifest: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it says nothing of its detector"):
        read_streams([table(tmp_path / "x.parquet", manifest)])


@pytest.mark.parametrize(
    "other",
    [
        {"score": ["high"]},
        {"score": [[0.5]]},
        {"score": [float("nan")]},
        {"score": None},
        {"accepted": ["yes"]},
        {"accepted": pa.array([None], pa.bool_())},
        {"accepted": None},
        {"error": None},
    ],
)
def test_tables_of_something_else(other: dict[str, Any], tmp_path: Path) -> None:
    path = table(tmp_path / "x.parquet", '{"detector": "0123456789abcdef"}', **other)
    with pytest.raises(DataError, match="is no table of `tulip score`"):
        read_streams([path])


@fuzz(0.3)
@given(manifest=HOSTILE)
@example(manifest={"detector": {}})
def test_manifests(manifest: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("manifests")
    path = table(folder / "x.parquet", json.dumps(manifest))
    survives(lambda: read_streams([path]))


def test_notes_nested_without_end(tmp_path: Path) -> None:
    """What cannot be read is not ours, and is replaced only by one who asks for it."""
    path = table(tmp_path / "x.parquet", DEEP)
    assert written_manifest(path) is None
    schema = pa.schema([pa.field("row", pa.int64(), nullable=False)])
    with pytest.raises(DataError, match="not ours"):
        Parts(path, schema, {}, rows=1, part_rows=1).check()
    folder = tmp_path / "y.parquet.parts"
    folder.mkdir()
    (folder / "manifest.json").write_text(DEEP)
    assert not Parts(tmp_path / "y.parquet", schema, {}, rows=1, part_rows=1).begun()
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "_begun.json").write_text(DEEP)
    assert not RemoteParts(f"file://{tmp_path}/z", schema, {}, 1, 1, True).begun()


def test_benchmarks(tmp_path: Path) -> None:
    folder = BenchFolder(tmp_path)
    (tmp_path / "bench.json").write_text(DEEP)
    with pytest.raises(DataError, match="holds no benchmark"):
        folder.about()
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "a.json").write_text(DEEP)
    assert folder.cells() == {}
    pieces = tmp_path / "scores" / "net" / "svhn"
    pieces.mkdir(parents=True)
    for i, cells in enumerate(("5", "null", "[[]]", DEEP)):
        save_file({"x": torch.ones(1)}, pieces / f"{i:09d}-a.safetensors", {"cells": cells})
    assert set().union(*folder.scored("net", "svhn").values()) == set()


@pytest.mark.parametrize("kept", [b"", b"\0" * 64, None, DEEP, "[]", '{"history": 3}'])
def test_a_stopped_training_run(kept: bytes | str | None, tmp_path: Path) -> None:
    def stop(done: int, of: int, accuracy: float) -> None:
        raise KeyboardInterrupt

    def run(**more: Any) -> None:
        x, y = torch.zeros(8, 8, 8, 3, dtype=torch.uint8), torch.arange(8) % 2
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
        recipe = TrainingRecipe(epochs=2, batch_size=4)
        out = tmp_path / "net.safetensors"
        train(model, x, y, val=(x, y), out=out, recipe=recipe, device="cpu", **more)

    with pytest.raises(KeyboardInterrupt):
        run(save_every=1, progress=stop)
    (file,) = tmp_path.iterdir()
    if isinstance(kept, bytes):
        file.write_bytes(kept)
    else:
        save_file({"x": torch.ones(1)}, file, None if kept is None else {"tulip": kept})
    with pytest.raises(FileFormatError, match=file.name):
        run()
