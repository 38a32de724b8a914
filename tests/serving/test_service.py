"""The server around the scores: paths, limits, tokens, time, mounting, shadow, log."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import tulip_ood
from tulip_ood.errors import InputError
from tulip_ood.serving import Judge, Limits, Service, application
from tulip_ood.serving.judging import Judged
from tulip_ood.serving.openapi import openapi

from .conftest import PREPARED, TOKEN, Client, encoded, form, local, picture

GOOD = encoded(Image.new("L", (8, 8), 130))
JSON = "application/json"


def reason(reply: Any) -> str:
    return reply.json["error"]["reason"]


# ------------------------------------------------------------------------------ paths


def test_what_is_told_of_the_model(client: Client, detector: Any) -> None:
    told = client.ask("GET", "/v1/model").json
    assert told["method"] == "tulip"
    assert told["classes"][1] == "second"
    assert told["threshold"]["target"] == 0.05
    assert told["report"]["calibration"]["n_inputs"] == detector.calibration.n_inputs
    held = told["validation"]
    assert sum(held["counts"]) == held["inputs"] == detector.calibration.n_inputs
    assert held["edges"] == sorted(held["edges"])
    for choice in held["thresholds"]:
        detector.set_threshold(false_alarm=choice["false_alarm"])
        assert detector.threshold.value == choice["value"]
        assert detector.threshold.coverage == pytest.approx(choice["accepted"])


def test_a_threshold_is_set_while_the_server_runs(client: Client, detector: Any) -> None:
    detector.set_threshold(false_alarm=0.05)
    secret = {"authorization": f"Bearer {TOKEN}"}
    shown = [picture(torch.randn(1, 8, 8)) for _ in range(40)]
    files = form(*((str(i), encoded(image)) for i, image in enumerate(shown)))
    before = client.score(*files).json["results"]
    reply = client.ask("PUT", "/v1/threshold", b'{"false_alarm": 0.4}', content_type=JSON, **secret)
    assert reply.status == 200
    assert reply.json["target"] == 0.4
    after = client.score(*files).json
    assert after["threshold"] == reply.json["value"] == detector.threshold.value
    assert [r["score"] for r in after["results"]] == [r["score"] for r in before]
    assert sum(r["accepted"] for r in after["results"]) < sum(r["accepted"] for r in before)
    refused = {
        b'{"false_alarm": 0.4}': ({}, 401),
        b'{"false_alarm": 0.0001}': (secret, 422),
        b'{"false_alarm": 5e-324}': (secret, 422),
        b'{"false_alarm": 2}': (secret, 422),
        b'{"false_alarm": true}': (secret, 422),
        b'{"false_alarm": NaN}': (secret, 422),
        b'{"false_alarm": Infinity}': (secret, 422),
        b'{"false_alarm": "0.1"}': (secret, 422),
        b'{"false_alarm": 0.1, "false_alarm": 0.9}': (secret, 422),
        b'{"value": 1}': (secret, 422),
        b'{"max_error": 1e-9}': (secret, 422),
        b"[": (secret, 400),
        b"[" * 3000: (secret, 400),
        b" " * 5000: (secret, 413),
    }
    for body, (headers, status) in refused.items():
        reply = client.ask("PUT", "/v1/threshold", body, content_type=JSON, **headers)
        assert (reply.status, bool(reason(reply))) == (status, True), body
    assert client.ask("PUT", "/v1/threshold", b"{}", **secret).status == 415
    assert detector.threshold.target == 0.4


def test_health_pages_and_what_is_not_there(client: Client) -> None:
    assert client.ask("GET", "/healthz").json == {"status": "ok"}
    for path, kind in {
        "/": "text/html",
        "/docs": "text/html",
        "/assets/page.js": "text/javascript",
    }.items():
        reply = client.ask("GET", path)
        assert reply.status == 200
        assert reply.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        again = client.ask("GET", path, if_none_match=reply.headers["etag"])
        assert (again.status, again.body) == (304, b"")
        assert client.ask("HEAD", path).body == b""
        text = reply.body.decode()
        assert "//" not in text.replace("http://…", "").replace("http://www.w3.org", "").replace(
            "// ", ""
        )  # nothing from elsewhere
    for path in ("/nothing", "/assets/../service.py", "/v1", "//"):
        assert client.ask("GET", path).status == 404
    wrong = client.ask("GET", "/v1/score")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    for reply in (client.ask("GET", "/" + "a" * 9000), client.ask("POST", "/" + "a" * 9000)):
        assert reply.status in (404, 405)
        assert len(reply.body) < 400  # not all of it again
    assert client.ask("DELETE", "/v1/model").headers["allow"] == "GET, HEAD"


def test_every_page_links_only_to_what_is_there(client: Client) -> None:
    import re

    for path in ("/", "/docs"):
        text = client.ask("GET", path).body.decode()
        for link in re.findall(r'(?:href|src)="([^"#]+)"', text):
            assert client.ask("GET", f"/{link}".replace("/.", "/")).status == 200, link


def test_no_style_hides_the_names_of_the_api(client: Client) -> None:
    """The report's tables hide short names on a phone; here names are all that there is."""
    import re

    for sheet in ("report.css", "page.css"):
        text = client.ask("GET", f"/assets/{sheet}").body.decode()
        rules = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        for selectors in re.findall(r"([^{}]*)\{[^{}]*display: none", rules):
            for selector in selectors.split(","):  # of a class, or of what is hidden by a script
                assert re.search(r"\.\w|\[hidden\]", selector), selector.strip()


