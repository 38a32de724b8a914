"""Scores over HTTP are the local ones, however images are sent, and whatever they are."""

import asyncio
import base64
import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import tulip_ood
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.serving import Limits, application

from .conftest import NAMES, Client, Reply, encoded, form, local, picture


@pytest.fixture
def files(images: Any) -> list[bytes]:
    """Pictures of several sizes and formats."""
    shown = [picture(x) for x in torch.cat([images.test[0][:6], images.ood[:6]])]
    sizes = [shown[0].resize((side, side), 0) for side in (8, 16, 33)]
    return [encoded(image, kind) for image in shown + sizes for kind in ("PNG", "BMP")]


def check(results: list[dict[str, Any]], expected: Any, spread: float) -> None:
    for i, result in enumerate(results):
        assert abs(result["score"] - float(expected.score[i])) <= 1e-5 * max(1.0, spread)
        assert result["label"] == int(expected.label[i])
        assert result["class"] == NAMES[result["label"]]
        assert result["accepted"] == bool(expected.accepted[i])
        assert result["decision"] == ("accepted" if result["accepted"] else "refused")
        assert result["p_value"] == pytest.approx(float(expected.p_value[i]), abs=0.01)
        told = result["probability"]
        assert told["before"] == pytest.approx(float(expected.base_probs[i, result["label"]]))
        assert told["after"] == pytest.approx(float(expected.probs[i, result["label"]]), abs=1e-4)
        afters = [row["after"] for row in result["top"]]
        assert afters == sorted(afters, reverse=True)
        assert result["kind"] == expected.reason[i].kind
        assert bool(result["kind"]) == (not result["accepted"])


def test_a_form_gives_one_answer_an_image(
    client: Client, detector: Any, files: list[bytes]
) -> None:
    reply = client.score(*form(*((f"{i}.png", content) for i, content in enumerate(files))))
    assert reply.status == 200
    results = reply.json["results"]
    assert [result["name"] for result in results] == [f"{i}.png" for i in range(len(files))]
    expected = local(detector, files)
    check(results, expected, detector.calibration.spread)
    assert {result["decision"] for result in results} == {"accepted", "refused"}
    assert reply.json["threshold"] == detector.threshold.value


def test_the_same_one_by_one_and_as_base64(
    client: Client, detector: Any, files: list[bytes]
) -> None:
    expected = local(detector, files)
    single = [client.score(content, "application/octet-stream").json for content in files]
    check([one["results"][0] for one in single], expected, detector.calibration.spread)
    text = [base64.b64encode(content).decode() for content in files]
    asked = [{"data": text[0], "name": "a ☂.png"}, f"data:image/png;base64,{text[1]}", *text[2:]]
    reply = client.score(json.dumps({"images": asked}).encode(), "application/json; charset=utf-8")
    check(reply.json["results"], expected, detector.calibration.spread)
    assert reply.json["results"][0]["name"] == "a ☂.png"


def test_many_clients_at_once_share_batches_and_get_their_own_answers(
    detector: Any, files: list[bytes]
) -> None:
    service = application(detector, limits=Limits(batch=7, wait=0.02))
    client = Client(service)

    async def all_at_once() -> list[Reply]:
        sizes = {"content_type": "image/png"}
        asked = [
            client.asked("POST", "/v1/score", files[i % len(files)], **sizes) for i in range(90)
        ]
        return await asyncio.gather(*asked)

    replies = asyncio.run(all_at_once())
    expected = local(detector, files)
    for i, reply in enumerate(replies):
        assert reply.status == 200
        score = float(expected.score[i % len(files)])
        assert reply.json["results"][0]["score"] == pytest.approx(score, abs=1e-5)
    lines = client.ask("GET", "/metrics").body.decode().splitlines()
    rows = dict(line.rsplit(" ", 1) for line in lines if line.startswith("tulip_batch_size_"))
    assert rows["tulip_batch_size_sum"] == "90"
    # Together, but never more than seven.
    assert 90 / 7 <= int(rows["tulip_batch_size_count"]) < 60
    assert rows['tulip_batch_size_bucket{le="8"}'] == rows["tulip_batch_size_count"]
    service.close()


