"""A small fitted detector for images, and a client that speaks ASGI without a network."""

import asyncio
import io
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tulip_ood
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.serving import Service, application

PREPARED = Preprocess(8, 8, (0.5,), (0.25,))
NAMES = ("first", "second", "third", "fourth")
TOKEN = "a token for tests"


@dataclass
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Calls an ASGI application; bodies may come in pieces."""

    def __init__(self, app: Any, *, root: str = "") -> None:
        self.app, self.root = app, root

    async def asked(
        self, method: str, path: str, body: bytes | list[bytes] = b"", **headers: str
    ) -> Reply:
        parts = [body] if isinstance(body, bytes) else list(body)
        messages = [
            {"type": "http.request", "body": part, "more_body": i < len(parts) - 1}
            for i, part in enumerate(parts)
        ]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop(0)
            await asyncio.Event().wait()  # the client waits for its answer
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)

        named = [(k.replace("_", "-").encode(), v.encode("latin-1")) for k, v in headers.items()]
        scope = {"type": "http", "method": method, "path": self.root + path}
        await self.app({**scope, "root_path": self.root, "headers": named}, receive, send)
        told = {k.decode(): v.decode("latin-1") for k, v in sent[0]["headers"]}
        return Reply(sent[0]["status"], told, b"".join(m.get("body", b"") for m in sent[1:]))

    def ask(self, method: str, path: str, body: bytes | list[bytes] = b"", **headers: str) -> Reply:
        return asyncio.run(self.asked(method, path, body, **headers))

    def score(self, content: bytes, kind: str = "image/png", **headers: str) -> Reply:
        return self.ask("POST", "/v1/score", content, content_type=kind, **headers)


def fitted(images: Any, method: str = "tulip") -> Any:
    """A detector of noisy bars; they are stored with 8 bits."""
    detector = tulip_ood.detectors.make(method, images.model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tulip_ood.TulipWarning)
        how = {"recipe": "balanced"} if method == "tulip" else {}
        detector.fit(images.loader(), **how)
    detector.provenance |= {"preprocess": PREPARED.to_json(), "classes": list(NAMES)}
    return detector


@pytest.fixture(scope="session")
def detector(images: Any) -> Any:
    """Shared: tests that set a threshold put it back."""
    return fitted(images)


@pytest.fixture(scope="session")
def rival(images: Any) -> Any:
    return fitted(images, "msp")


@pytest.fixture
def service(detector: Any) -> Iterator[Service]:
    app = application(detector, admin_token=TOKEN)
    yield app
    app.close()
    detector.set_threshold(false_alarm=0.05)


@pytest.fixture
def client(service: Service) -> Client:
    return Client(service)


def encoded(image: Image.Image, kind: str = "PNG", **how: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def picture(x: torch.Tensor) -> Image.Image:
    """An input of the network as an 8-bit image."""
    pixels = (255 * (x[0] * 0.25 + 0.5)).clamp(0, 255).round().to(torch.uint8)
    return Image.fromarray(pixels.numpy())


def form(*files: tuple[str, bytes]) -> tuple[bytes, str]:
    """A multipart form and its Content-Type."""
    parts = []
    for name, content in files:
        head = f'--line\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n'
        parts.append(head.encode() + b"Content-Type: image/png\r\n\r\n" + content + b"\r\n")
    return b"".join(parts) + b"--line--\r\n", "multipart/form-data; boundary=line"


def local(detector: Any, contents: list[bytes]) -> Any:
    """What the detector says without a server."""
    pixels = np.stack([PREPARED.pixels(content) for content in contents])
    return detector.predict(PREPARED.normalise(pixels))
