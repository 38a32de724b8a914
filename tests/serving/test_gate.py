"""The gate: as a function, and before an application."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tulip_ood
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import InputError
from tulip_ood.serving import application
from tulip_ood.serving.gate import GatedApplication, Verdict

from .conftest import NAMES, Client, encoded, form, local, picture


def test_a_function_that_can_say_not_sure(detector: Any, images: Any) -> None:
    x = torch.cat([images.test[0][:30], images.ood[:30]])
    found = tulip_ood.Gate(detector, unsure="not sure")(x)
    expected = detector.predict(x)
    for said, label, accepted in zip(found, expected.label, expected.accepted, strict=True):
        assert said == (NAMES[label] if accepted else "not sure")
    assert "not sure" in found
    numbers = tulip_ood.Gate(detector, classes=())(x)
    assert [NAMES[n] for n in numbers if n is not None] == [n for n in found if n != "not sure"]


def test_labels_are_numbers_where_classes_have_no_names(vectors: Any) -> None:
    detector = tulip_ood.detectors.make("msp", vectors.model).fit(vectors.loader())
    found = tulip_ood.Gate(detector, unsure=-1)(vectors.test[0])
    assert set(found) == {0, 1, 2, -1}


def test_as_many_names_as_outputs(vectors: Any) -> None:
    """With fewer, some answers were names and some numbers."""
    detector = tulip_ood.detectors.make("msp", vectors.model).fit(vectors.loader())
    prepared = Preprocess(None, None, (0.5,), (0.5,))
    for names in (("ant", "bee"), ("ant", "bee", "cat", "dog")):
        said = f"names of {len(names)} classes are given, but the network has 3 outputs"
        with pytest.raises(InputError, match=said):
            tulip_ood.Gate(detector, classes=names)
        with pytest.raises(InputError, match=said):
            application(detector, preprocess=prepared, classes=names)


class Behind:
    """An application that writes down what it is shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, list[Verdict] | None]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        self.seen.append((body, scope.get("state", {}).get("tulip")))
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"from behind"})


@pytest.fixture
def behind() -> Behind:
    return Behind()


@pytest.fixture
def gated(detector: Any, behind: Behind) -> Iterator[GatedApplication]:
    app = tulip_ood.Gate(detector).around(behind)
    yield app
    app.close()


def test_the_application_sees_what_the_gate_found(
    gated: GatedApplication, behind: Behind, detector: Any, images: Any
) -> None:
    files = [encoded(picture(x)) for x in torch.cat([images.test[0][:8], images.ood[:8]])]
    expected = local(detector, files)
    client = Client(gated)
    for content in files:
        assert client.ask("POST", "/classify", content, content_type="image/png").status == 201
    for i, (body, verdicts) in enumerate(behind.seen):
        assert body == files[i]
        assert verdicts is not None
        assert verdicts[0].sure == bool(expected.accepted[i])
        assert verdicts[0]["score"] == pytest.approx(float(expected.score[i]), abs=1e-5)
    body, kind = form(("a.png", files[0]), ("b.png", b"no image"))
    client.ask("POST", "/", body, content_type=kind)
    seen, verdicts = behind.seen[-1]
    assert seen == body
    assert verdicts is not None
    assert [verdict["name"] for verdict in verdicts] == ["a.png", "b.png"]
    assert [verdict.sure for verdict in verdicts] == [bool(expected.accepted[0]), False]
    assert verdicts[1]["decision"] == "unreadable"


def test_what_brings_no_images_goes_through_as_it_is(
    gated: GatedApplication, behind: Behind
) -> None:
    client = Client(gated)
    for method, kind in (("GET", "image/png"), ("POST", "application/json"), ("POST", "")):
        reply = client.ask(method, "/", [b"one", b"two"], content_type=kind)
        assert (reply.status, reply.body) == (201, b"from behind")
        assert behind.seen[-1] == (b"onetwo", None)


def test_the_gate_can_answer_itself(detector: Any, images: Any, behind: Behind) -> None:
    files = [encoded(picture(x)) for x in torch.cat([images.test[0][:8], images.ood[:8]])]
    accepted = local(detector, files).accepted.tolist()
    assert len(set(accepted)) == 2
    gate = tulip_ood.Gate(detector, answer=lambda found: {"answer": "not sure", "n": len(found)})
    app = gate.around(behind)
    for content, yes in zip(files, accepted, strict=True):
        reply = Client(app).ask("POST", "/", content, content_type="image/png")
        if yes:
            assert reply.body == b"from behind"
        else:
            assert reply.json == {"answer": "not sure", "n": 1}
    assert len(behind.seen) == sum(accepted)
    app.close()


def test_the_gate_has_limits(detector: Any, behind: Behind) -> None:
    from tulip_ood.serving import Limits

    app = tulip_ood.Gate(detector, limits=Limits(body=100)).around(behind)
    reply = Client(app).ask("POST", "/", b"x" * 101, content_type="image/png")
    assert (reply.status, behind.seen) == (413, [])
    app.close()
