"""Connections on which nobody asks, or listens, are closed in time; others are left alone."""

import asyncio
import contextlib
import logging
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tulip_ood.serving.connections import hurried


class Plain:
    """As much of uvicorn's protocol as is used: a request begins with `?` and ends with `!`."""

    cycle: Any = None

    def __init__(self, loop: Any) -> None:
        self.loop = loop

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"?"):
            self.cycle = SimpleNamespace(response_complete=False)

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


async def closed_after(*steps: tuple[float, bytes | None]) -> bool:
    """Whether the connection was closed; None stands for an answer that is complete."""
    gone = asyncio.Event()
    one = hurried(Plain, 0.1)(asyncio.get_running_loop())
    one.connection_made(SimpleNamespace(close=gone.set))
    for pause, data in steps:
        await asyncio.sleep(pause)
        if data is None:
            one.cycle.response_complete = True
        else:
            one.data_received(data)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(gone.wait(), 0.3)
    one.connection_lost(None)
    return gone.is_set()


@pytest.mark.parametrize(
    ("steps", "closed"),
    [
        ((), True),
        (((0.0, b"GE"), (0.03, b"T /")), True),
        (((0.0, b"?"),), False),  # it is being answered, however long that takes
        (((0.0, b"?"), (0.0, None)), False),  # uvicorn's own limit for idle connections holds
        (((0.0, b"?"), (0.0, None), (0.0, b"GE")), True),
        (((0.0, b"?"), (0.0, None), (0.0, b"GE"), (0.0, b"?")), False),
    ],
)
def test_a_request_must_come_in_time(steps: Any, closed: bool) -> None:
    assert asyncio.run(closed_after(*steps)) is closed


def test_with_uvicorn_itself() -> None:
    """Its protocols have what is used of them."""
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(app, lifespan="off", log_level="critical")
    config.load()
    config.http_protocol_class = hurried(config.http_protocol_class, 0.5)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = threading.Thread(target=lambda: server.run(sockets=[place]))
        thread.start()
        found = []
        for sent in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"):
            with socket.create_connection(place.getsockname(), timeout=10) as client:
                client.sendall(sent)
                found.append(client.recv(99)[:12])
        server.should_exit = True
        thread.join()
    assert found == [b"", b"", b"HTTP/1.1 204"]


@pytest.mark.parametrize(
    ("path", "parts", "begins"),
    [
        ("read", (b"ZZ\r\n",), b"HTTP/1.1 400"),
        ("read", (b"3\r\nabc\r\n", b"ZZ\r\n"), b"HTTP/1.1 400"),
        ("at-once", (b"ZZ\r\n",), b"HTTP/1.1 400"),
        ("at-once", (b"3\r\nabc\r\n", b"ZZ\r\n"), b"HTTP/1.1 204"),
        ("slowly", (b"3\r\nabc\r\n", b"ZZ\r\n"), b"HTTP/1.1 200"),
    ],
)
def test_a_body_that_breaks_is_one_line_in_the_log(
    path: str,
    parts: tuple[bytes, ...],
    begins: bytes,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the answer waits for the body, is out already, or has begun."""
    import uvicorn

    for logger in map(logging.getLogger, ("uvicorn.error", "asyncio")):
        monkeypatch.setattr(logger, "propagate", False)  # whatever was set up before
        monkeypatch.setattr(logger, "handlers", [caplog.handler])
        caplog.set_level("WARNING", logger=logger.name)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = scope["path"] == "/read"
        while more:
            message = await receive()
            more = message.get("more_body", False)
        status = 200 if scope["path"] == "/slowly" else 204
        await send({"type": "http.response.start", "status": status, "headers": []})
        if status == 200:
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
        await send({"type": "http.response.body"})

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    config.http_protocol_class = hurried(config.http_protocol_class, 5.0)
    server = uvicorn.Server(config)
    head = f"POST /{path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = threading.Thread(target=lambda: server.run(sockets=[place]))
        thread.start()
        with socket.create_connection(place.getsockname(), timeout=10) as client:
            client.sendall(head + parts[0])
            answer = b"" if path == "read" else client.recv(999)  # then it is out, or has begun
            for part in parts[1:]:
                client.sendall(part)
            while more := client.recv(999):
                answer += more
        server.should_exit = True
        thread.join()
    assert answer.startswith(begins)
    assert b"400 Bad Request" not in answer[1 + len(begins) :]
    assert [record.getMessage() for record in caplog.records] == ["Invalid HTTP request received."]
    assert not any(record.exc_info for record in caplog.records)


def test_a_client_that_does_not_take_its_answers() -> None:
    """They fill the buffers of both sides; without a limit that would hold for ever."""
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(32 << 20)})

    config = uvicorn.Config(app, lifespan="off", log_level="critical")
    config.load()
    config.http_protocol_class = hurried(config.http_protocol_class, 0.2)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = threading.Thread(target=lambda: server.run(sockets=[place]))
        thread.start()
        with socket.create_connection(place.getsockname(), timeout=10) as deaf:
            deaf.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert deaf.recv(1)  # it begins
            server.should_exit = True  # and nothing of it keeps the server from stopping
            thread.join(10)
            assert not thread.is_alive()
            left = 0
            with contextlib.suppress(ConnectionError):
                while taken := len(deaf.recv(1 << 20)):
                    left += taken
    assert left < 32 << 20


def test_who_takes_answers_slowly_is_waited_for() -> None:
    async def taken() -> bool:
        gone = asyncio.Event()
        one = hurried(Plain, 0.05)(asyncio.get_running_loop())
        one.connection_made(SimpleNamespace(close=lambda: None, abort=gone.set))
        for _ in range(4):
            one.pause_writing()
            await asyncio.sleep(0.02)
            one.resume_writing()
        await asyncio.sleep(0.1)
        one.connection_lost(None)
        return not gone.is_set()

    assert asyncio.run(taken())
