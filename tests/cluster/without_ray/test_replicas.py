"""Replicas that are lost, refuse, or hear of a new threshold later than others; without Ray."""

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tulip_ood
from tulip_ood.cluster.replica import Replica, Setting
from tulip_ood.cluster.replicas import Replicas
from tulip_ood.cluster.serving import serve
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import InputError
from tulip_ood.serving import Judge, Limits, Service
from tulip_ood.serving.images import Upload
from tulip_ood.serving.limits import Memory
from tulip_ood.serving.refusal import RefusalError
from tulip_ood.serving.scoring import Scoring
from tulip_ood.serving.tokens import Tokens


class LostError(Exception):
    """As of Ray, when an actor is dead."""


class Handle:
    """Gives requests to replicas in turn; some of these die first."""

    def __init__(self, replicas: list[Replica], deaths: int = 0) -> None:
        self._replicas, self.deaths, self.asked = replicas, deaths, 0

    def __getattr__(self, what: str) -> Any:
        def remote(*told: Any) -> Awaitable[Any]:
            self.asked += 1
            if self.deaths:
                self.deaths -= 1
                return _lost()
            replica = self._replicas[self.asked % len(self._replicas)]
            # As through Ray: nothing is shared.
            return _there(getattr(replica, what), pickle.loads(pickle.dumps(told)))

        return SimpleNamespace(remote=remote)


async def _lost() -> None:
    raise LostError


async def _there(method: Callable[..., Awaitable[Any]], told: tuple[Any, ...]) -> Any:
    return pickle.loads(pickle.dumps(await method(*told)))


@pytest.fixture(scope="module")
def pictures() -> list[Upload]:
    import io

    import numpy as np
    from PIL import Image

    found = []
    for i in range(40):
        values = np.random.default_rng(i).integers(0, 255, (2, 2), dtype=np.uint8)
        held = io.BytesIO()
        Image.fromarray(values).save(held, "PNG")
        found.append(Upload(f"{i}.png", held.getvalue()))
    return found


def replica() -> Replica:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x, y = torch.rand(200, 1, 2, 2), torch.arange(200) % 3
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    msp = tulip_ood.detectors.MSP(model).fit([(x, y)])
    judge = Judge(msp, preprocess=Preprocess(2, 2, (0.0,), (1.0,)), version="1")
    scoring = Scoring(judge, limits=Limits(queue=64))
    SCORING.append(scoring)
    return Replica(SimpleNamespace(scoring=lambda: scoring, limits=scoring.limits))  # type: ignore[arg-type]


SCORING: list[Scoring] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """No thread outlives its test."""
    yield
    while SCORING:
        SCORING.pop().close()


def behind(handle: Handle, count: int = 2) -> Replicas:
    limits = Limits(queue=64, seconds=5.0)
    return Replicas(
        handle, lambda error: isinstance(error, LostError), limits, count=count, version="1"
    )


pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


def test_what_a_lost_replica_had_is_answered_by_another(pictures: list[Upload]) -> None:
    handle = Handle([replica(), replica()], deaths=3)
    found = behind(handle)

    async def ask() -> Any:
        with Memory(1 << 20).holding() as holding:
            return await found.answers([*pictures, Upload("x", b"")], holding)

    answers = asyncio.run(ask())
    assert [getattr(one, "status", 200) for one in answers] == [200] * 40 + [422]
    assert found.metrics.failures.value(place="replicas") == 3
    counted = found.metrics.images
    both = [counted.value(detector="answering", decision=d) for d in ("accepted", "refused")]
    assert sum(both) == 40  # once each, whoever has worked on it
    assert counted.value(detector="answering", decision="unreadable") == 1


def test_a_request_that_kills_every_replica_is_given_up(pictures: list[Upload]) -> None:
    found = behind(Handle([replica()], deaths=100))

    async def ask() -> Any:
        with Memory(1 << 20).holding() as holding:
            await found.answers(pictures[:1], holding)

    with pytest.raises(RefusalError, match="no replica lived long enough") as caught:
        asyncio.run(ask())
    assert caught.value.status == 500
    assert found._under_way == 0


