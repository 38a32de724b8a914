"""The demo itself: train a network, fit every detector, compare them on what it never saw."""

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tulip_ood.benchmark.evaluate import evaluate
from tulip_ood.benchmark.results import Comparison
from tulip_ood.benchmark.verdict import Verdict, judge
from tulip_ood.demo.data import DigitData, load_data
from tulip_ood.demo.leaving import Left, leave
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.registry import make
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import TulipWarning
from tulip_ood.models.digits import DigitNet, train_digit_net
from tulip_ood.version import __version__

__all__ = ["METHODS", "DemoResult", "run_demo"]

METHODS = ("msp", "ent", "mls", "ebo", "noise", "tulip")


@dataclass(frozen=True)
class DemoResult:
    """What the demo did and found.

    Attributes:
        seed: It decides everything.
        data: The pictures.
        model: The trained network.
        detectors: Every method, fitted.
        comparison: Every score and every number.
        verdict: What they mean.

    Example:
        >>> list(DemoResult.__dataclass_fields__)[-1]
        'verdict'
    """

    seed: int
    data: DigitData
    model: DigitNet
    detectors: dict[str, Detector]
    comparison: Comparison
    verdict: Verdict

    @property
    def tulip(self) -> Detector:
        """The detector that the demo is about."""
        return self.detectors["tulip"]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: settings, what was fitted, the numbers, the verdict."""
        return {
            "format": "tulip-demo-1",
            "version": __version__,
            "seed": self.seed,
            "sizes": {
                "train": len(self.data.train[1]),
                "validation": len(self.data.validation[1]),
                "test": len(self.data.test[1]),
            },
            "fitted": self.tulip.report().to_dict(),
            "comparison": self.comparison.to_dict(),
            "verdict": [self.verdict.headline, *self.verdict.sentences],
        }

    def write(self, folder: str | Path) -> tuple[Path, Path, Left]:
        """Write `report.html`, `results.json` and what is left to go on with; returns where."""
        from tulip_ood.demo.page import write_page  # what draws is not needed to compute

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        results = target / "results.json"
        results.write_text(json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n", "utf-8")
        return write_page(target / "report.html", self), results, leave(target, self)


def run_demo(seed: int = 0, *, say: Callable[[str], None] | None = None) -> DemoResult:
    """Train, fit, compare; nothing is fitted or chosen on the OOD pictures.

    Args:
        seed: Decides the split, the network, the noise.
        say: Called with a line about each step before it is taken.

    Example:
        >>> import inspect  # a run takes some 15 seconds: `tulip demo` shows one
        >>> list(inspect.signature(run_demo).parameters)
        ['seed', 'say']
    """
    say = say or (lambda line: None)
    data = load_data(seed)
    with _one_thread():
        say(f"training a small ResNet on {len(data.train[1])} pictures of digits")
        model = train_digit_net(*data.train, classes=len(data.class_names), seed=seed)
        say(f"fitting {len(METHODS)} detectors on {len(data.validation[1])} validation pictures")
        detectors = _fit(model, data.validation, seed)
        unseen = sum(map(len, data.ood.values()))
        say(f"scoring {len(data.test[1])} test pictures, and {unseen} of kinds it never saw")
        comparison = evaluate(detectors, data.test, data.ood, data.groups)
    return DemoResult(seed, data, model, detectors, comparison, judge(comparison))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Pictures this small gain nothing from a second thread, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fit(model: DigitNet, validation: tuple[Tensor, Tensor], seed: int) -> dict[str, Detector]:
    with warnings.catch_warnings():
        # Every finding stands in the report too, where it is not lost between progress lines.
        warnings.simplefilter("ignore", TulipWarning)
        tulip = Tulip(model, seed=seed).fit([validation])
        # The same noise, so that the difference to TULiP is the bound alone.
        epsilon = tulip.fitted.setting.epsilon
        given = {"noise": {"epsilon": epsilon}}
        others: dict[str, Detector] = {
            name: make(name, model, seed=seed, **given.get(name, {})).fit([validation])
            for name in METHODS
            if name != "tulip"
        }
    return {name: others.get(name, tulip) for name in METHODS}
