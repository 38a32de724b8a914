"""What `Auto` says of itself, and how it passes on what TULiP has found."""

from typing import TYPE_CHECKING

from tulip_ood.detectors.findings import Finding

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


def in_words_of_auto(finding: Finding) -> Finding:
    """What TULiP has found; what it advises to set is given to `Auto` in another way.

    Example:
        >>> print(in_words_of_auto(Finding("near-chance", "Use a smaller epsilon")))
        Use a smaller epsilon (for auto, settings={'tulip': {'epsilon': …}}) [near-chance]
    """
    if (name := _ADVISED.get(finding.code)) is None:
        return finding
    text = finding.text.replace(", or tune=…,", "")
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
        *_stage_lines(detector),
    ]


def _stage_lines(detector: "Auto") -> list[str]:
    depth = detector._depth
    if depth is None or depth.name not in detector._heard:
        return []
    names = ", ".join(stage.name for stage in depth.stages)
    return [f"inner stages ({names}) count from {detector._bars[depth.name]:.3g} on"]
