"""The server of `tulip serve` on Ray Serve: the same application, in several replicas.

Every replica makes the network and loads the detector itself. What one of them is told the others
do not hear, so with more than one nobody may change the threshold over HTTP, and `/metrics` counts
what the replica that answers has seen.
"""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tulip_ood.cluster.job import Model, make_network
from tulip_ood.cluster.scoring import connected
from tulip_ood.cluster.worker import load_there
from tulip_ood.data.parts import digest_of_file
from tulip_ood.detectors.saving import read_header
from tulip_ood.errors import InputError
from tulip_ood.models.extras import import_extra
from tulip_ood.models.spec import spec_for
from tulip_ood.serving import Limits, application

__all__ = ["Replica", "serve"]

_NAME = "tulip"


@dataclass(frozen=True)
class Replica:
    """What a replica is told; called on its machine, it gives the application.

    Attributes:
        detector: The bytes of the detector's file.
        version: What it is called in answers.
        model: The network's spec, or a function that makes it.
        trust: Whether a `.pt2` file may be opened.
        classes: What the outputs mean; None for what the file says.
        device: Where passes run.
        token: What clients must send.
        admin_token: What a new threshold takes.
        limits: How much may be asked for.
        folder: Where the user stands.

    Example:
        >>> Replica(b"", "1", "vit-b-16", False, None, None, None, None, Limits(), ".").version
        '1'
    """

    detector: bytes
    version: str
    model: Model
    trust: bool
    classes: tuple[str, ...] | None
    device: str | None
    token: str | None
    admin_token: str | None
    limits: Limits
    folder: str

    def __call__(self) -> Any:
        """The application, on the machine of the replica."""
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        network = make_network(self.model, trust=self.trust)
        return application(
            load_there(self.detector, network, self.device, self.limits.batch),
            classes=self.classes,
            version=self.version,
            token=self.token,
            admin_token=self.admin_token,
            limits=self.limits,
        )


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
    wait: Callable[[str], None],
) -> None:
    """Serve a detector from several processes or machines, until `wait` returns.

    Args:
        detector: What `tulip calibrate` or `detector.save` wrote.
        replicas: How many; each holds the network and its perturbed weights.
        model: The network's spec, or a function that makes it; by default the file's own spec.
        trust: Whether a `.pt2` network may be opened although it can run code.
        classes: What the outputs mean; by default as the file says.
        device: "cuda": a GPU for each replica.
        host: The address to listen on; by default this machine alone.
        port: Where.
        token: A bearer token that clients must send.
        admin_token: The token for a new threshold, with one replica.
        limits: How much may be asked for, of each replica.
        address: The Ray cluster; as for `tulip_ood.cluster.score`.
        wait: Called with the server's address; the server stops when it returns.

    Example:
        >>> serve("nowhere.safetensors", replicas=0, wait=print)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: a server needs at least one replica, got 0
    """
    if replicas < 1:
        raise InputError(f"a server needs at least one replica, got {replicas}")
    path = os.fspath(detector)
    spec = model if callable(model) else spec_for(model, read_header(path), path)
    limits = limits or Limits()
    if replicas > 1:  # one that nobody knows: it would reach one replica of many
        admin_token = secrets.token_hex()
    replica = Replica(
        Path(path).read_bytes(), digest_of_file(path)[:12], spec, trust, classes, device, token,
        admin_token, limits, os.getcwd(),
    )  # fmt: skip
    on_gpu = device is not None and device.startswith("cuda")
    needs = {"num_gpus": 1, "num_cpus": 0} if on_gpu else {"num_cpus": 1}
    with connected(address, replicas + 1):
        on_ray = import_extra("ray.serve", extra="ray-serve", spec="the engine ray")
        on_ray.start(http_options={"host": host, "port": port})
        made = on_ray.deployment(
            on_ray.ingress(lambda: replica())(),
            name=_NAME,
            num_replicas=replicas,
            ray_actor_options=needs,
            max_ongoing_requests=limits.queue,
        )
        try:
            on_ray.run(made.bind(), name=_NAME, route_prefix="/")
            wait(f"http://{host}:{port}/")
        finally:
            on_ray.shutdown()
