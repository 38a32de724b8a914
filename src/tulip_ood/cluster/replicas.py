"""Replicas elsewhere, asked from here: an answer is not lost with the replica that was to give it.

Scoring changes nothing, so what a replica had when it died is asked again of another one. What is
counted is counted here, once an answer, however many replicas have worked on it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tulip_ood.cluster.replica import Setting
from tulip_ood.serving.counting import Metrics
from tulip_ood.serving.images import Upload
from tulip_ood.serving.judging import Judged
from tulip_ood.serving.limits import Holding, Limits, overloaded
from tulip_ood.serving.refusal import RefusalError

__all__ = ["Replicas"]

_ATTEMPTS = 5  # replicas that one request may lose
_PAUSE = 0.05  # seconds before the second attempt; doubled each time


class Replicas:
    """Answers with the replicas behind a handle of Ray Serve.

    Args:
        handle: Of the deployment of `tulip_ood.cluster.replica.Replica`.
        is_lost: Whether an error means that a replica was lost, not that it failed.
        limits: How much may be asked for; a queue for each replica.
        count: How many replicas there are.
        version: What the detector is called in answers.

    Example:
        >>> replicas = Replicas(None, lambda error: True, Limits(), count=2, version="1")
        >>> replicas.version, replicas.threshold
        ('1', None)
    """

    def __init__(
        self,
        handle: Any,
        is_lost: Callable[[Exception], bool],
        limits: Limits,
        *,
        count: int,
        version: str,
    ) -> None:
        self.limits, self.version = limits, version
        self.threshold: dict[str, Any] | None = None
        self.metrics = Metrics(lambda: self._under_way, self._thresholds)
        self._handle, self._is_lost = handle, is_lost
        self._room = count * limits.queue
        self._under_way = 0
        self._setting = Setting(0, {})
        self._changing = asyncio.Lock()
        self._described: dict[str, Any] | None = None

    def _thresholds(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        if self.threshold is None or self._described is None:
            return []
        named = (("method", self._described["method"]), ("model", self.version))
        return [((("detector", "answering"), *named), self.threshold["value"])]

    async def begin(self) -> None:
        """Ask a replica what is fitted and promised."""
        await self.describe()
        self.threshold = await self._ask("threshold", self._setting)

    async def describe(self) -> dict[str, Any]:
        """What is fitted; ready for JSON."""
        if self._described is None:
            self._described = await self._ask("describe")
        return self._described

    async def set_threshold(self, asked: dict[str, float]) -> None:
        """Promise something else: one replica says whether it can be, all others hear of it."""
        async with self._changing:
            setting = Setting(self._setting.number + 1, asked)
            try:
                async with asyncio.timeout(self.limits.seconds):
                    self.threshold = await self._ask("threshold", setting)
            except TimeoutError:
                raise RefusalError(504, "too-late", "no replica answered in time") from None
            self._setting = setting

    async def answers(
        self, uploads: Sequence[Upload], holding: Holding
    ) -> "list[Judged | RefusalError]":
        """One entry an upload: what is said of it, or why nothing can be said."""
        if self._under_way + len(uploads) > self._room:
            raise overloaded()
        self._under_way += len(uploads)
        try:
            found: list[Judged | RefusalError]
            found = await self._ask("answers", list(uploads), self._setting)
        finally:
            self._under_way -= len(uploads)
        for one in found:
            if isinstance(one, Judged):
                self.metrics.judged("answering", one.p_value, accepted=one.accepted)
            else:
                self.metrics.images.add(detector="answering", decision="unreadable")
        return found

    async def _ask(self, what: str, *told: Any) -> Any:
        """What a replica answers; asked again of another one as often as one is lost."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                self.metrics.failures.add(place="replicas")
                await asyncio.sleep(_PAUSE * 2 ** (attempt - 1))
            asked = getattr(self._handle, what).remote(*told)
            try:
                found = await asked
            except asyncio.CancelledError:  # the time is up: no work for nothing
                asyncio.get_running_loop().run_in_executor(None, asked.cancel)
                raise
            except Exception as error:
                if not self._is_lost(error):
                    raise
                continue
            if isinstance(found, RefusalError):
                raise found
            return found
        raise RefusalError(
            500,
            "replicas-lost",
            f"{_ATTEMPTS} times no replica lived long enough to answer this: send its images one "
            f"by one, and see Ray's log",
        )

    def close(self) -> None:
        """Nothing is left to do here: whoever asked has waited for the answer."""
