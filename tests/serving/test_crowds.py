"""Many clients, large ones, slow ones, and those who leave: nobody pays for another."""

import asyncio
import json
import threading
from typing import Any

import pytest
from PIL import Image

from tulip_ood.serving import Judge, Limits, Service, application
from tulip_ood.serving.counting import Counter, Histogram
from tulip_ood.serving.judging import Judged

from .conftest import Client, encoded, form

GOOD = encoded(Image.new("L", (8, 8), 130))
JSON = "application/json"


class Slow:
    """A judge that waits until it may go on."""

    def __init__(self, judge: Judge) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.judge, self.seen = judge, 0

    def __call__(self, images: Any) -> list[Judged]:
        self.begun.set()
        self.go.wait(20)
        self.seen += len(images)
        return Judge.judge(self.judge, images)


@pytest.fixture
def slow(detector: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(**limits: Any) -> tuple[Service, Slow]:
        service = application(detector, limits=Limits(**limits))
        waiting = Slow(service.scoring.judge)
        monkeypatch.setattr(service.scoring.judge, "judge", waiting)
        return service, waiting

    return made


def test_a_full_queue_is_said_to_be_full(slow: Any) -> None:
    service, waiting = slow(queue=3, batch=1, images=3)
    client = Client(service)

    async def crowd() -> list[Any]:
        async def one() -> Any:
            return await client.asked("POST", "/v1/score", GOOD, content_type="image/png")

        first = [asyncio.create_task(one()) for _ in range(12)]
        while not any(task.done() for task in first):
            await asyncio.sleep(0.005)
        waiting.go.set()
        return await asyncio.gather(*first)

    replies = asyncio.run(crowd())
    told = sorted(reply.status for reply in replies)
    assert set(told) == {200, 503}
    assert told.count(200) >= 3
    refused = next(reply for reply in replies if reply.status == 503)
    assert refused.headers["retry-after"] == "1"
    assert service._memory.held == 0
    service.close()


def test_a_large_request_lets_others_in_between(
    detector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its images are not all in line before another client's one."""
    service = application(detector)
    order: list[str | None] = []
    begun, go = threading.Event(), threading.Event()
    whole = service.scoring._prepare

    def prepare(upload: Any) -> Any:
        begun.set()
        go.wait(20)
        order.append(upload.name)
        return whole(upload)

    monkeypatch.setattr(service.scoring, "_prepare", prepare)
    client = Client(service)

    async def both() -> list[Any]:
        body, kind = form(*[("large", GOOD)] * 60)
        large = asyncio.create_task(client.asked("POST", "/v1/score", body, content_type=kind))
        while not begun.is_set():
            await asyncio.sleep(0.005)
        body, kind = form(("small", GOOD))
        small = asyncio.create_task(client.asked("POST", "/v1/score", body, content_type=kind))
        while service.scoring._decoders._work_queue.empty():
            await asyncio.sleep(0.005)
        go.set()
        return await asyncio.gather(large, small)

    assert [reply.status for reply in asyncio.run(both())] == [200, 200]
    service.close()
    assert order.index("small") <= 16


def test_json_is_counted_before_it_is_taken_apart(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body of `{},` takes thirty times its size as Python's dicts."""
    taken: list[bytes] = []
    whole = json.loads
    monkeypatch.setattr(json, "loads", lambda body, **more: taken.append(body) or whole(body))
    reply = Client.score(client, b'{"images": [' + b"{}," * 100_000 + b"{}]}", JSON)
    assert not taken
    assert reply.status == 413
    named = {"images": [{"data": "AAAA", "name": "a,b" * 300}]}
    assert client.score(json.dumps(named).encode(), JSON).status == 422  # it is no image


def test_time_is_limited_and_what_nobody_waits_for_is_not_done(slow: Any) -> None:
    service, waiting = slow(seconds=0.3, batch=1)
    client = Client(service)

    async def impatient() -> list[Any]:
        asked = [
            client.asked("POST", "/v1/score", GOOD, content_type="image/png") for _ in range(5)
        ]
        return await asyncio.gather(*asked)

    assert [reply.status for reply in asyncio.run(impatient())] == [504] * 5
    waiting.go.set()
    service.close()
    assert waiting.seen == 1  # the one that was under way


def test_who_leaves_costs_no_work(slow: Any) -> None:
    service, waiting = slow(batch=1)

    async def leaving(after: int) -> list[Any]:
        """Asks, waits until one image is under way and so many are in the line, and goes."""
        body = {"type": "http.request", "body": GOOD, "more_body": False}
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            nonlocal body
            if body:
                given, body = body, {}
                return given
            while not waiting.begun.is_set() or service.scoring._batcher.waiting < after:
                await asyncio.sleep(0.005)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/score"}
        await service({**scope, "headers": [(b"content-type", b"image/png")]}, receive, send)
        return sent

    async def crowd() -> list[Any]:
        return await asyncio.gather(*(leaving(4) for _ in range(5)))

    assert asyncio.run(crowd()) == [[]] * 5  # one is with the detector, four wait
    waiting.go.set()
    service.close()
    assert waiting.seen == 1
    assert service._memory.held == 0
    assert service.scoring.metrics.requests.value(path="/v1/score", status="499") == 5


def test_a_body_that_never_comes(detector: Any) -> None:
    service = application(detector, limits=Limits(seconds=0.1))

    async def dripping() -> tuple[int, bytes]:
        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0.02)
            return {"type": "http.request", "body": b"x", "more_body": True}

        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/score"}
        await service({**scope, "headers": [(b"content-type", b"image/png")]}, receive, send)
        return sent[0]["status"], dict(sent[0]["headers"])[b"connection"]

    assert asyncio.run(dripping()) == (408, b"close")
    service.close()


def test_closing_answers_what_is_under_way(slow: Any) -> None:
    service, waiting = slow(batch=2)
    client = Client(service)

    async def ends() -> list[Any]:
        asked = [
            asyncio.create_task(client.asked("POST", "/v1/score", GOOD, content_type="image/png"))
            for _ in range(7)
        ]
        while service.scoring._batcher.waiting < 5:
            await asyncio.sleep(0.005)
        closing = asyncio.create_task(asyncio.to_thread(service.close))
        await asyncio.sleep(0.05)
        late = await client.asked("POST", "/v1/score", GOOD, content_type="image/png")
        assert (late.status, late.json["error"]["code"]) == (503, "closing")
        assert (await client.asked("GET", "/healthz")).status == 503
        waiting.go.set()
        await closing
        return await asyncio.gather(*asked)

    assert [reply.status for reply in asyncio.run(ends())] == [200] * 7


def test_millions_are_counted_to_the_last_one() -> None:
    """Prometheus takes differences: rounded counters stand still, then jump."""
    images, seconds = Counter("images_total", "Images."), Histogram("seconds", "Time.", [1])
    images.add(12_345_678)
    images.add()
    seconds.add(123_456_789.25)
    assert str(images).endswith("images_total 12345679")
    assert "seconds_sum 123456789.25" in str(seconds)
