"""`tulip_ood.cluster.score`: a table of scores, made by many machines, every row exactly once.

Ray gives workers, not promises. The promise rests on four things: shards are fixed ranges of rows;
a shard's part of the table is a pure function of the job; one process alone lets parts appear, by
renaming, under a lock; and at the end every row's number is checked. So whatever dies, what is
there is right, and what is missing is made again.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tulip_ood.cluster.job import PART_ROWS, Job, Model, prepare
from tulip_ood.cluster.pool import Limits, Pool
from tulip_ood.cluster.worker import order_for
from tulip_ood.data.summary import Summary, summarise
from tulip_ood.errors import ClusterError, InputError, in_one_line, kind_and_text
from tulip_ood.models.extras import import_extra

__all__ = ["connected", "import_ray", "is_ours", "limits_for", "score", "score_on_ray"]

_BEGINNINGS = 4  # times that Ray may time out while it starts
_PATIENCE = 10.0  # seconds for a cluster's address to answer
_STORE = 0.5  # of Ray's object store may be full of decoded images
_DECODERS = 8  # a GPU: as many processors as it takes to keep one busy with photographs


def score(
    detector: str | os.PathLike[str],
    inputs: str | Sequence[str],
    out: str | os.PathLike[str],
    *,
    model: Model | None = None,
    trust: bool = False,
    classes: Sequence[str] | None = None,
    root: str | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    part_rows: int = PART_ROWS,
    partitioned: bool = False,
    overwrite: bool = False,
    address: str | None = None,
    actors: int | None = None,
    decoders: int | None = None,
    done: Callable[[int], None] | None = None,
) -> Summary:
    """Score inputs on a Ray cluster; call it again with the same arguments to go on after a kill.

    Args:
        detector: What `tulip calibrate` or `detector.save` wrote; workers get its bytes.
        inputs: Folders, image lists, parquet, npz or images; paths that all machines see, or URIs.
        out: The parquet file to write, or a folder if `partitioned`, which may be a URI.
        model: The network's spec, or a function that makes it; by default the file's own spec.
        trust: Whether a `.pt2` network may be opened although it can run code.
        classes: The names of the classes in the network's order, for class folders.
        root: What the paths in image lists are relative to.
        batch_size: Inputs in one forward pass.
        device: "cuda": a worker for each GPU. None or "cpu": one for each processor.
        part_rows: Rows in a shard.
        partitioned: Whether the table stays in parts.
        overwrite: Replace what another run has written there.
        address: The Ray cluster ("auto": the one that runs on this machine); by default the one
            that is connected or that `RAY_ADDRESS` names, else a new one here.
        actors: Workers that hold the network; by default as many as there are devices.
        decoders: Processes that only decode; 0 if the workers decode themselves, which is the
            default on processors.
        done: Called with a number of rows that are in the table.

    Returns:
        What the table comes to.

    Example:
        >>> score("nowhere.safetensors", ["cats"], "scores.parquet")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.FileFormatError: there is no detector file nowhere.safetensors
    """
    job = prepare(
        detector,
        inputs,
        out,
        model=model,
        trust=trust,
        classes=classes,
        root=root,
        batch_size=batch_size,
        device=device,
        part_rows=part_rows,
        partitioned=partitioned,
    )
    parts = job.parts
    with parts.alone():
        if not parts.finished():
            if not overwrite:
                parts.check()
            import_ray()
            parts.prepare()
            missing = parts.missing()
            score_on_ray(
                job, missing, done or _ignore, address=address, actors=actors, decoders=decoders
            )
            parts.merge()
        elif parts.begun():  # killed between the last two steps
            parts.tidy()
    return summarise(parts.out)


def _ignore(rows: int) -> None:
    """Nobody asked."""


def score_on_ray(
    job: Job,
    missing: Sequence[int],
    done: Callable[[int], None],
    *,
    address: str | None = None,
    actors: int | None = None,
    decoders: int | None = None,
) -> None:
    """Score the missing parts of a job's table on a cluster.

    Args:
        job: What is scored.
        missing: Which parts.
        done: Called with the number of rows of every part that is there.
        address: As for `score`, like all that follows.
        actors: Workers that hold the network.
        decoders: Processes that only decode.

    Example:
        >>> from inspect import signature
        >>> "address" in signature(score_on_ray).parameters
        True
    """
    if not missing:
        return

    def put(index: int, content: bytes) -> None:
        job.parts.put(index, content)
        done(len(job.parts.range_of(index)))

    with connected(address, (actors or 0) + (decoders or 0)) as ray:
        limits = limits_for(job, ray.cluster_resources(), actors, decoders)
        pool = Pool(ray, order_for(job), limits)
        try:
            pool.run(iter(missing), lambda index: _shard(job, index), put)
        except ray.exceptions.RayError as error:
            raise ClusterError(
                f"the cluster cannot be used any more ({kind_and_text(error)}); what is "
                f"finished is kept in {job.parts.folder}: run the same command again to go on"
            ) from error


def _shard(job: Job, index: int) -> Any:
    rows = job.parts.range_of(index)
    return job.source.shard(rows.start, rows.stop)


def limits_for(
    job: Job, resources: dict[str, float], actors: int | None = None, decoders: int | None = None
) -> Limits:
    """How much of a job runs at once on a cluster with these resources.

    Args:
        job: What is scored.
        resources: What the cluster has, as `ray.cluster_resources()` says it.
        actors: As the user wishes.
        decoders: As the user wishes.

    Example:
        >>> from pathlib import Path
        >>> import pyarrow as pa
        >>> from tulip_ood.data.parts import Parts
        >>> from tulip_ood.data.source import ImageFiles
        >>> parts = Parts(Path("x.parquet"), pa.schema([]), {}, rows=1, part_rows=1024)
        >>> source = ImageFiles("x", ["a.png"], [None])
        >>> job = Job("d.safetensors", "vit-b-16", False, ("x",), source, None, 256, "cuda", parts)
        >>> limits_for(job, {"CPU": 64.0, "GPU": 4.0}).ahead
        40
    """
    if (actors is not None and actors < 1) or (decoders is not None and decoders < 0):
        raise InputError(f"expected actors ≥ 1 and decoders ≥ 0, got {actors} and {decoders}")
    on_gpu = job.device is not None and job.device.startswith("cuda")
    processors = int(resources.get("CPU", 1))
    if on_gpu:
        actors = actors or max(1, int(resources.get("GPU", 1)))
        if decoders is None:
            decoders = max(1, min(_DECODERS * actors, processors))
    else:
        decoders = decoders or 0
        actors = actors or max(1, processors - decoders)
    ahead = 2 * actors + decoders
    prepared = job.preprocess
    if decoders and prepared is not None and prepared.crop is not None:
        shard = job.parts.part_rows * prepared.crop**2 * len(prepared.mean)
        fits = int(_STORE * resources.get("object_store_memory", 0.0) / shard)
        ahead = max(actors, min(ahead, fits))
    needs = {"num_gpus": 1.0, "num_cpus": 0.0} if on_gpu else {"num_cpus": 1.0}
    return Limits(actors, decoders, ahead, needs)


def import_ray() -> Any:
    """Ray, or one line that says how to get it.

    Example:
        >>> from importlib.util import find_spec
        >>> find_spec("ray") is None or import_ray().__name__ == "ray"
        True
    """
    return import_extra("ray", extra="ray", spec="the engine ray")


def is_ours(address: str | None) -> bool:
    """Whether a cluster is begun here and ends with this process.

    Args:
        address: As for `score`.

    Example:
        >>> is_ours("ray-head:6379")
        False
    """
    begun = address is not None or "RAY_ADDRESS" in os.environ
    return not begun and not import_ray().is_initialized()


@contextmanager
def connected(address: str | None, processors: int) -> Iterator[Any]:
    """Ray, connected: as the caller has done it, or for as long as this takes.

    Args:
        address: The cluster; None for one of our own.
        processors: How many that should have at least.

    Example:
        >>> connected.__name__
        'connected'
    """
    ray, ours = import_ray(), is_ours(address)
    if ray.is_initialized():
        yield ray
        return
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if ours:  # not one that happens to run here
        how |= {"address": "local", "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
        how["num_cpus"] = max(os.cpu_count() or 1, processors)
    else:
        how["address"] = address or os.environ.get("RAY_ADDRESS", "auto")
        _check_reachable(how["address"])
    _begin(ray, how)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray waits for minutes where nobody listens."""
    host, _, port = address.partition("://")[2 if "://" in address else 0].rpartition(":")
    if not port.isdecimal():  # "auto", or another name that Ray knows
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"no Ray cluster answers at {address}: {error}. Is `ray start --head` running there?"
        ) from error


def _begin(ray: Any, how: dict[str, Any]) -> None:
    """Connect; on a busy machine Ray gives up on itself too early, and is asked again."""
    for left in reversed(range(_BEGINNINGS)):
        try:
            ray.init(**how)
            return
        except Exception as error:  # Ray raises plain ones, too
            ray.shutdown()
            if not left or "timed out" not in str(error):
                reason = in_one_line(error)
                if how["address"] != "local":
                    reason += ". Has the cluster a token? Set RAY_AUTH_MODE=token, RAY_AUTH_TOKEN=…"
                raise ClusterError(f"Ray cannot be reached or started: {reason}") from error
