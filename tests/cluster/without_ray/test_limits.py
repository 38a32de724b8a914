"""How much runs at once, and what is refused before anything runs."""

import socket
from pathlib import Path

import pyarrow as pa
import pytest

from tulip_ood.cluster.job import Job, prepare
from tulip_ood.cluster.scoring import _check_reachable, limits_for
from tulip_ood.data.parts import Parts
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.source import ImageFiles
from tulip_ood.errors import ClusterError, InputError

PHOTOGRAPHS = Preprocess(256, 224, (0.5,) * 3, (0.5,) * 3)


def job(device: str | None, part_rows: int = 1024) -> Job:
    parts = Parts(Path("x.parquet"), pa.schema([]), {}, rows=1, part_rows=part_rows)
    source = ImageFiles("x", ["a.png"], [None])
    return Job("d", "vit-b-16", False, ("x",), source, PHOTOGRAPHS, 256, device, parts)


def test_processors_decode_themselves() -> None:
    limits = limits_for(job(None), {"CPU": 16.0})
    assert (limits.actors, limits.decoders, limits.ahead) == (16, 0, 32)
    assert limits.resources == {"num_cpus": 1.0}


def test_a_worker_for_each_gpu_and_processors_that_decode() -> None:
    limits = limits_for(job("cuda"), {"CPU": 64.0, "GPU": 4.0, "object_store_memory": 100e9})
    assert (limits.actors, limits.decoders, limits.ahead) == (4, 32, 40)
    assert limits.resources["num_gpus"] == 1.0


def test_decoded_images_fill_half_of_the_object_store_at_most() -> None:
    """1,024 photographs are 154 MB."""
    resources = {"CPU": 64.0, "GPU": 4.0, "object_store_memory": 4e9}
    limits = limits_for(job("cuda"), resources)
    assert limits.ahead * 1024 * 224 * 224 * 3 <= 2e9
    assert limits_for(job("cuda", part_rows=100_000), resources).ahead == 4  # but one each


@pytest.mark.parametrize(("actors", "decoders"), [(0, None), (-1, 0), (1, -1)])
def test_nonsense_is_refused(actors: int, decoders: int | None) -> None:
    with pytest.raises(InputError, match="expected actors ≥ 1 and decoders ≥ 0"):
        limits_for(job(None), {"CPU": 2.0}, actors, decoders)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        prepare("d", ["x"], tmp_path / "gone" / "x.parquet")
    with pytest.raises(InputError, match="is a folder: name a file"):
        prepare("d", "x", tmp_path)
    with pytest.raises(InputError, match="at least one row"):
        prepare("d", "x", tmp_path / "x.parquet", part_rows=0)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_listens_is_said_at_once(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
        _check_reachable(f"{scheme}127.0.0.1:{port}")
    with pytest.raises(ClusterError, match=f"no Ray cluster answers at {scheme}127.0.0.1:{port}"):
        _check_reachable(f"{scheme}127.0.0.1:{port}")
    _check_reachable("auto")  # Ray knows whether there is one
