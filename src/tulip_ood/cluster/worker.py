"""What runs on other machines: a scorer that holds the network, and decoding.

A worker is told plain values and bytes, no modules: it makes the network from its spec and loads
the detector's file, whose fingerprints then say whether it is the same network. It writes nothing.
"""

import hashlib
import os
import socket
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from tulip_ood.cluster.job import Job, Model, check_unchanged, make_network, versions
from tulip_ood.data.batches import Decoded, decoded_batches
from tulip_ood.data.parts import Parts
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.remote import is_remote
from tulip_ood.data.scores import check_fetched, scored
from tulip_ood.data.source import Shard
from tulip_ood.detectors.saving import load
from tulip_ood.errors import ClusterError

if TYPE_CHECKING:
    from tulip_ood.detectors.base import Detector

__all__ = ["Order", "Scorer", "decode", "load_there", "order_for"]


@dataclass(frozen=True)
class Order:
    """What a worker is told; made by `order_for`.

    Attributes:
        detector: The bytes of the detector's file, the same that the manifest has the hash of.
        model: The spec of the network, or a function that makes it.
        trust: Whether a `.pt2` file may be opened.
        batch_size: Inputs in one forward pass.
        device: Where passes run.
        preprocess: How images are prepared.
        parts: The table, for what a part looks like.
        folder: Where the user stands: relative paths begin here.
        places: Inputs that must be found there.
        folders: Where they lie, of what was there in the beginning.

    Example:
        >>> import pyarrow as pa
        >>> parts = Parts(Path("x.parquet"), pa.schema([]), {}, rows=1, part_rows=1024)
        >>> order = Order(b"", "vit-b-16", False, 64, None, None, parts, "/tmp", ())
        >>> order.batch_size
        64
    """

    detector: bytes
    model: Model
    trust: bool
    batch_size: int
    device: str | None
    preprocess: Preprocess | None
    parts: Parts
    folder: str
    places: tuple[str, ...]
    folders: tuple[str, ...] = ()

    def enter(self) -> None:
        """Stand where the user stands, and see what the user sees."""
        here = socket.gethostname()
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        for place in self.places:
            if not os.path.exists(place):
                raise ClusterError(
                    f"the machine {here} does not see {os.path.join(self.folder, place)}: put the "
                    f"inputs on a file system that all machines share, or name them by a URI (s3:…)"
                )
        wanted, found = self.parts.manifest["versions"], versions()
        if wanted != found:
            raise ClusterError(
                f"the machine {here} has {_listed(found)}, the job was begun with "
                f"{_listed(wanted)}: install the same versions everywhere"
            )


def _listed(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))


def order_for(job: Job) -> Order:
    """What workers are told of a job.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> from tulip_ood.data.source import ImageFiles
        >>> manifest = {"detector": hashlib.sha256(b"").hexdigest()}
        >>> parts = Parts(Path("x.parquet"), pa.schema([]), manifest, rows=1, part_rows=1024)
        >>> source = ImageFiles("x", ["a.png"], [None])
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     names = ("s3://bucket/cats", "dogs")
        ...     job = Job(file.name, "vit-b-16", False, names, source, None, 64, None, parts)
        ...     order_for(job).places
        ('dogs',)
    """
    content = Path(job.detector).read_bytes()
    check_unchanged(job, hashlib.sha256(content).hexdigest())
    return Order(
        detector=content,
        model=job.model,
        trust=job.trust,
        batch_size=job.batch_size,
        device=job.device,
        preprocess=job.preprocess,
        parts=job.parts,
        folder=os.getcwd(),
        places=tuple(name for name in job.names if not is_remote(name)),
        folders=job.folders,
    )


def load_there(
    detector: bytes, network: nn.Module, device: str | None, batch_size: int
) -> "Detector":
    """A detector from the bytes of its file, on a machine that need not have the file.

    Args:
        detector: The file's content.
        network: What it was fitted on.
        device: Where passes run.
        batch_size: Inputs in one forward pass.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.arange(200) % 3
        >>> model = nn.Linear(4, 3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tulip_ood.detectors.MSP(model).fit([(x, y)]).save(f"{folder}/d.safetensors")
        ...     content = Path(folder, "d.safetensors").read_bytes()
        >>> load_there(content, model, None, 64).name
        'msp'
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "detector.safetensors")
        file.write_bytes(detector)
        return load(file, network, device=device, batch_size=batch_size)


class Scorer:
    """Holds the network and its perturbed weights, and scores shard after shard.

    Args:
        order: What is to be done.

    Example:
        >>> import pyarrow as pa
        >>> parts = Parts(Path("x.parquet"), pa.schema([]), {}, rows=1, part_rows=1024)
        >>> order = Order(b"", "vit-b-16", False, 64, None, None, parts, "/tmp", ("/no/cats",))
        >>> try:
        ...     Scorer(order).start()
        ... except ClusterError as error:
        ...     print(str(error).partition(" does not see ")[2].partition(":")[0])
        /no/cats
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._detector: Detector | None = None

    def start(self) -> None:
        """Load everything; fails with a reason where construction could only fail."""
        order = self._order
        order.enter()
        self._detector = load_there(
            order.detector,
            make_network(order.model, trust=order.trust),
            order.device,
            order.batch_size,
        )

    def score(self, index: int, shard: Shard | list[Decoded]) -> bytes:
        """The part of the table that a shard gives, as a file's content."""
        if self._detector is None:
            raise ClusterError("this worker was not started: call start first")
        found = _decoded(self._order, shard) if isinstance(shard, Shard) else shard
        rows = []
        for decoded in found:
            rows += scored(self._detector, decoded.batch(self._order.preprocess))
        check_fetched(rows, self._order.folders)
        return self._order.parts.encode(index, rows)


def decode(order: Order, shard: Shard) -> list[Decoded]:
    """A shard's rows, decoded; for processes that do nothing else.

    Example:
        >>> import pyarrow as pa
        >>> from tulip_ood.data.source import ImageFiles
        >>> manifest = {"versions": versions()}
        >>> parts = Parts(Path("x.parquet"), pa.schema([]), manifest, rows=1, part_rows=1024)
        >>> prepared = Preprocess(8, 8, (0.5,) * 3, (0.5,) * 3)
        >>> order = Order(b"", "vit-b-16", False, 64, None, prepared, parts, "/tmp", ())
        >>> shard = ImageFiles("x", ["/no/such/a.png"], [None]).shard(0, 1)
        >>> decode(order, shard)[0].errors[0].reason
        'there is no such file'
    """
    order.enter()
    return list(_decoded(order, shard))


def _decoded(order: Order, shard: Shard) -> Iterable[Decoded]:
    """In the batches that the local engine makes of these rows."""
    return decoded_batches(
        shard,
        order.preprocess,
        batch_size=order.batch_size,
        cut=order.parts.part_rows,
    )
