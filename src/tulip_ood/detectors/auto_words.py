"""What `Auto` says of itself, and how it passes on what TULiP has found."""

from typing import TYPE_CHECKING

from tulip_ood.detectors.findings import Finding
from tulip_ood.detectors.loudness import FEW_ERRORS
from tulip_ood.wording import counted

if TYPE_CHECKING:
    from tulip_ood.detectors.auto import Auto

__all__ = ["auto_lines", "in_words_of_auto"]

# What TULiP advises to set, by the finding.
_ADVISED = {
    "batch-sensitive": "epsilon",
    "j-zero": "j",
    "near-chance": "epsilon",
    "guessed-mean": "initial_mean",
}
# Why J is 0 where it was given, and where `Auto` has found it.
_GIVEN, _FOUND = "as was asked for", "any other would order the network's own errors worse"


def in_words_of_auto(finding: Finding, *, gave_j: bool = True) -> Finding:
    """What TULiP has found; what it advises to set is given to `Auto` in another way.

    Args:
        finding: In TULiP's words.
        gave_j: Whether the J that TULiP was given is the user's.

    Example:
        >>> print(in_words_of_auto(Finding("near-chance", "Use a smaller epsilon")))
        Use a smaller epsilon (for auto, settings={'tulip': {'epsilon': …}}) [near-chance]
    """
    if (name := _ADVISED.get(finding.code)) is None:
        return finding
    text = finding.text.replace(", or tune=…,", "")
    if not gave_j:
        text = text.replace(_GIVEN, _FOUND)
    return Finding(finding.code, f"{text} (for auto, settings={{'tulip': {{'{name}': …}}}})")


def auto_lines(detector: "Auto") -> list[str]:
    """What was fitted, for a report.

    Example:
        >>> import torch, tulip_ood
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Linear(4, 3), torch.randn(200, 4)
        >>> y = (model(x) + torch.randn(200, 3) / 2).argmax(1)
        >>> detector = tulip_ood.Auto(model, parts=["tulip"], n_samples=0).fit([(x, y)])
        >>> auto_lines(detector)[1]
        'no noise; passes to score an input: 1'
    """
    others = detector._heard[1:]  # the first is TULiP
    heard = [f"{detector._weights[name]:.2g} × {name}" for name in others]
    beside = f", and {detector.strength:g} × what {', '.join(heard)} say beside it"
    base, noise, needs = "the network's own entropy", "no noise", detector._needs_to_score()
    if needs.settings.n_samples:
        order = detector._order
        base = "TULiP's score"
        noise = f"ε = {order._setting.epsilon:g}, J = {order._state.j_score:.3g}"
    mirrors = ", mirror images looked at as well" if detector._mirrors else ""
    return [
        f"{detector.recipe}: {base}" + (beside if heard else "; nothing else is heard"),
        f"{noise}{mirrors}; passes to score an input: {needs.passes}",
        *_loudness_lines(detector),
        *_stage_lines(detector),
    ]


def _loudness_lines(detector: "Auto") -> list[str]:
    told = detector._facts.get("loudness")
    if told is None:  # nothing but TULiP
        return []
    errors = counted(told["errors"], "held-out error")
    if told["errors"] < FEW_ERRORS:
        return [f"{errors}: too few to tell whether the others should be quieter than usual"]
    return [f"all as loud as usual, or quieter where {errors} would be ordered worse"]


def _stage_lines(detector: "Auto") -> list[str]:
    depth = detector._depth
    if depth is None or depth.name not in detector._heard:
        return []
    names = ", ".join(stage.name for stage in depth.stages)
    return [f"inner stages ({names}) count from {detector._bars[depth.name]:.3g} on"]
