"""What `Auto` listens to, for someone who has never heard of it."""

from tulip_ood.detectors.auto import Auto
from tulip_ood.detectors.auto_voices import FEATURES, OF_FEATURES

__all__ = ["opinions"]

_MEANINGS = {
    "react": (
        "E",
        "clipped features",
        "How little the network’s features add up to when none may stand out (ReAct’s energy).",
    ),
    "knn": (
        "K",
        "neighbours",
        "How far the input’s features lie from those of the nearest validation inputs.",
    ),
    "nci": (
        "N",
        "alignment",
        "How little the input’s features point along the weights of the answer’s class (NCI).",
    ),
    "fdbd": (
        "B",
        "boundaries",
        "How near the input’s features lie to the boundaries between classes (fDBD).",
    ),
    "ratio": (
        "R",
        "noise to drift",
        "How far the outputs move when weights are nudged, beside how far training has moved them.",
    ),
    "depth": (
        "I",
        "inner stages",
        "How unusual the image looks to the inner stages of the network: colours, edges and "
        "textures, whatever the answer is.",
    ),
}


def opinions(detector: Auto) -> list[tuple[str, str, str, str]]:
    """Symbol, name, value and meaning of TULiP’s part and of every other opinion that counts.

    Example:
        >>> import torch, tulip_ood
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Linear(4, 3), torch.randn(200, 4)
        >>> y = (model(x) + torch.randn(200, 3) / 2).argmax(1)
        >>> settings = {"tulip": {"j": 1.0}}
        >>> detector = tulip_ood.Auto(model, parts=["tulip"], settings=settings).fit([(x, y)])
        >>> [symbol for symbol, *_ in opinions(detector)]
        ['T']
    """
    found = [_order(detector)]
    for name in detector._heard:
        if name in _MEANINGS:
            symbol, words, meaning = _MEANINGS[name]
            found.append((symbol, words, _value(detector, name), meaning))
    return found


def _order(detector: Auto) -> tuple[str, str, str, str]:
    """What the others are added to."""
    state = detector._order._state
    mirror = ", with its mirror image" if detector._mirrors else ""
    if not detector._needs_to_score().settings.n_samples:
        return (
            "T",
            "entropy",
            f"no noise{mirror}",
            "The score that the others are added to: how undecided the network’s own answer is.",
        )
    return (
        "T",
        "TULiP",
        f"ε = {state.setting.epsilon:g}, J = {state.j_score:.3g}{mirror}",
        "The score that the others are added to: how far the answer spreads when the weights "
        "are nudged, less what training has explained. It orders the network’s own errors.",
    )


def _value(detector: Auto, name: str) -> str:
    weight = f"weight {detector.strength * detector._weights[name]:.2g}"
    if name in OF_FEATURES:
        bar, where = detector._bars[FEATURES], "together from"
    else:
        bar, where = detector._bars[name], "from"
    return f"{weight}, {where} {bar:.3g} on" if bar else weight
