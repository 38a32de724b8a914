"""A gate before an application's own model, so that the application can answer "not sure"."""

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.detectors.answering import need_detector
from tulip_ood.detectors.base import Detector
from tulip_ood.network.inputs import Inputs
from tulip_ood.serving.exchange import (
    Application,
    GoneError,
    Receive,
    Request,
    Scope,
    Send,
    json_response,
)
from tulip_ood.serving.images import read_uploads
from tulip_ood.serving.judging import Judge, Judged, class_name, class_names
from tulip_ood.serving.limits import Limits, Memory
from tulip_ood.serving.refusal import RefusalError
from tulip_ood.serving.scoring import Scoring

__all__ = ["Gate", "GatedApplication", "Verdict"]


class Verdict(dict[str, Any]):
    """What a gate says of one image: the same as an entry of `POST /v1/score`.

    Example:
        >>> Verdict(decision="refused", accepted=False).sure
        False
    """

    @property
    def sure(self) -> bool:
        """Whether the network's answer may be given."""
        return bool(self["accepted"])


class Gate:
    """Lets a network's answer through where it can be trusted.

    As a plain function, `gate(x)` gives a label for every input that is accepted, and `unsure` for
    the others. As ASGI middleware, `gate.around(app)` looks at every request that brings images
    and puts what it finds into the request's state, under "tulip", before `app` sees it.

    Args:
        detector: Fitted; for the middleware also with a way to prepare images.
        unsure: What is said instead of a label.
        answer: If given, the middleware itself replies to a request with an image that is refused
            or cannot be read: a function from the verdicts to the JSON to send (status 200).
            By default the application sees every request and decides.
        preprocess: How images are prepared; by default as the detector's provenance says.
        classes: What the outputs mean; by default as the detector's provenance says.
        limits: How much a request may bring; larger ones are refused.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> gate = tulip_ood.Gate(detector, unsure="not sure", classes=("ant", "bee", "cat"))
        >>> gate(torch.full((1, 4), torch.nan))
        ['not sure']
    """

    def __init__(
        self,
        detector: Detector,
        *,
        unsure: Any = None,
        answer: Callable[[Sequence[Verdict]], Any] | None = None,
        preprocess: Preprocess | None = None,
        classes: Sequence[str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.detector = need_detector(detector)
        self._unsure, self._reply = unsure, answer
        self._limits = Limits() if limits is None else limits
        self._classes = class_names(detector, classes)
        self._preprocess = preprocess

    def __call__(self, x: Inputs) -> list[Any]:
        """A label (its name, where classes have names) or `unsure`, for every input.

        Args:
            x: Inputs as the model takes them.
        """
        found = self.detector.predict(x)
        out = []
        for label, sure in zip(found.label.tolist(), found.accepted.tolist(), strict=True):
            name = class_name(self._classes, label)
            out.append((label if name is None else name) if sure else self._unsure)
        return out

    def around(self, app: Application) -> "GatedApplication":
        """The application with this gate before it; frameworks take this as a middleware class."""
        judge = Judge(self.detector, preprocess=self._preprocess, classes=self._classes)
        return GatedApplication(app, Scoring(judge, limits=self._limits), self._reply)


class GatedApplication:
    """An ASGI application behind a gate; `Gate.around` makes one.

    Args:
        app: What is behind the gate.
        scoring: What looks at images.
        reply: The answer to what is not sure, or None to leave that to `app`.

    Example:
        >>> GatedApplication.close.__name__
        'close'
    """

    def __init__(
        self,
        app: Application,
        scoring: Scoring,
        reply: Callable[[Sequence[Verdict]], Any] | None,
    ) -> None:
        self._app, self._scoring, self._reply = app, scoring, reply
        self._memory = Memory(scoring.limits.held)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        request = Request(scope, receive)
        if scope["type"] != "http" or not _brings_images(request):
            await self._app(scope, receive, send)
            return
        with self._memory.holding() as holding:
            limits = self._scoring.limits
            try:
                async with asyncio.timeout(limits.seconds):
                    body = await request.body(limits.body, holding)
                    uploads = read_uploads(body, request.header("content-type"), limits)
                    found = await request.answered(self._scoring.answers(uploads, holding))
            except TimeoutError:
                await _refuse(RefusalError(504, "too-late", "no answer in time: try again"), send)
                return
            except RefusalError as refusal:
                await _refuse(refusal, send)
                return
            except GoneError:
                return
        names = [upload.name for upload in uploads]
        verdicts = [_verdict(name, one) for name, one in zip(names, found, strict=True)]
        if self._reply is not None and not all(verdict.sure for verdict in verdicts):
            await json_response(self._reply(verdicts)).send(send)
            return
        scope.setdefault("state", {})["tulip"] = verdicts
        await self._app(scope, _replayed(body, receive), send)

    def close(self) -> None:
        """End the gate's threads."""
        self._scoring.close()


def _brings_images(request: Request) -> bool:
    kind = request.content_type
    return request.method in ("POST", "PUT") and (
        kind.startswith("image/") or kind == "multipart/form-data"
    )


def _verdict(name: str | None, found: "Judged | RefusalError") -> Verdict:
    if isinstance(found, Judged):
        return Verdict(found.answer, name=name)
    return Verdict(found.to_json(), name=name, decision="unreadable", accepted=False)


async def _refuse(refusal: RefusalError, send: Send) -> None:
    await json_response(refusal.to_json(), refusal.status, refusal.headers).send(send)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, for the application; then whatever the server has to say."""
    given = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