def hostile() -> dict[str, tuple[bytes, int, str]]:
    """Name → (a file, the status it gets, a word of the reason)."""
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8))
    jpeg = encoded(noise, "JPEG")
    bomb = bytearray(encoded(Image.new("L", (1, 1))))
    bomb[16:24] = (30_000).to_bytes(4, "big") * 2
    import zlib

    bomb[29:33] = zlib.crc32(bytes(bomb[12:29])).to_bytes(4, "big")
    return {
        "truncated": (jpeg[: len(jpeg) // 2], 422, "truncated"),
        "bomb": (bytes(bomb), 413, "900,000,000 pixels"),
        "large": (encoded(Image.new("L", (1001, 1000))), 413, "1,001,000 pixels"),
        "text": (b"this is no image", 422, "no image"),
        "empty": (b"", 422, "empty"),
        "html": (b"<html><script>alert(1)</script>", 422, "no image"),
        "floats": (encoded(Image.new("F", (8, 8)), "TIFF"), 422, "32 bits"),
    }


@pytest.mark.parametrize("name", hostile())
def test_what_is_no_good_image_is_refused_with_a_reason(detector: Any, name: str) -> None:
    content, status, word = hostile()[name]
    service = application(detector, limits=Limits(pixels=1_000_000))
    client = Client(service)
    for reply in (client.score(content, "image/jpeg"), client.score(*form(("x.jpg", content)))):
        assert reply.status == status
        assert word in reply.json["error"]["reason"]
        (result,) = reply.json["results"]
        assert result["decision"] == "unreadable"
        assert not result["accepted"]
    good = encoded(Image.new("L", (8, 8), 128))
    mixed = client.score(*form(("bad", content), ("good", good), ("bad", content)))
    assert mixed.status == 200
    decisions = [result["decision"] for result in mixed.json["results"]]
    assert decisions[0] == decisions[2] == "unreadable" != decisions[1]
    service.close()


def test_storage_does_not_matter(client: Client, detector: Any) -> None:
    """CMYK, 16 bits, palettes, animations, EXIF: judged as the same pixels are locally."""
    rng = np.random.default_rng(1)
    plain = Image.fromarray(rng.integers(0, 256, (12, 20), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90°
    frames = [Image.new("L", (20, 12), 30), Image.new("L", (20, 12), 220)]
    wide = Image.fromarray(np.asarray(plain).astype(np.uint16) * 257)
    files = {
        "cmyk": encoded(plain.convert("RGB").convert("CMYK"), "JPEG", quality=95),
        "16-bit": encoded(wide),
        "palette": encoded(plain.convert("P")),
        "animated": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "turned": encoded(plain, "PNG", exif=exif),
        "upright": encoded(plain.transpose(Image.Transpose.ROTATE_270)),
    }
    reply = client.score(*form(*files.items()))
    assert reply.status == 200
    scores = {result["name"]: result["score"] for result in reply.json["results"]}
    expected = local(detector, list(files.values())).score.tolist()
    assert list(scores.values()) == pytest.approx(expected, abs=1e-5)
    assert scores["turned"] == pytest.approx(scores["upright"], abs=1e-5)
    assert scores["16-bit"] == pytest.approx(scores["palette"], abs=1e-5)


def test_inputs_that_do_not_fit_the_network_are_the_clients_affair(images: Any) -> None:
    """Without resizing, the size of an image decides whether the network can look at it."""
    from tulip_ood.data.preprocess import Preprocess

    from .conftest import fitted

    detector = fitted(images, "msp")
    service = application(detector, preprocess=Preprocess(None, None, (0.5,), (0.25,)))
    client = Client(service)
    good, bad = (encoded(Image.new("L", (side, side), 99)) for side in (8, 13))
    reply = client.score(*form(("good", good), ("bad", bad), ("good", good)))
    assert [r["decision"] == "unreadable" for r in reply.json["results"]] == [False, True, False]
    assert "[N, 1, 13, 13]" in reply.json["results"][1]["error"]["reason"]
    assert client.score(bad).status == 422
    service.close()


class Scale(nn.Module):
    """A number for a picture; none for a bright one."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        return torch.where(flat[:, :1] > 0.95, torch.nan, self.last(flat))


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_a_number_that_is_none_costs_no_other_answer() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 0.9 * torch.rand(300, 1, 2, 2, generator=generator)
    detector = tulip_ood.Tulip(Scale(), task="regression", j=1.0)
    detector.fit([(x, x.flatten(1).sum(1, keepdim=True))], recipe="balanced")
    service = application(detector, preprocess=Preprocess(2, 2, (0.0,), (1.0,)))
    files = [(name, encoded(Image.new("L", (2, 2), grey))) for name, grey in (("a", 0), ("b", 255))]
    reply = Client(service).score(*form(*files))
    service.close()
    assert reply.status == 200
    good, bad = reply.json["results"]
    assert (good["kind"], good["label"]) == ("", good["mean"])
    assert (bad["kind"], bad["label"], bad["mean"], bad["score"]) == (
        "invalid",
        [None],
        [None],
        None,
    )
