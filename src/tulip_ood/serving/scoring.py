"""From uploads to answers: decoded by a few threads, batched, scored, counted, logged."""

import asyncio
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tulip_ood.errors import InputError, ThresholdError
from tulip_ood.serving.batching import Batcher
from tulip_ood.serving.counting import Metrics
from tulip_ood.serving.describing import describe, describe_threshold
from tulip_ood.serving.images import Upload, unreadable
from tulip_ood.serving.judging import Judge, Judged
from tulip_ood.serving.keeping import keep_image
from tulip_ood.serving.limits import Holding, Limits
from tulip_ood.serving.refusal import RefusalError
from tulip_ood.serving.score_log import ScoreLog

__all__ = ["Scoring"]

_MOST_DECODERS = 4
_LOG = logging.getLogger(__name__)


class _Prepared(NamedTuple):
    pixels: NDArray[np.uint8]
    for_shadow: NDArray[np.uint8] | None  # None where there is no shadow, or it cannot see this
    kept: str | None  # the file that keeps it


class Scoring:
    """Answers with one detector; a second one, in its shadow, is counted and logged only.

    Args:
        judge: The detector that answers.
        shadow: Another one that sees the same images after the answer is out.
        limits: How much may be asked for.
        log: Where every decision is written to.
        keep: A folder for the images themselves; by default none is kept.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.data.preprocess import Preprocess
        >>> x, y = torch.rand(200, 1, 2, 2), torch.randint(3, (200,))
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> msp = tulip_ood.detectors.MSP(model).fit([(x, y)])
        >>> scoring = Scoring(Judge(msp, preprocess=Preprocess(2, 2, (0.0,), (1.0,))))
        >>> scoring.answer(np.zeros((2, 2, 1), dtype=np.uint8)).answer["label"] in (0, 1, 2)
        True
        >>> scoring.close()
    """

    def __init__(
        self,
        judge: Judge,
        *,
        shadow: Judge | None = None,
        limits: Limits | None = None,
        log: ScoreLog | None = None,
        keep: str | os.PathLike[str] | None = None,
    ) -> None:
        self.judge, self.shadow = judge, shadow
        self.limits = Limits() if limits is None else limits
        self._log = log
        self._keep = None if keep is None else Path(keep)
        if self._keep is not None and not self._keep.is_dir():
            raise InputError(f"images cannot be kept: there is no folder {self._keep}")
        # Where both prepare images alike, they share the pixels.
        self._alike = shadow is not None and shadow.preprocess == judge.preprocess
        self._batcher: Batcher[_Prepared, Judged] = Batcher(
            self._work,
            kind=lambda item: item.pixels.shape,
            largest=self.limits.batch,
            wait=self.limits.wait,
            room=self.limits.queue,
            after=self._after,
        )
        self._n_decoders = min(_MOST_DECODERS, os.cpu_count() or 1)
        self._decoders = ThreadPoolExecutor(self._n_decoders, thread_name_prefix="tulip-decode")
        self.metrics = Metrics(lambda: self._batcher.waiting, self._thresholds)
        if log is not None:
            for role, one in self.roles():
                log.begin(one, role)

    def roles(self) -> list[tuple[str, Judge]]:
        """Both detectors, as metrics and logs call them."""
        found = [("answering", self.judge)]
        return found if self.shadow is None else [*found, ("shadow", self.shadow)]

    def _thresholds(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        found: list[tuple[tuple[tuple[str, str], ...], float]] = []
        for role, judge in self.roles():
            labels = (("detector", role), ("method", judge.detector.name), ("model", judge.version))
            if judge.detector.threshold is not None:
                found.append((labels, judge.detector.threshold.value))
        return found

    # ------------------------------------------------------------- what is promised

    @property
    def version(self) -> str:
        """What the detector that answers is called."""
        return self.judge.version

    @property
    def threshold(self) -> dict[str, Any] | None:
        """What is accepted now, with its promise; ready for JSON."""
        return describe_threshold(self.judge)

    async def set_threshold(self, asked: dict[str, float]) -> None:
        """Promise something else from the next image on; as for `detector.set_threshold`."""
        try:
            await asyncio.to_thread(self.judge.detector.set_threshold, **asked)
        except (InputError, ThresholdError) as error:
            raise RefusalError(422, "cannot-be-promised", str(error)) from error

    async def describe(self) -> dict[str, Any]:
        """Everything but what changes while a server runs; ready for JSON."""
        return await asyncio.to_thread(lambda: self._described)

    @cached_property
    def _described(self) -> dict[str, Any]:
        known = None
        if self.shadow is not None:
            known = {"method": self.shadow.detector.name, "version": self.shadow.version}
        return describe(self.judge) | {"shadow": known}

    # ------------------------------------------------------------------- answers

    async def answers(
        self, uploads: Sequence[Upload], holding: Holding
    ) -> "list[Judged | RefusalError]":
        """One entry an upload: what is said of it, or why nothing can be said."""
        prepared = await self._prepared(uploads)
        good = [one for one in prepared if isinstance(one, _Prepared)]
        holding.add(sum(one.pixels.nbytes for one in good))
        futures = [asyncio.wrap_future(future) for future in self._batcher.submit(good)]
        try:
            found = iter(await asyncio.gather(*futures, return_exceptions=True))
        except asyncio.CancelledError:  # the time is up, or nobody waits: no work for nothing
            for future in futures:
                future.cancel()
            raise
        out: list[Judged | RefusalError] = []
        for one in prepared:
            result = one if isinstance(one, RefusalError) else next(found)
            out.append(
                result if isinstance(result, Judged | RefusalError) else self._explain(result)
            )
        for refusal in out:
            if isinstance(refusal, RefusalError):
                self.metrics.images.add(detector="answering", decision="unreadable")
        return out

    async def _prepared(self, uploads: Sequence[Upload]) -> "list[_Prepared | RefusalError]":
        """Decoded; no more at once than can be, so that a large request lets others in between."""
        loop, turns = asyncio.get_running_loop(), asyncio.Semaphore(self._n_decoders)

        async def one(upload: Upload) -> "_Prepared | RefusalError":
            async with turns:
                return await loop.run_in_executor(self._decoders, self._prepare, upload)

        return await asyncio.gather(*map(one, uploads))

    def answer(self, pixels: NDArray[np.uint8]) -> Judged:
        """What is said of one prepared image; waits for it."""
        return self._batcher.submit([_Prepared(pixels, None, None)])[0].result()

    def _explain(self, error: object) -> RefusalError:
        if isinstance(error, InputError):  # for instance a network that wants another size
            return unreadable(str(error))
        _LOG.error("scoring failed", exc_info=error if isinstance(error, Exception) else None)
        self.metrics.failures.add(place="scoring")
        return RefusalError(500, "scoring-failed", "the detector failed on this image; see the log")

    # ------------------------------------------------------------ decoding threads

    def _prepare(self, upload: Upload) -> "_Prepared | RefusalError":
        limit = self.limits.pixels
        try:
            pixels = self.judge.pixels(upload.content, limit)
        except RefusalError as refusal:
            return refusal
        for_shadow = pixels if self._alike else None
        if self.shadow is not None and not self._alike:
            try:
                for_shadow = self.shadow.pixels(upload.content, limit)
            except RefusalError:
                self.metrics.images.add(detector="shadow", decision="unreadable")
        kept = None
        if self._keep is not None:
            try:
                kept = keep_image(self._keep, upload.content)
            except Exception:  # a full disk must not cost the answer
                self._failed("keeping images")
        return _Prepared(pixels, for_shadow, kept)

    # ----------------------------------------------------------- the scoring thread

    def _work(self, items: list[_Prepared]) -> list[Judged]:
        found = self.judge.judge([item.pixels for item in items])
        self.metrics.batch_size.add(len(items))
        for judged in found:  # before the answers are out: whoever has one finds it counted
            self.metrics.judged("answering", judged.p_value, accepted=judged.accepted)
        return found

    def _after(self, items: list[_Prepared], results: list[Judged]) -> None:
        lines = []
        for item, judged in zip(items, results, strict=True):
            if self._log is not None:
                more = {} if item.kept is None else {"image": item.kept}
                lines.append(self._log.judged(self.judge, "answering", judged, **more))
        lines += self._in_the_shadow(items, results)
        if self._log is not None:
            try:
                self._log.write(lines)
            except Exception:
                self._failed("the log")

    def _in_the_shadow(
        self, items: list[_Prepared], results: list[Judged]
    ) -> list[dict[str, object]]:
        """What the second detector says; whatever goes wrong with it is its own affair."""
        groups: dict[tuple[int, ...], list[tuple[NDArray[np.uint8], Judged]]] = {}
        for item, answered in zip(items, results, strict=True):
            if item.for_shadow is not None:
                groups.setdefault(item.for_shadow.shape, []).append((item.for_shadow, answered))
        lines: list[dict[str, object]] = []
        for group in groups.values():
            assert self.shadow is not None
            try:
                found = self.shadow.judge([pixels for pixels, _ in group])
            except Exception:
                self._failed("the shadow")
                continue
            for judged, (_, answered) in zip(found, group, strict=True):
                self.metrics.judged("shadow", judged.p_value, accepted=judged.accepted)
                decisions = [one.answer["decision"] for one in (answered, judged)]
                self.metrics.pairs.add(answering=decisions[0], shadow=decisions[1])
                if self._log is not None:
                    lines.append(self._log.judged(self.shadow, "shadow", judged))
        return lines

    def _failed(self, place: str) -> None:
        if self.metrics.failures.value(place=place) == 0:  # once is enough to be noticed
            _LOG.exception("%s failed; further failures are only counted", place)
        self.metrics.failures.add(place=place)

    def close(self) -> None:
        """Work off what waits, then end the threads."""
        self._batcher.close()
        self._decoders.shutdown(wait=True)
        if self._log is not None:
            self._log.close()
