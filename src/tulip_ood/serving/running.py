"""Running the application with uvicorn (extra `serve`): where, until when, and how it stops."""

import contextlib
import ipaddress
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tulip_ood.errors import InputError
from tulip_ood.serving.service import Service

__all__ = ["is_loopback", "serve"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    app: Service,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; then answer what is under way, and return.

    Args:
        app: What `application` gave.
        host: The address to listen on; by default this machine alone.
        port: 0 for any that is free.
        ready: Called with the address once it can be asked.

    Example:
        >>> serve(None, port=70000)
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: a port is a number from 0 to 65535, got 70000
    """
    if not 0 <= port <= 65535:
        raise InputError(f"a port is a number from 0 to 65535, got {port}")
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                bound = self.servers[0].sockets[0].getsockname()[1]
                shown = f"[{host}]" if ":" in host else host
                ready(f"http://{shown}:{bound}/")

    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(app.scoring.limits.seconds) + 5,
    )
    server = Server(config)
    with _ending_well():
        try:
            server.run()
        finally:
            app.close()
    if not server.started:
        raise InputError(f"cannot listen on {host}, port {port}: is another server there?")


@contextlib.contextmanager
def _ending_well() -> Iterator[None]:
    """uvicorn raises a signal again after it has drained: that shall end us with success."""

    def nothing(number: int, frame: FrameType | None) -> None:
        pass

    before = {number: signal.signal(number, nothing) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