def test_the_schema_is_served_and_refers_to_what_it_has(client: Client) -> None:
    document = client.ask("GET", "/openapi.json").json
    assert document == json.loads(json.dumps(openapi(Limits())))
    text = json.dumps(document)
    for name in document["components"]["schemas"]:
        assert text.count(f"#/components/schemas/{name}") >= 1


def test_mounted_below_a_prefix(service: Service) -> None:
    client = Client(service, root="/tulip")
    assert client.ask("GET", "/healthz").status == 200
    assert client.ask("GET", "/openapi.json").json["servers"] == [{"url": "/tulip"}]
    moved = client.ask("GET", "")
    assert (moved.status, moved.headers["location"]) == (307, "/tulip/")
    assert client.ask("GET", "/").status == 200
    assert client.score(GOOD).status == 200


# ------------------------------------------------------------------------------ limits


def test_bodies_that_cannot_be_understood(client: Client) -> None:
    x = "multipart/form-data; boundary=x"
    field = b'Content-Disposition: form-data; name="a"\r\n\r\nfield'
    cases = [
        (b"x", "text/plain", 415),
        (b"x", "", 415),
        (b"{", JSON, 400),
        (b"[]", JSON, 422),
        (b'{"images": []}', JSON, 422),
        (b'{"images": [3]}', JSON, 422),
        (b'{"images": [{"data": "AA==", "name": 3}]}', JSON, 422),
        (b'{"images": ["*"]}', JSON, 422),
        (b"\xff\xfe", JSON, 400),
        (b"", "multipart/form-data", 400),
        (b"--x\r\n", x, 400),
        (b"--x--\r\n", x, 422),
        (b"--xy\r\n\r\n--x--", x, 400),
        (b"--x\r\n" + field + b"\r\n--x--", x, 422),
    ]
    for body, kind, status in cases:
        reply = client.score(body, kind)
        assert (reply.status, bool(reason(reply))) == (status, True), (body, kind, reply.body)
    assert client.score(GOOD, "image/png", content_encoding="gzip").status == 415
    odd = client.score(b'{"images": [{"data": "AAAA", "name": "\\ud800"}]}', JSON)
    assert odd.status == 422  # a lone surrogate comes back as something that can be encoded


def test_binary_content_survives_a_form(client: Client, detector: Any) -> None:
    """Line breaks and dashes inside a file are not boundaries."""
    noisy = encoded(Image.effect_noise((64, 64), 90), "BMP") + b"\r\n--lin\r\n\n--\r"
    reply = client.score(*form(("a.bmp", noisy)))
    assert reply.json["results"][0]["score"] == pytest.approx(float(local(detector, [noisy]).score))


def test_too_much_is_refused(detector: Any) -> None:
    service = application(detector, limits=Limits(body=5000, images=3, queue=4, held=9000))
    client = Client(service)
    reply = client.score(b"", content_length="5001")  # before a byte is read
    assert (reply.status, reply.headers["connection"]) == (413, "close")
    assert client.score([b"x" * 3000, b"y" * 3000]).status == 413  # type: ignore[arg-type]
    assert client.score(*form(*[("a", GOOD)] * 4)).status == 413
    many = json.dumps({"images": ["AAAA"] * 4}).encode()
    assert client.score(many, JSON).status == 413
    assert client.score(*form(*[("a", GOOD)] * 3)).status == 200
    service.close()


