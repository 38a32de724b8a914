"""A replica of the server: it holds the network and scores; it speaks no HTTP.

Every request brings the threshold that holds, so a replica that was not there when it was changed
knows it with its first image.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tulip_ood.cluster.job import Model, make_network
from tulip_ood.cluster.worker import load_there
from tulip_ood.serving.images import Upload
from tulip_ood.serving.judging import Judge, Judged
from tulip_ood.serving.limits import Limits, Memory
from tulip_ood.serving.refusal import RefusalError
from tulip_ood.serving.scoring import Scoring

__all__ = ["Blueprint", "Replica", "Setting"]


@dataclass(frozen=True)
class Blueprint:
    """What a replica is told.

    Attributes:
        detector: The bytes of the detector's file.
        version: What it is called in answers.
        model: The network's spec, or a function that makes it.
        trust: Whether a `.pt2` file may be opened.
        classes: What the outputs mean; None for what the file says.
        device: Where passes run.
        limits: How much may be asked for.
        folder: Where the user stands.

    Example:
        >>> Blueprint(b"", "1", "vit-b-16", False, None, None, Limits(), ".").version
        '1'
    """

    detector: bytes
    version: str
    model: Model
    trust: bool
    classes: tuple[str, ...] | None
    device: str | None
    limits: Limits
    folder: str

    def scoring(self) -> Scoring:
        """The detector, ready to answer, on the machine where this is called."""
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        network = make_network(self.model, trust=self.trust)
        ready = load_there(self.detector, network, self.device, self.limits.batch)
        judge = Judge(ready, classes=self.classes, version=self.version)
        return Scoring(judge, limits=self.limits)


class Setting(NamedTuple):
    """A threshold as it was asked for.

    Attributes:
        number: Later ones have larger numbers; 0 is what the detector's file says.
        asked: For `detector.set_threshold`.

    Example:
        >>> Setting(1, {"false_alarm": 0.05}) > Setting(0, {})
        True
    """

    number: int
    asked: dict[str, float]


class Replica:
    """What runs on Ray Serve. A refusal is returned, not raised: Ray would wrap it.

    Args:
        blueprint: What it is made of.

    Example:
        >>> from inspect import iscoroutinefunction
        >>> iscoroutinefunction(Replica.answers)
        True
    """

    def __init__(self, blueprint: Blueprint) -> None:
        self._scoring = blueprint.scoring()
        self._memory = Memory(blueprint.limits.held)
        self._number = 0
        self._lock = asyncio.Lock()

    async def answers(
        self, uploads: Sequence[Upload], setting: Setting
    ) -> "list[Judged | RefusalError] | RefusalError":
        """One entry an upload, judged by this setting or a later one; or why there is none."""
        try:
            await self._hold(setting)
            with self._memory.holding() as holding:
                return await self._scoring.answers(uploads, holding)
        except RefusalError as refusal:
            return refusal

    async def describe(self) -> dict[str, Any]:
        """What is fitted."""
        return await self._scoring.describe()

    async def threshold(self, setting: Setting) -> "dict[str, Any] | RefusalError | None":
        """What is accepted with a setting; here it holds from now on."""
        try:
            await self._hold(setting)
        except RefusalError as refusal:
            return refusal
        return self._scoring.threshold

    async def _hold(self, setting: Setting) -> None:
        if setting.number <= self._number:
            return
        async with self._lock:
            if setting.number > self._number:
                await self._scoring.set_threshold(setting.asked)
                self._number = setting.number
