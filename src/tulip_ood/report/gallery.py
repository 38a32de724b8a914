"""Inputs to look at: those that the network is surest and least sure of."""

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from tulip_ood.benchmark.results import Comparison
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.prediction import Prediction
from tulip_ood.errors import InputError
from tulip_ood.network.inputs import Inputs, take
from tulip_ood.report.html import Markup, element

__all__ = ["Examples", "gallery", "thumbnail"]

_SHOWN = 6
_LARGEST = 128  # pixels


@dataclass(frozen=True)
class Examples:
    """Inputs that can be shown, in the order in which they were evaluated.

    Attributes:
        name: The OOD set's name in the comparison; None for the ID test set.
        inputs: As the network takes them.
        images: [N, C, H, W] with 1 or 3 channels: uint8, or numbers in 0…1.
        labels: The true class of each, or None.

    Example:
        >>> import torch
        >>> Examples("noise", torch.rand(5, 1, 8, 8), torch.rand(5, 1, 8, 8)).name
        'noise'
    """

    name: str | None
    inputs: Inputs
    images: Tensor
    labels: Tensor | None = None


def thumbnail(image: Tensor) -> str:
    """A small PNG as a data URI.

    Args:
        image: [C, H, W] with 1 or 3 channels: uint8, or numbers in 0…1.

    Example:
        >>> import torch
        >>> thumbnail(torch.zeros(1, 8, 8))[:22]
        'data:image/png;base64,'
    """
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise InputError(f"an image to show must be [1 or 3, H, W], got {list(image.shape)}")
    if image.dtype != torch.uint8:
        unit = image.detach().to(torch.float64).nan_to_num(0.0).clamp(0.0, 1.0)
        image = (255 * unit).round().to(torch.uint8)
    pixels = image.cpu().movedim(0, -1).contiguous().numpy()
    picture = Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)
    picture.thumbnail((_LARGEST, _LARGEST))
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def gallery(
    comparison: Comparison,
    detector: Detector,
    method: str,
    examples: Sequence[Examples],
    class_names: Sequence[str] | None,
) -> list[tuple[str, str, Markup]]:
    """Rows of cards: a heading, a line on what is seen, the cards.

    Args:
        comparison: Whose scores decide what is shown.
        detector: Says what there is to say about each input.
        method: The detector's name in the comparison.
        examples: What can be shown.
        class_names: What the outputs mean; their numbers by default.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.rand(200, 1, 2, 2), torch.randint(3, (200,))
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> msp = tulip_ood.detectors.MSP(model).fit([(x, y)])
        >>> found = evaluate({"msp": msp}, (x, y), {})
        >>> rows = gallery(found, msp, "msp", [Examples(None, x, x)], None)
        >>> [heading for heading, _, _ in rows]
        ['In-distribution, surest', 'In-distribution, least sure']
    """
    if detector.task.name != "classification":
        return []  # an answer is not one label
    result = comparison.methods[method]
    inside = [part for part in examples if part.name is None]
    outside = [part for part in examples if part.name is not None]
    rows = []
    for parts, surest, heading, words in (
        (inside, True, "In-distribution, surest", "The least doubtful of the test inputs."),
        (
            inside,
            False,
            "In-distribution, least sure",
            "The most doubtful of the test inputs: is the doubt justified?",
        ),
        (
            outside,
            True,
            "Out-of-distribution, surest",
            "The hardest to notice: what is accepted here slips through.",
        ),
        (outside, False, "Out-of-distribution, least sure", "The easiest to notice."),
    ):
        cards: list[Markup] = []
        for part in parts:
            scores = result.id_scores if part.name is None else result.sets[part.name].scores
            count = max(1, _SHOWN // len(parts))
            chosen = scores.argsort(descending=not surest, stable=True)[:count]
            cards += _cards(part, chosen, detector, class_names)
        if cards:
            rows.append((heading, words, element("ul", cards, class_="cards")))
    return rows


def _cards(
    part: Examples, chosen: Tensor, detector: Detector, class_names: Sequence[str] | None
) -> Iterator[Markup]:
    found = detector.predict(take(part.inputs, chosen))
    for place, row in enumerate(chosen.tolist()):
        origin = ("from", part.name or "the test set")
        if part.labels is not None:
            origin = ("truth", _class(int(part.labels[row]), class_names))
        yield _card(thumbnail(part.images[row]), origin, found, place, class_names)


def _class(label: int, names: Sequence[str] | None) -> str:
    return str(label) if names is None or not 0 <= label < len(names) else names[label]


def _card(
    picture: str,
    origin: tuple[str, str],
    found: Prediction,
    i: int,
    class_names: Sequence[str] | None,
) -> Markup:
    label, accepted, reason = int(found.label[i]), bool(found.accepted[i]), found.reason[i]
    answer = _class(label, class_names)
    facts = [origin, ("answer", f"{answer}, {100 * float(found.probs[i, label]):.0f} %")]
    if not accepted:
        others = zip(reason.top_labels, reason.top_probs, strict=True)
        second = next(((other, prob) for other, prob in others if other != label), None)
        if second is not None:
            facts.append(("or", f"{_class(second[0], class_names)}, {100 * second[1]:.0f} %"))
    facts.append(("p-value", f"{float(found.p_value[i]):.3f}"))
    badge = element(
        "span",
        "accepted" if accepted else "refused",
        class_="badge yes" if accepted else "badge no",
    )
    return element(
        "li",
        element("img", src=picture, alt=f"{origin[0]} {origin[1]}, answered {answer}", width=72),
        element(
            "div",
            badge,
            element("dl", [[element("dt", name), element("dd", text)] for name, text in facts]),
            None if accepted else element("p", reason.words, class_="reason"),
        ),
    )
