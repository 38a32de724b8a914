"""The demo's report: the general one, with the digits as pictures and words on how it was made."""

from pathlib import Path
from typing import TYPE_CHECKING

from tulip_ood.report.gallery import Examples
from tulip_ood.report.page import write_report

if TYPE_CHECKING:
    from tulip_ood.demo.run import DemoResult

__all__ = ["write_page"]


def write_page(path: str | Path, result: "DemoResult") -> Path:
    """Write the report of a demo.

    Args:
        path: Where to.
        result: What `run_demo` returned.

    Example:
        >>> import inspect  # `DemoResult.write` calls it
        >>> list(inspect.signature(write_page).parameters)
        ['path', 'result']
    """
    data = result.data
    images, labels = data.test
    examples = [Examples(None, images, 1 - images, labels)]  # ink is dark, paper is light
    for name, pictures in data.ood.items():
        examples.append(Examples(name, pictures, 1 - pictures))
    parameters = sum(p.numel() for p in result.model.parameters())
    return write_report(
        path,
        result.comparison,
        result.tulip,
        title="TULiP on handwritten digits",
        about={
            "The network": (
                f"A ResNet of three blocks with BatchNorm, {parameters:,} weights, trained on "
                f"{len(data.train[1])} pictures of the digits 0–7: few, so that it makes mistakes."
            ),
            "The data": (
                f"scikit-learn’s 8 × 8 digits: {len(data.validation[1])} further pictures of 0–7 "
                f"to fit detectors on (one half for fitting, the other for thresholds), "
                f"{len(labels)} to judge them on."
            ),
            "Near": "The digits 8 and 9: the same pens and hands, but classes it was never taught.",
            "Far": (
                "Patches of two photographs (a temple and a flower), cut out and reduced in the "
                "way the digits were; and noise, every pixel drawn at random."
            ),
            "Nothing was peeked at": (
                "No detector was fitted or chosen on these OOD pictures. TULiP chose its settings "
                "on distorted validation pictures. The numbers are what came out."
            ),
            "Noise averaging": (
                "The same weight noise as TULiP’s, without the bound: what is left between the two "
                "is what the bound adds."
            ),
            "The seed": (
                f"{result.seed}. Another (tulip demo --seed {result.seed + 1}) gives another "
                f"network, another split and other numbers."
            ),
        },
        examples=examples,
        class_names=data.class_names,
    )
