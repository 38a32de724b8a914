"""Running the application with uvicorn (extra `serve`): where, until when, and how it stops."""

import contextlib
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType

from tulip_ood.errors import InputError
from tulip_ood.serving.connections import hurried
from tulip_ood.serving.service import Service

__all__ = ["is_loopback", "listening", "serve"]

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

    shown = f"[{host}]" if ":" in host else host

    class Server(uvicorn.Server):
        async def startup(self, sockets: "list[socket.socket] | None" = None) -> None:
            await super().startup(sockets)
            if sockets and self.started:
                ready(f"http://{shown}:{sockets[0].getsockname()[1]}/")

    config = uvicorn.Config(
        app,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(app.scoring.limits.seconds) + 5,
    )
    config.load()
    config.http_protocol_class = hurried(
        config.http_protocol_class, seconds=app.scoring.limits.seconds
    )
    try:
        with listening(host, port) as place, _ending_well():
            Server(config).run(sockets=[place])
    finally:
        app.close()


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens, or a reason why there is none.

    Example:
        >>> with listening("127.0.0.1", 0) as place:
        ...     place.getsockname()[0]
        '127.0.0.1'
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}. Choose another "
            f"--port, or 0 for any that is free"
        ) from error


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
