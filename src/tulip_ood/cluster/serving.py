"""The server of `tulip serve` with its detector on Ray Serve, in several replicas.

The application itself runs here: it listens, checks tokens and limits, counts, and drains when it
is told to stop. Ray's own HTTP proxy is not used: it answers 500 when a replica dies, although
another one could have answered.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tulip_ood.cluster.job import Model
from tulip_ood.cluster.replica import Blueprint, Replica
from tulip_ood.cluster.replicas import Replicas
from tulip_ood.cluster.scoring import connected, is_ours
from tulip_ood.data.parts import digest_of_file
from tulip_ood.detectors.saving import read_header
from tulip_ood.errors import ClusterError, InputError
from tulip_ood.models.extras import import_extra
from tulip_ood.models.spec import spec_for
from tulip_ood.serving import Limits, Service
from tulip_ood.serving.running import listening
from tulip_ood.serving.running import serve as run
from tulip_ood.serving.tokens import Tokens

__all__ = ["serve"]

_STARTS = 3  # times that a replica may fail to start


def serve(
    detector: str | os.PathLike[str],
    *,
    replicas: int = 1,
    model: Model | None = None,
    trust: bool = False,
    classes: tuple[str, ...] | None = None,
    device: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    admin_token: str | None = None,
    limits: Limits | None = None,
    address: str | None = None,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a detector from several processes or machines, until SIGTERM or Ctrl-C.

    Args:
        detector: What `tulip calibrate` or `detector.save` wrote.
        replicas: How many; each holds the network and its perturbed weights.
        model: The network's spec, or a function that makes it; by default the file's own spec.
        trust: Whether a `.pt2` network may be opened although it can run code.
        classes: What the outputs mean; by default as the file says.
        device: "cuda": a GPU for each replica.
        host: The address to listen on; by default this machine alone.
        port: Where; 0 for any that is free.
        token: A bearer token that clients must send.
        admin_token: The token for a new threshold; by default the same.
        limits: How much may be asked for; the queue and the batches are those of each replica.
        address: The Ray cluster; as for `tulip_ood.cluster.score`.
        ready: Called with the server's address once it can be asked.

    Example:
        >>> serve("nowhere.safetensors", replicas=0)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: a server needs at least one replica, got 0
    """
    if replicas < 1:
        raise InputError(f"a server needs at least one replica, got {replicas}")
    path, tokens = os.fspath(detector), Tokens(token, admin_token)
    spec = model if callable(model) else spec_for(model, read_header(path), path)
    limits = limits or Limits()
    listening(host, port).close()  # what cannot be is said before Ray is started
    blueprint = Blueprint(
        Path(path).read_bytes(), digest_of_file(path)[:12], spec, trust, classes, device, limits,
        os.getcwd(),
    )  # fmt: skip
    on_gpu = device is not None and device.startswith("cuda")
    needs = {"num_gpus": 1.0, "num_cpus": 0.0} if on_gpu else {"num_cpus": 1.0}
    ours = is_ours(address)
    with connected(address, replicas + 1) as ray:
        on_ray = import_extra("ray.serve", extra="ray-serve", spec="the engine ray")
        with _deployed(on_ray, blueprint, replicas, needs, passing=ours) as handle:
            behind = Replicas(
                handle, _losses(ray, on_ray), limits, count=replicas, version=blueprint.version
            )
            asyncio.run(behind.begin())
            run(Service(behind, tokens), host=host, port=port, ready=ready)


@contextmanager
def _deployed(
    on_ray: Any, blueprint: Blueprint, replicas: int, needs: dict[str, float], *, passing: bool
) -> Iterator[Any]:
    """A handle of the replicas; unless the cluster ends with us, they are taken down again."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    on_ray.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
    name = f"tulip-{blueprint.version}-{secrets.token_hex(3)}"  # others may serve there, too
    made = on_ray.deployment(
        Replica,
        name="replica",
        num_replicas=replicas,
        ray_actor_options=needs,
        max_ongoing_requests=blueprint.limits.queue,
        max_constructor_retry_count=_STARTS,
    )
    try:
        try:
            handle = on_ray.run(made.bind(blueprint), name=name, route_prefix=None)
        except RuntimeError as error:
            raise ClusterError(f"the replicas do not start: {_reason(on_ray, name)}") from error
        yield handle
    finally:
        if not passing:
            on_ray.delete(name)
            if not on_ray.status().applications:
                on_ray.shutdown()


def _reason(on_ray: Any, name: str) -> str:
    """What a replica raised, without its traceback."""
    deployments = on_ray.status().applications[name].deployments
    said = [line.strip() for one in deployments.values() for line in one.message.splitlines()]
    named = [line for line in said if "Error: " in line]
    return str(([*said, *named] or ["see Ray's log"])[-1])[:500]


def _losses(ray: Any, on_ray: Any) -> Callable[[Exception], bool]:
    """Whether an error means that a replica was lost, not that it failed."""
    errors = ray.exceptions

    def is_lost(error: Exception) -> bool:
        if isinstance(error, errors.RayTaskError):
            return isinstance(error.cause, errors.RayError)
        return isinstance(error, errors.RayError | on_ray.exceptions.RayServeException)

    return is_lost
