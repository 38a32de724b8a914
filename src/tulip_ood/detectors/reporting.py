"""What a fitted detector has to say about itself, for people and for programs."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from tulip_ood.detectors.decision import Calibration, Threshold
from tulip_ood.detectors.findings import Finding

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """What was fitted, what is promised, what looked odd. `print` it, or take `to_dict()`.

    Attributes:
        name: The method.
        facts: Numbers by name.
        lines: What they mean, in sentences.
        threshold: What is accepted, with its promise.
        calibration: The held-out scores.
        findings: What was degenerate or suspicious.

    Example:
        >>> import torch, tulip_ood, warnings
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> print(str(detector.report()).splitlines()[0])
        msp, fitted on 200 validation inputs
    """

    name: str
    facts: dict[str, Any]
    lines: tuple[str, ...]
    threshold: Threshold | None
    calibration: Calibration
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        n = self.facts.get("n_validation", 0)
        where = f"{n} validation inputs"
        if "n_train" in self.facts:
            where = f"{self.facts['n_train']} training inputs, threshold from {where}"
        out = [f"{self.name}, fitted on {where}", *self.lines]
        held = self.calibration
        how = "cross-fitted on all of them" if held.cross_fitted else "held out from fitting"
        out.append(f"threshold data: {held.n_inputs} inputs, {how}")
        if self.threshold is not None:
            bounded = self.threshold.value < 1e300
            limit = (
                f"up to a score of {self.threshold.value:.6g}" if bounded else "whatever the score"
            )
            out.append(f"accepted {limit}:")
            out.append(f"  {self.threshold.promise}")
        if not math.isnan(held.aurc):
            out.append(
                f"AURC of the network's own errors: {1000 * held.aurc:.2f} × 10⁻³ (lower is better)"
            )
        if self.findings:
            out.append("look at this:")
            out += [f"  - {finding}" for finding in self.findings]
        return "\n".join(out)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the scores themselves, ready for JSON."""
        return {
            "method": self.name,
            "facts": self.facts,
            "threshold": None if self.threshold is None else asdict(self.threshold),
            "calibration": {
                "n_inputs": self.calibration.n_inputs,
                "cross_fitted": self.calibration.cross_fitted,
                "aurc": None if math.isnan(self.calibration.aurc) else self.calibration.aurc,
            },
            "findings": [asdict(finding) for finding in self.findings],
        }