def test_a_detector_that_fails_costs_only_its_own_image(
    detector: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = application(detector)
    whole = Judge.judge

    def fragile(images: Any) -> list[Judged]:
        if any(image.max() == 0 for image in images):
            raise RuntimeError("no black images, please")
        return whole(service.scoring.judge, images)

    monkeypatch.setattr(service.scoring.judge, "judge", fragile)
    black = encoded(Image.new("L", (8, 8), 0))
    reply = Client(service).score(*form(("a", GOOD), ("b", black), ("c", GOOD)))
    assert [result["decision"] == "unreadable" for result in reply.json["results"]] == [0, 1, 0]
    assert "black" not in reply.body.decode()  # what went wrong inside stays inside
    assert "black" in caplog.text
    assert Client(service).score(black).status == 500
    service.close()


# ------------------------------------------------------------------------------ tokens


def test_tokens(detector: Any) -> None:
    service = application(detector, token="to use it", admin_token="to change it")
    client = Client(service)
    body, kind = b'{"false_alarm": 0.05}', {"content_type": JSON}
    for token, use, change in (
        ("", 401, 401),
        ("Bearer wrong", 401, 401),
        ("Basic to use it", 401, 401),
        ("Bearer to use it", 200, 401),
        ("bearer to change it", 200, 200),
        ("Bearer tö use it", 401, 401),
    ):
        headers = {"authorization": token}
        assert client.score(GOOD, **headers).status == use
        assert client.ask("GET", "/v1/model", **headers).status == use
        assert client.ask("GET", "/metrics", **headers).status == use
        assert client.ask("PUT", "/v1/threshold", body, **kind, **headers).status == change
    for path in ("/", "/healthz", "/openapi.json", "/assets/page.js"):
        assert client.ask("GET", path).status == 200
    assert client.score(GOOD).headers["www-authenticate"] == "Bearer"
    service.close()
    open_to_all = application(detector)
    reply = Client(open_to_all).ask("PUT", "/v1/threshold", body, **kind)
    assert (reply.status, reply.json["error"]["code"]) == (403, "no-token-set")
    open_to_all.close()
    with pytest.raises(InputError, match="at least 8"):
        application(detector, token="short")


# --------------------------------------------------------------- shadow, log, images


def test_a_shadow_is_counted_and_logged_but_never_asked(
    detector: Any, rival: Any, images: Any, tmp_path: Path
) -> None:
    log, kept = tmp_path / "scores.jsonl", tmp_path / "kept"
    kept.mkdir()
    service = application(detector, shadow=rival, log=log, keep_images=kept)
    files = [encoded(picture(x)) for x in torch.cat([images.test[0][:20], images.ood[:20]])]
    reply = Client(service).score(*form(*((str(i), f) for i, f in enumerate(files))))
    found = [result["score"] for result in reply.json["results"]]
    service.close()
    assert found == pytest.approx(local(detector, files).score.tolist(), abs=1e-5)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    begun, judged = lines[:2], lines[2:]
    assert [line["detector"] for line in begun] == ["answering", "shadow"]
    assert begun[1]["calibration"] == rival.calibration.scores.tolist()
    by_role = {
        role: [line for line in judged if line["detector"] == role]
        for role in ("answering", "shadow")
    }
    assert sorted(line["score"] for line in by_role["answering"]) == sorted(found)
    beside = local(rival, files)
    shadows = sorted(line["score"] for line in by_role["shadow"])
    assert shadows == pytest.approx(sorted(beside.score.tolist()), abs=1e-5)
    assert len({line["model"] for line in judged}) == 2
    text = service.scoring.metrics.text()
    accepted = int(beside.accepted.sum())
    assert f'tulip_images_total{{detector="shadow",decision="accepted"}} {accepted}' in text
    assert 'tulip_p_value_count{detector="shadow"} 40' in text
    names = {line["image"] for line in by_role["answering"]}
    assert {path.name for path in kept.iterdir()} == names
    assert (kept / by_role["answering"][0]["image"]).read_bytes() in files


def test_p_values_are_counted_in_twenty_equal_buckets(client: Client, images: Any) -> None:
    for part in images.test[0][:192].split(64):
        assert client.score(*form(*(("x", encoded(picture(x))) for x in part))).status == 200
    text = client.ask("GET", "/metrics").body.decode()
    rows = [line for line in text.splitlines() if line.startswith("tulip_p_value_bucket")]
    assert len(rows) == 21
    assert [float(row.split('le="')[1].split('"')[0]) for row in rows[:20]] == [
        pytest.approx(i / 20) for i in range(1, 21)
    ]
    counts = [int(row.split()[1]) for row in rows]
    assert counts[-1] == counts[-2] == 192
    assert abs(counts[9] - 96) < 40  # in-distribution: about half below 0.5


def test_trouble_beside_the_answer_does_not_cost_it(
    detector: Any, rival: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = Judge(rival)
    monkeypatch.setattr(shadow, "judge", lambda images: 1 / 0)
    kept = tmp_path / "kept"
    kept.mkdir()
    with pytest.raises(tulip_ood.TulipError, match="No space left"):
        application(detector, log="/dev/full")
    service = application(detector, shadow=shadow, log=tmp_path / "log", keep_images=kept)
    monkeypatch.setattr(service.scoring._log, "write", lambda lines: 1 / 0)
    kept.rmdir()
    assert [Client(service).score(GOOD).status for _ in range(2)] == [200, 200]
    service.close()
    text = service.scoring.metrics.text()
    for place in ("the shadow", "the log", "keeping images"):
        assert f'tulip_failures_total{{place="{place}"}} ' in text


def test_what_cannot_be_served_is_said_at_once(detector: Any, vectors: Any, tmp_path: Path) -> None:
    plain = tulip_ood.detectors.make("msp", vectors.model)
    with pytest.raises(tulip_ood.TulipError, match="not fitted"):
        application(plain, preprocess=PREPARED)
    with pytest.raises(InputError, match="how images are prepared"):
        application(plain.fit(vectors.loader()))
    with pytest.raises(InputError, match="never fits"):
        Limits(images=99, queue=98)
    with pytest.raises(InputError, match="no folder"):
        application(detector, keep_images=tmp_path / "nowhere")
    with pytest.raises(tulip_ood.TulipError, match="cannot be written"):
        application(detector, log=tmp_path / "no" / "log")
