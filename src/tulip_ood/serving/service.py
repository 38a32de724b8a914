"""The server as a plain ASGI application: any ASGI server runs it, any framework mounts it."""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.detectors.base import Detector
from tulip_ood.serving.backend import Backend
from tulip_ood.serving.exchange import (
    GoneError,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    json_response,
)
from tulip_ood.serving.images import Upload, read_uploads
from tulip_ood.serving.judging import Judge, Judged
from tulip_ood.serving.limits import Limits, Memory
from tulip_ood.serving.openapi import openapi
from tulip_ood.serving.pages import page
from tulip_ood.serving.refusal import RefusalError
from tulip_ood.serving.score_log import ScoreLog
from tulip_ood.serving.scoring import Scoring
from tulip_ood.serving.tokens import Tokens
from tulip_ood.wording import from_json

__all__ = ["Service", "application"]

_LOG = logging.getLogger(__name__)
_GONE = "499"  # as others count a client that has left; nobody is told
_SMALL_BODY = 4096  # bytes that a new threshold may take
_READ = 200  # characters of what a client sent that it is told again
Handler = Callable[[Request], Awaitable[Response]]


class Service:
    """The ASGI application. `application` makes one; see there.

    Args:
        scoring: What answers.
        tokens: Who may ask, and who may change the threshold.

    Example:
        >>> Service.__call__.__name__
        '__call__'
    """

    def __init__(self, scoring: Backend, tokens: Tokens) -> None:
        self.scoring = scoring
        self._tokens = tokens
        self._memory = Memory(scoring.limits.held)
        self._closing = False
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/score": {"POST": self._score},
            "/v1/model": {"GET": self._model},
            "/v1/threshold": {"PUT": self._set_threshold},
            "/healthz": {"GET": self._health},
            "/metrics": {"GET": self._metrics},
            "/openapi.json": {"GET": self._openapi},
        }

    # ---------------------------------------------------------------------- ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
        elif scope["type"] == "http":
            await self._http(Request(scope, receive), send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await asyncio.to_thread(self.close)
                await send({"type": "lifespan.shutdown.complete"})
                return

    def close(self) -> None:
        """Refuse what is new, work off what waits, end the threads; once is enough."""
        if not self._closing:
            self._closing = True
            self.scoring.close()

    async def _http(self, request: Request, send: Send) -> None:
        begun = time.perf_counter()
        metrics = self.scoring.metrics
        path = request.path if request.path in self._routes else "other"
        try:
            response = await self._respond(request)
        except GoneError:
            metrics.requests.add(path=path, status=_GONE)
            return
        metrics.requests.add(path=path, status=str(response.status))
        metrics.seconds.add(time.perf_counter() - begun, path=path)
        await response.send(send, head=request.method == "HEAD")

    async def _respond(self, request: Request) -> Response:
        try:
            return await self._handler(request)(request)
        except RefusalError as refusal:
            return json_response(refusal.to_json(), refusal.status, refusal.headers)
        except GoneError:
            raise
        except Exception:
            _LOG.exception("%s %s failed", request.method, request.path)
            self.scoring.metrics.failures.add(place="requests")
            told = RefusalError(500, "internal", "something failed inside; see the server's log")
            return json_response(told.to_json(), told.status)

    def _handler(self, request: Request) -> Handler:
        methods = self._routes.get(request.path)
        if methods is None:
            if request.path and page(request.path) is None:  # whatever is done there
                where = _short(request.path)
                raise RefusalError(404, "not-found", f"there is nothing at {where}; see /docs")
            methods = {"GET": self._page}
        wanted = "GET" if request.method == "HEAD" else request.method
        if wanted not in methods:
            allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
            raise RefusalError(
                405,
                "wrong-method",
                f"{_short(request.path)} takes {allowed}, not {_short(request.method)}",
                headers=[("allow", allowed)],
            )
        return methods[wanted]

    # -------------------------------------------------------------------- scoring

    async def _score(self, request: Request) -> Response:
        self._tokens.check_use(request.header("authorization"))
        limits = self.scoring.limits
        late = _too_slow(limits)
        with self._memory.holding() as holding:
            try:
                async with asyncio.timeout(limits.seconds):
                    _check_encoding(request)
                    body = await request.body(limits.body, holding)
                    late = RefusalError(
                        504, "too-late", f"no answer within {limits.seconds:g} seconds: try again"
                    )
                    kind = request.header("content-type")
                    uploads = await asyncio.to_thread(read_uploads, body, kind, limits)
                    found = await request.answered(self.scoring.answers(uploads, holding))
            except TimeoutError:
                raise late from None
        return self._answer(uploads, found)

    def _answer(
        self, uploads: Sequence[Upload], found: "Sequence[Judged | RefusalError]"
    ) -> Response:
        results: list[dict[str, Any]] = []
        for upload, one in zip(uploads, found, strict=True):
            if isinstance(one, Judged):
                results.append({"name": upload.name, **one.answer})
            else:
                told = {"name": upload.name, "decision": "unreadable", "accepted": False}
                results.append(told | one.to_json())
        failed = [one for one in found if isinstance(one, RefusalError)]
        if len(failed) == len(found):  # nothing was answered: that is no success
            worst = max(failed, key=lambda one: one.status)
            return json_response(worst.to_json() | {"results": results}, worst.status)
        threshold = self.scoring.threshold
        return json_response(
            {
                "model": self.scoring.version,
                "threshold": None if threshold is None else threshold["value"],
                "results": results,
            }
        )

    # ------------------------------------------------------------------ the others

    async def _set_threshold(self, request: Request) -> Response:
        self._tokens.check_change(request.header("authorization"))
        if request.content_type != "application/json":
            raise RefusalError(
                415,
                "unknown-content-type",
                f"Content-Type {request.content_type!r} is not known here: send application/json",
            )
        limits = self.scoring.limits
        with self._memory.holding() as holding:
            try:
                async with asyncio.timeout(limits.seconds):
                    body = await request.body(min(limits.body, _SMALL_BODY), holding)
            except TimeoutError:
                raise _too_slow(limits) from None
        asked = _threshold_arguments(body)
        await self.scoring.set_threshold(asked)
        return json_response(self.scoring.threshold)

    async def _model(self, request: Request) -> Response:
        self._tokens.check_use(request.header("authorization"))
        told = {"limits": asdict(self.scoring.limits), "threshold": self.scoring.threshold}
        return json_response(await self.scoring.describe() | told)

    async def _health(self, _: Request) -> Response:
        if self._closing:
            raise RefusalError(503, "closing", "this server is about to stop")
        return json_response({"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        self._tokens.check_use(request.header("authorization"))
        text = self.scoring.metrics.text()
        return Response(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def _openapi(self, request: Request) -> Response:
        guarded = self._tokens.use is not None
        return json_response(openapi(self.scoring.limits, root=request.root, guarded=guarded))

    async def _page(self, request: Request) -> Response:
        if request.path == "":  # links on the page are relative to a folder
            return Response(307, b"", "text/plain", [("location", request.root + "/")])
        found = page(request.path, request.header("if-none-match"))
        assert found is not None  # or it would not be asked for
        return found


def _short(text: str) -> str:
    """What a client has sent, without more of it than a person reads."""
    return text if len(text) <= _READ else f"{text[:_READ]}…"


def _too_slow(limits: Limits) -> RefusalError:
    return RefusalError(
        408,
        "too-slow",
        f"the body did not come within {limits.seconds:g} seconds",
        headers=[("connection", "close")],  # whatever may still come
    )


def _check_encoding(request: Request) -> None:
    encoding = request.header("content-encoding")
    if encoding not in ("", "identity"):
        raise RefusalError(
            415,
            "unknown-content-encoding",
            f"Content-Encoding {encoding!r} is not known here: send the body as it is",
        )


def _threshold_arguments(body: bytes) -> dict[str, float]:
    try:
        values = from_json(body, pairs=_once)
    except ValueError as error:
        raise RefusalError(400, "bad-json", f"the body is no JSON: {error}") from error
    known = ({"false_alarm"}, {"max_error"}, {"max_error", "confidence"})
    if not isinstance(values, dict) or set(values) not in known:
        raise RefusalError(
            422,
            "bad-json",
            'expected {"false_alarm": 0.05}, or {"max_error": 0.02, "confidence": 0.95}',
        )
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
            raise RefusalError(422, "bad-json", f"{name} must be a number between 0 and 1")
    return {name: float(value) for name, value in values.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different: of two thresholds, which was meant?"""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RefusalError(422, "bad-json", "a name stands twice in the body")
    return found


def application(
    detector: Detector,
    *,
    preprocess: Preprocess | None = None,
    classes: Sequence[str] | None = None,
    version: str | None = None,
    shadow: "Detector | Judge | None" = None,
    token: str | None = None,
    admin_token: str | None = None,
    limits: Limits | None = None,
    log: str | os.PathLike[str] | None = None,
    keep_images: str | os.PathLike[str] | None = None,
) -> Service:
    """A server for a fitted detector, as a plain ASGI application.

    Its threads start with the first image and end with ASGI's lifespan, or with `close()` where
    the application is mounted without one.

    Args:
        detector: It answers.
        preprocess: How images are prepared; by default as the detector's provenance says.
        classes: What the outputs mean; by default as the detector's provenance says.
        version: What the detector is called in answers and logs; by default a fingerprint.
        shadow: A second detector that is only counted and logged; a `Judge` where it prepares
            images in another way than its provenance says.
        token: A bearer token that clients must send; by default none.
        admin_token: The token for a new threshold; by default the same. With neither, nobody may.
        limits: How much may be asked for.
        log: A file that gets one line for every decision, for `tulip monitor`.
        keep_images: A folder for the images themselves; by default none is kept.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.data.preprocess import Preprocess
        >>> x, y = torch.rand(200, 1, 2, 2), torch.randint(3, (200,))
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> msp = tulip_ood.detectors.MSP(model).fit([(x, y)])
        >>> app = application(msp, preprocess=Preprocess(2, 2, (0.0,), (1.0,)))
        >>> app.close()
    """
    judge = Judge(detector, preprocess=preprocess, classes=classes, version=version)
    tokens = Tokens(token, admin_token)
    if isinstance(shadow, Detector):
        shadow = Judge(shadow)
    scoring = Scoring(
        judge,
        shadow=shadow,
        limits=limits,
        log=None if log is None else ScoreLog(log),
        keep=keep_images,
    )
    return Service(scoring, tokens)
