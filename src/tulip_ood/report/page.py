"""One self-contained HTML file about a comparison: nothing is loaded from elsewhere."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from tulip_ood.benchmark.results import Comparison
from tulip_ood.benchmark.verdict import Verdict, in_words, judge
from tulip_ood.detectors.base import Detector
from tulip_ood.network.files import appear
from tulip_ood.report.fitted import fitted_section
from tulip_ood.report.gains import gains_chart
from tulip_ood.report.gallery import Examples, gallery
from tulip_ood.report.html import Child, Markup, element, join
from tulip_ood.report.sections import (
    calibration_section,
    errors_section,
    histogram_section,
    roc_section,
    table_section,
    usage_section,
)
from tulip_ood.report.tiles import tiles
from tulip_ood.version import __version__

__all__ = ["report_html", "write_report"]

# Pointing at a method in one place shows it everywhere; without scripts nothing is missing.
_SCRIPT = """
for (const item of document.querySelectorAll("[data-method]")) {
  const lit = on => {
    document.body.classList.toggle("pointing", on);
    for (const other of document.querySelectorAll("[data-method]"))
      other.classList.toggle("lit", on && other.dataset.method === item.dataset.method);
  };
  item.addEventListener("pointerenter", () => lit(true));
  item.addEventListener("pointerleave", () => lit(false));
}
"""

_MARK = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 40" class="mark" aria-hidden="true">'
    '<path class="leaf" d="M16 38C16 30 10 25 4 24C5 32 10 37 16 38ZM16 38C16 31 21 27 27 26'
    'C26 33 22 37 16 38Z"></path><path class="stem" d="M16 39L16 20"></path>'
    '<path class="bloom" d="M6 4C9 5 11 7 12 9C13 6 14.5 3 16 1C17.5 3 19 6 20 9C21 7 23 5 26 4'
    'C28 13 25 22 16 22C7 22 4 13 6 4Z"></path></svg>'
)


def write_report(
    path: str | Path,
    comparison: Comparison,
    detector: Detector,
    *,
    method: str = "tulip",
    baseline: str | None = "ent",
    title: str = "TULiP report",
    about: Mapping[str, str] | None = None,
    examples: Sequence[Examples] = (),
    class_names: Sequence[str] | None = None,
) -> Path:
    """Write the report of a comparison to one HTML file (whole, or not at all).

    Args:
        path: Where to.
        comparison: What `tulip_ood.benchmark.evaluate` found.
        detector: The fitted detector that the report is about.
        method: Its name in the comparison.
        baseline: The method that it is held against; passed over if it is not in the comparison.
        title: What was compared.
        about: Lines on how, by their headings.
        examples: Inputs that can be shown.
        class_names: What the outputs mean; their numbers by default.

    Example:
        >>> import tempfile, torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> msp = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> found = evaluate({"msp": msp}, (x, y), {"wide": 9 * x})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = write_report(f"{folder}/report.html", found, msp, method="msp")
        ...     written.read_text("utf-8")[:15]
        '<!doctype html>'
    """
    text = report_html(
        comparison,
        detector,
        method=method,
        baseline=baseline,
        title=title,
        about=about,
        examples=examples,
        class_names=class_names,
    )
    appear(path, lambda partial: partial.write_text(text, "utf-8"))
    return Path(path)


def report_html(
    comparison: Comparison,
    detector: Detector,
    *,
    method: str = "tulip",
    baseline: str | None = "ent",
    title: str = "TULiP report",
    about: Mapping[str, str] | None = None,
    examples: Sequence[Examples] = (),
    class_names: Sequence[str] | None = None,
) -> str:
    """The page that `write_report` writes.

    Args:
        comparison: What `tulip_ood.benchmark.evaluate` found.
        detector: The fitted detector that the report is about.
        method: Its name in the comparison.
        baseline: The method that it is held against; passed over if it is not in the comparison.
        title: What was compared.
        about: Lines on how, by their headings.
        examples: Inputs that can be shown.
        class_names: What the outputs mean; their numbers by default.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.benchmark import evaluate
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> msp = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> found = evaluate({"msp": msp}, (x, y), {"wide": 9 * x})
        >>> "<script>alert" in report_html(found, msp, method="msp", title="<script>alert()")
        False
    """
    if baseline not in comparison.methods or baseline == method:
        baseline = None
    verdict = judge(comparison, method, baseline)
    sections: list[Child] = [
        _header(title, comparison, verdict),
        tiles(comparison, detector, method, baseline),
        _section("comparison", "Side by side", table_section(comparison, method)),
        _section("scores", *histogram_section(comparison, method, baseline)),
        _section("roc", "Every threshold at once", roc_section(comparison, method, baseline)),
        _section("errors", "Its own mistakes", errors_section(comparison, method, baseline)),
        _section(
            "calibration", "Are the probabilities true?", calibration_section(comparison, verdict)
        ),
        _section(
            "inputs",
            "Inputs to look at",
            _gallery(comparison, detector, method, examples, class_names),
        ),
        _section("fitted", "What was fitted", fitted_section(detector)),
        _section("about", "How this was made", _about(about)),
        _section("yours", "On your own network", usage_section()),
    ]
    style = resources.files("tulip_ood.report").joinpath("style.css").read_text("utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title}: {verdict.headline}"),
        element("style", Markup(style)),
    )
    footer = element("footer", element("p", f"Written by tulip-ood {__version__}."))
    body = element("body", element("main", sections), footer, element("script", Markup(_SCRIPT)))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _header(title: str, comparison: Comparison, verdict: Verdict) -> Markup:
    chart = gains_chart(comparison, verdict)
    figure = None
    if chart is not None and verdict.baseline is not None:
        words = [
            element("span", class_="ring"),
            f"{in_words(verdict.baseline)} ",
            element("span", class_="ball"),
            f"{in_words(verdict.method)} ± 2 standard errors",
        ]
        figure = element("figure", element("figcaption", words, class_="key"), chart)
    return element(
        "header",
        element("p", Markup(_MARK), title, class_="overline"),
        element(
            "div",
            element(
                "div",
                element("h1", verdict.headline),
                element("ul", [element("li", s) for s in verdict.sentences], class_="verdict"),
            ),
            figure,
            class_="hero",
        ),
    )


def _section(name: str, heading: str, content: Sequence[Child] | None) -> Markup | None:
    if not content:
        return None
    return element("section", element("h2", heading), join(content), id=name)


def _gallery(
    comparison: Comparison,
    detector: Detector,
    method: str,
    examples: Sequence[Examples],
    class_names: Sequence[str] | None,
) -> list[Child]:
    rows = gallery(comparison, detector, method, examples, class_names)
    if not rows:
        return []
    lead = element(
        "p",
        f"Chosen by {in_words(method)}’s score. A p-value is the share of in-distribution inputs "
        f"that look at least as odd.",
        class_="lede",
    )
    return [
        lead,
        *([element("h3", heading), element("p", words), cards] for heading, words, cards in rows),
    ]


def _about(about: Mapping[str, str] | None) -> list[Child]:
    if not about:
        return []
    lines = [
        element("div", element("dt", heading), element("dd", text))
        for heading, text in about.items()
    ]
    return [element("dl", lines, class_="about")]
