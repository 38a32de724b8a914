"""`tulip serve`: a detector behind HTTP, and a page to try it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tulip_ood.cli import options
from tulip_ood.cli.failing import UsageError, as_usage
from tulip_ood.cli.score import Engine, check_engine

if TYPE_CHECKING:
    from torch import nn

    from tulip_ood.serving import Judge, Limits

__all__ = ["serve"]

_STOPPED = "stopped; everything that was asked is answered"


def serve(
    detector: Annotated[str, typer.Argument(help="What `tulip calibrate` wrote.")],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="SPEC", help="The network; as for `tulip calibrate`."),
    ] = None,
    trust: options.Trust = False,
    classes: options.Classes = None,
    device: options.Device = None,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="0 for any that is free.")
    ] = 8000,
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="TULIP_TOKEN", help="A token that clients must send."),
    ] = None,
    admin_token: Annotated[
        str | None,
        typer.Option(
            "--admin-token",
            envvar="TULIP_ADMIN_TOKEN",
            help="The token for a new threshold; default: the same. With neither, nobody may.",
        ),
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option("--shadow", metavar="FILE", help="A second detector: counted, never asked."),
    ] = None,
    shadow_model: Annotated[
        str | None,
        typer.Option("--shadow-model", metavar="SPEC", help="Its network; default: the same."),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option("--log", metavar="FILE", help="A line for every decision; no images."),
    ] = None,
    keep_images: Annotated[
        str | None,
        typer.Option("--keep-images", metavar="DIR", help="Keep the images; else none is kept."),
    ] = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="Here, or on Ray Serve (extra `ray-serve`).")
    ] = Engine.LOCAL,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Ray: how many hold the network (1).")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The Ray cluster; by default one on this machine."),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images scored together.")] = 32,
    wait: Annotated[
        float, typer.Option("--wait-ms", min=0, help="How long an image waits for others.")
    ] = 4.0,
    queue: Annotated[int, typer.Option("--queue", min=1, help="Images that may wait.")] = 512,
    images: Annotated[int, typer.Option("--max-images", min=1, help="Images in one request.")] = 64,
    megabytes: Annotated[
        int, typer.Option("--max-megabytes", min=1, help="Size of one request.")
    ] = 32,
    megapixels: Annotated[
        float, typer.Option("--max-megapixels", min=0.001, help="Size of one image.")
    ] = 64.0,
    seconds: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds for one request.")
    ] = 30.0,
) -> None:
    """Answer over HTTP: label, probabilities, score, p-value, decision, reason; and a page at /.

    Example:
        >>> from typer.testing import CliRunner
        >>> from tulip_ood.cli.app import app
        >>> CliRunner().invoke(app, ["serve", "no.safetensors"]).exit_code
        2
    """
    alone = {"--shadow": shadow, "--log": log, "--keep-images": keep_images}
    check_engine(engine, local=alone, ray={"--replicas": replicas, "--address": address})
    options.check_apart({"--log": log}, [detector, shadow, classes])
    with as_usage():
        from tulip_ood.data.opening import read_classes
        from tulip_ood.detectors.saving import read_header
        from tulip_ood.models.spec import load_model, spec_for

        header = read_header(detector)
        spec = spec_for(model, header, detector)
        names = None if classes is None else read_classes(classes)
        limits = _limits(batch, wait, queue, images, megabytes, megapixels, seconds)
    if engine is Engine.RAY:
        from tulip_ood.cluster.serving import serve as serve_on_ray

        _warn_of_strangers(host, token)
        serve_on_ray(
            detector,
            replicas=replicas or 1,
            model=spec,
            trust=trust,
            classes=names,
            device=device,
            host=host,
            port=port,
            token=token,
            admin_token=admin_token,
            limits=limits,
            address=address,
            ready=lambda url: typer.echo(f"listening on {url}"),
        )
        typer.echo(_STOPPED)
        return
    with as_usage():
        options.check_device(device)
        _check_uvicorn()
        network = load_model(spec, trust=trust).module
        beside = None
        if shadow is not None:
            beside = _shadow_network(shadow, shadow_model, header, network, trust)
    answering = _judge(detector, network, device, limits, names)
    in_shadow = None
    if shadow is not None and beside is not None:
        in_shadow = _judge(shadow, beside, device, limits, None)
    with as_usage():
        from tulip_ood.serving import application
        from tulip_ood.serving.running import serve as run

        app = application(
            answering.detector,
            preprocess=answering.preprocess,
            classes=answering.classes,
            version=answering.version,
            shadow=in_shadow,
            token=token,
            admin_token=admin_token,
            limits=limits,
            log=log,
            keep_images=keep_images,
        )
        _warn_of_strangers(host, token)
        run(app, host=host, port=port, ready=lambda url: typer.echo(f"listening on {url}"))
    typer.echo(_STOPPED)


def _warn_of_strangers(host: str, token: str | None) -> None:
    from tulip_ood.serving.running import is_loopback

    if not is_loopback(host) and token is None:
        typer.echo(
            f"{host} can be reached from other machines, and there is no --token: everyone who "
            f"reaches it may ask",
            err=True,
        )


def _check_uvicorn() -> None:
    from importlib.util import find_spec

    if find_spec("uvicorn") is None:
        raise UsageError("a server needs uvicorn: pip install 'tulip-ood[serve]'")


def _limits(
    batch: int,
    wait: float,
    queue: int,
    images: int,
    megabytes: int,
    megapixels: float,
    seconds: float,
) -> "Limits":
    from tulip_ood.serving import Limits

    return Limits(
        body=megabytes << 20,
        pixels=round(megapixels * 1e6),
        images=images,
        batch=batch,
        wait=wait / 1000,
        queue=max(queue, images),  # one request must fit in
        held=max(Limits.held, 4 * (megabytes << 20)),
        seconds=seconds,
    )


def _shadow_network(
    path: str, given: str | None, header: dict[str, Any], network: "nn.Module", trust: bool
) -> "nn.Module":
    """The network of a second detector; the same one where it was fitted on the same weights."""
    from tulip_ood.detectors.saving import read_header
    from tulip_ood.models.spec import load_model, spec_for

    other = read_header(path)
    if given is None and other["weights_sha256"] == header["weights_sha256"]:
        return network
    return load_model(spec_for(given, other, path, option="--shadow-model"), trust=trust).module


def _judge(
    path: str,
    network: "nn.Module",
    device: str | None,
    limits: "Limits",
    names: "tuple[str, ...] | None",
) -> "Judge":
    """A detector file as a server uses it; logs call it by the hash of the file."""
    from tulip_ood.data.parts import digest_of_file
    from tulip_ood.detectors.saving import load
    from tulip_ood.serving import Judge

    ready = load(path, network, device=device, batch_size=limits.batch)
    return Judge(ready, classes=names, version=digest_of_file(path)[:12])
