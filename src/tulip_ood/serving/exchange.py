"""One HTTP exchange over ASGI: a request that can be read within limits, a response to send."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tulip_ood.serving.limits import Holding
from tulip_ood.serving.refusal import RefusalError

__all__ = [
    "Application",
    "GoneError",
    "Receive",
    "Request",
    "Response",
    "Scope",
    "Send",
    "json_response",
]

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class GoneError(Exception):
    """The client went away in the middle of its request: nobody waits for an answer.

    Example:
        >>> issubclass(GoneError, Exception)
        True
    """


class Request:
    """What a client asks.

    Args:
        scope: ASGI's description of it.
        receive: Gives the body, piece by piece.

    Example:
        >>> request = Request({"path": "/tulip/v1/model", "root_path": "/tulip"}, None)
        >>> request.path
        '/v1/model'
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        self.method: str = scope.get("method", "GET")
        self.root: str = scope.get("root_path", "").rstrip("/")
        whole: str = scope.get("path", "")
        # Servers differ: some leave the prefix of a mounted application in the path.
        inside = self.root and (whole + "/").startswith(self.root + "/")
        self.path = whole.removeprefix(self.root) if inside else whole

    def header(self, name: str) -> str:
        """A header's value; "" if there is none."""
        wanted = name.encode("ascii")
        for key, value in self._scope.get("headers", ()):
            if key.lower() == wanted:
                return bytes(value).decode("latin-1")
        return ""

    @property
    def content_type(self) -> str:
        """The type without its parameters, in lower case."""
        return self.header("content-type").partition(";")[0].strip().lower()

    async def body(self, limit: int, holding: Holding) -> bytes:
        """The whole body, or a refusal if it is larger than `limit`."""
        announced = self.header("content-length")
        if announced.isdecimal() and int(announced) > limit:
            raise _too_large(limit)
        parts, size, more = [], 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise GoneError
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            holding.add(len(part))
            parts.append(part)
            more = message.get("more_body", False)
        return b"".join(parts)

    async def answered(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives; it is stopped where the client goes away meanwhile.

        For a request whose body has been read: nothing can come then but that.
        """
        task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and _is_gone(leaving):
                raise GoneError
            return await task
        finally:
            for one in (task, leaving):
                one.cancel()
            await asyncio.gather(task, leaving, return_exceptions=True)


def _is_gone(leaving: "asyncio.Future[MutableMapping[str, Any]]") -> bool:
    """Whether that is what was heard; a server that fails here, or says other things, is let be."""
    return leaving.exception() is None and leaving.result()["type"] == "http.disconnect"


def _too_large(limit: int) -> RefusalError:
    return RefusalError(
        413,
        "body-too-large",
        f"the body is larger than {limit:,} bytes: send fewer or smaller images",
        headers=[("connection", "close")],  # the rest of it is not read
    )


@dataclass(frozen=True)
class Response:
    """What is sent back.

    Attributes:
        status: The HTTP status.
        body: All of it.
        content_type: What it is.
        headers: What else to say.

    Example:
        >>> Response(200, b"ok", "text/plain").status
        200
    """

    status: int
    body: bytes
    content_type: str
    headers: Sequence[tuple[str, str]] = ()

    async def send(self, send: Send, *, head: bool = False) -> None:
        """Send it; without the body where only its head was asked for."""
        headers = [
            ("content-type", self.content_type),
            ("content-length", str(len(self.body))),
            ("x-content-type-options", "nosniff"),
            *self.headers,
        ]
        encoded = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]
        await send({"type": "http.response.start", "status": self.status, "headers": encoded})
        await send({"type": "http.response.body", "body": b"" if head else self.body})


def json_response(
    values: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()
) -> Response:
    """Values as JSON; they must be finite.

    Example:
        >>> json_response({"status": "ok"}).body
        b'{"status":"ok"}'
    """
    text = json.dumps(values, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return Response(
        status, text.encode(), "application/json", [("cache-control", "no-store"), *headers]
    )
