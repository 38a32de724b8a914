"""How much each part of `Auto` counts: what it is worth, and how loud it may be."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tulip_ood.detectors.auto_parts import (
    ALIGNED,
    BOUNDARIES,
    CLIPPED,
    DEPTH,
    NEIGHBOURS,
    ORDER,
    RATIO,
    PartedSum,
)
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.compose import SumState
from tulip_ood.detectors.evidence import Trial, Weights
from tulip_ood.detectors.fitting import Fit
from tulip_ood.detectors.loudness import CLEARLY, SILENT, Voice, quietened, voices
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes

__all__ = ["FEATURES", "JS", "OF_FEATURES", "VoicedSum"]

FEATURES, OF_FEATURES = "features", (NEIGHBOURS, ALIGNED)  # how features lie: heard together
# So much worse than entropy at finding pseudo-OOD is not listened to; .1 for the others.
NOTHING_BELOW = {BOUNDARIES: 0.20, CLIPPED: 0.20}
# From quiet to loud, the usual one last. What J may be (J* orders errors worse: docs/research.md).
JS = (0.0, 1.0, 1.5)
# After silence, how much an opinion counts, and of which share of mildly changed images it has to
# say more (None: more than of the middle of ordinary ones).
VOICES: dict[str, tuple[tuple[float, float | None], ...]] = {
    FEATURES: ((2.0, 0.95), (2.0, 0.9), (1.5, 0.8), (0.75, None)),
    DEPTH: ((2.0, 0.99), (2.0, 0.98)),
    BOUNDARIES: ((2.0, 0.98), (2.0, 0.9)),
    CLIPPED: ((2.0, 0.98), (2.0, 0.9)),
    RATIO: ((1.0, 0.98), (1.0, 0.9)),
}
EVIDENCE = (DEPTH, BOUNDARIES, CLIPPED, RATIO)  # what is heard by itself
TURNS = (DEPTH, FEATURES, ORDER, BOUNDARIES, CLIPPED, RATIO)


class VoicedSum(PartedSum):
    """TULiP's order, and opinions that only speak against an input.

    Args:
        model: As for every detector.
        **common: As for every sum.

    Example:
        >>> import torch, tulip_ood
        >>> isinstance(tulip_ood.Auto(torch.nn.Linear(4, 3)), VoicedSum)
        True
    """

    strength: float

    def __init__(self, model: nn.Module | Network, **common: Any) -> None:
        super().__init__(model, **common)
        self._settled = True  # whether J and the voices are found
        self._forget_voices()

    # ----------------------------------------------------------------------- fit

    def _forget_voices(self) -> None:
        self._weights: Weights = {}  # as parts are heard: worth × slope
        self._bars: dict[str, float] = {}  # what an opinion has to exceed
        self._worth: Weights = {}
        self._voices: dict[str, list[Voice]] = {}

    def _weigh(self, trial: Trial) -> None:
        """What every part is worth, and the voices that the opinions could have."""
        for name, reason in trial.refused.items():
            self._leave_out(name, reason)
        self._worth, said = trial.weights(NOTHING_BELOW)
        mild = trial.of_mild_changes()
        # Inner stages see mild changes before anything else: without a bar they are not heard.
        if DEPTH in self._worth:
            self._worth[DEPTH] = 1.0 if mild else 0.0
        self._voices, of_mild = {}, self._opinions(mild)
        for name, asked in VOICES.items():
            if any(self._worth.get(part) for part in _parts_of(name)):
                least = 0.0 if name == FEATURES else CLEARLY
                self._voices[name] = [SILENT, *voices(asked, of_mild.get(name), least)]
        self._speak({name: len(possible) - 1 for name, possible in self._voices.items()})
        self._facts["evidence"] = {**said, "worth": dict(self._worth)}

    def _opinions(self, said: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What opinions say, from what parts say; without those that are worth nothing."""
        heard = {name: z for name, z in said.items() if self._worth.get(name)}
        lie = [self._worth[name] * heard[name] for name in OF_FEATURES if name in heard]
        alone = {name: z for name, z in heard.items() if name in VOICES}
        return {FEATURES: torch.stack(lie).sum(dim=0), **alone} if lie else alone

    def _speak(self, chosen: Mapping[str, int]) -> None:
        """Give every opinion the voice of this number."""
        self._weights, self._bars = dict.fromkeys(self._worth, 0.0), {}
        for name, possible in self._voices.items():
            voice = possible[chosen.get(name, 0)]
            for part in _parts_of(name):
                if part in self._worth:
                    self._weights[part] = voice.slope * self._worth[part]
            self._bars[name] = voice.bar * (voice.slope if name == FEATURES else 1.0)

    def _learn_and_calibrate(self, passes: Passes, state: Any) -> Fit:
        self._settled = not self._worth  # TULiP alone
        return super()._learn_and_calibrate(passes, state)

    def _asked(self, name: str, part: Detector) -> Callable[[Any, Passes], Tensor]:
        if name != ORDER or self._settled:
            return super()._asked(name, part)

        def with_every_j(state: Any, passes: Passes) -> Tensor:
            each = [self._says(part, replace(state, j_score=j), passes) for j in self._js]
            return torch.stack(each, dim=1)

        return with_every_j

    @property
    def _js(self) -> tuple[float, ...]:
        """What J may be: what the user has given, if anything."""
        return JS if self._order.j is None else (self._order.j,)

    def _standardised(self, passes: Passes, states: Sequence[Any]) -> SumState:
        """The first time, J and the voices are found by what parts say of held-out inputs."""
        learned, said = self._held_out(passes, states)
        if not self._settled:
            self._settled, at, order = True, self._part_names.index(ORDER), self._order
            chosen = self._settle(passes, dict(zip(self._part_names, said, strict=True)))
            said[at] = said[at][:, chosen]
            order._setting = replace(order._setting, j=self._js[chosen])
            setting = order._setting
            learned[at] = replace(learned[at], setting=setting, j_score=setting.j)
        return self._scaled(learned, said)

    def _settle(self, passes: Passes, said: dict[str, Tensor]) -> int:
        """Find the voices that held-out errors leave, and which J."""
        assert passes.labels is not None

        def z(name: str, scores: Tensor) -> Tensor:
            centre, spread = self._scale(name, scores)
            return (scores - centre) / spread

        orders = said.pop(ORDER).unbind(1)
        opinions = self._opinions({name: z(name, scores) for name, scores in said.items()})
        tried: dict[str, Sequence[Tensor]] = {
            name: [
                self._worth.get(name, 1.0) * voice.of(opinions[name])
                for voice in self._voices[name]
            ]
            for name in VOICES
            if name in opinions
        }
        tried[ORDER] = [z(ORDER, scores) for scores in orders]
        wrong = 1.0 - self.task.correct(passes.base, passes.labels)
        found = quietened(
            {name: tried[name] for name in TURNS if name in tried},
            self.task.base_uncertainty(passes.base),
            wrong,
        )
        self._facts["loudness"] = {"errors": int(wrong.sum()), **found}
        if len(self._js) > 1 and not self._js[found[ORDER]]:
            found.pop(RATIO, None)  # it alone would ask for noisy passes
        self._speak(found)
        return found[ORDER]

    # --------------------------------------------------------------------- score

    def _put_together(self, said: Mapping[str, Tensor]) -> Tensor:
        """The score, from what every part says on the scale of held-out data."""
        total = said[ORDER]
        lie = [self._weights[name] * said[name] for name in OF_FEATURES if name in said]
        if lie:
            beyond = (sum(lie[1:], lie[0]) - self._bars[FEATURES]).clamp_min(0.0)
            total = total + self.strength * beyond
        for name in EVIDENCE:
            if name in said:
                beyond = (said[name] - self._bars[name]).clamp_min(0.0)
                total = total + self.strength * self._weights[name] * beyond
        return total


def _parts_of(opinion: str) -> tuple[str, ...]:
    return OF_FEATURES if opinion == FEATURES else (opinion,)
