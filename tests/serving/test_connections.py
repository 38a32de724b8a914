"""Connections on which nobody asks, or listens, are closed in time; others are left alone."""

import asyncio
import contextlib
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