def test_more_than_all_queues_together_is_refused(pictures: list[Upload]) -> None:
    found = behind(Handle([replica()]), count=1)

    async def ask() -> Any:
        with Memory(1 << 20).holding() as holding:
            await found.answers(pictures * 2, holding)

    with pytest.raises(RefusalError, match="too many images are under way") as caught:
        asyncio.run(ask())
    assert caught.value.status == 503


def test_what_fails_inside_a_replica_is_not_tried_again(pictures: list[Upload]) -> None:
    """Only a lost replica is: an error would come again."""

    async def fail() -> None:
        raise ZeroDivisionError

    class Failing(Handle):
        def __getattr__(self, what: str) -> Any:
            self.asked += 1
            return SimpleNamespace(remote=lambda *_: fail())

    handle = Failing([])

    async def ask() -> Any:
        with Memory(1 << 20).holding() as holding:
            await behind(handle).answers(pictures[:1], holding)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(ask())
    assert handle.asked == 1


def test_a_new_threshold_reaches_replicas_that_were_not_asked(pictures: list[Upload]) -> None:
    pair = [replica(), replica()]
    handle = Handle(pair, deaths=1)
    found = behind(handle)

    async def ask() -> list[list[bool]]:
        await found.begin()
        assert found.threshold is not None
        before = found.threshold["value"]
        await found.set_threshold({"false_alarm": 0.5})
        assert found.threshold["value"] < before
        # One that was started later is told with its first image, too.
        pair.append(replica())
        with Memory(1 << 20).holding() as holding:
            return [
                [one.accepted for one in await found.answers(pictures, holding)]  # type: ignore[union-attr]
                for _ in range(3)
            ]

    decided = asyncio.run(ask())
    assert decided[0] == decided[1] == decided[2]
    assert 'tulip_threshold{detector="answering",method="msp",model="1"}' in found.metrics.text()
    assert {one._number for one in pair} == {1}


def test_an_older_setting_changes_nothing_and_a_bad_one_is_refused_by_its_reason() -> None:
    one = replica()

    async def ask() -> None:
        later = await one.threshold(Setting(2, {"false_alarm": 0.5}))
        assert await one.threshold(Setting(1, {"false_alarm": 0.05})) == later
        refused = await one.threshold(Setting(3, {"false_alarm": 0.001}))
        assert isinstance(refused, RefusalError)
        assert refused.status == 422
        assert await one.threshold(Setting(0, {})) == later

    asyncio.run(ask())


def test_a_service_over_replicas_refuses_what_they_refuse() -> None:
    """The same application: what it says of the model and of a threshold comes from there."""
    found = behind(Handle([replica(), replica()]))
    service = Service(found, Tokens("correct horse"))

    async def ask(method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        pairs = {"authorization": "Bearer correct horse", "content-type": "application/json"}
        headers = [(name.encode(), value.encode()) for name, value in pairs.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        await service(scope, receive, send)
        return sent[0]["status"], sent[1]["body"]

    async def all_of_them() -> None:
        await found.begin()
        assert (await ask("GET", "/v1/model"))[0] == 200
        status, told = await ask("PUT", "/v1/threshold", b'{"false_alarm": 0.001}')
        assert status == 422
        assert b"cannot-be-promised" in told
        assert (await ask("PUT", "/v1/threshold", b'{"false_alarm": 0.2}'))[0] == 200
        assert (await ask("GET", "/metrics"))[0] == 200

    asyncio.run(all_of_them())
    service.close()


def test_a_port_that_is_taken_is_said_before_ray_is_started(tmp_path: Any) -> None:
    from tulip_ood.serving.running import listening

    file = tmp_path / "d.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x, y = torch.rand(200, 4), torch.arange(200) % 3
    tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)]).save(file)
    with listening("127.0.0.1", 0) as taken, pytest.raises(InputError, match="cannot listen"):
        serve(file, model="vit-b-16", port=taken.getsockname()[1])
