"""The page is well-formed, self-contained, says what was found, and nothing can break out of it."""

import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tulip_ood
from tulip_ood.benchmark import evaluate
from tulip_ood.errors import InputError
from tulip_ood.report import Examples, report_html, write_report
from tulip_ood.report.fitted import terms

VOID = {"meta", "img", "br", "hr", "col", "input", "link"}
EVIL = '<script>alert("x")</script> & "quotes"'
pytestmark = pytest.mark.usefixtures("short_search")


class Checker(HTMLParser):
    """Follows open tags, and keeps what a test wants to look at."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problems: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text.append(data)


def checked(page: str) -> Checker:
    """Parse a page and make sure of what holds for every one."""
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.problems == []
    assert checker.open == []
    for tag, attributes in checker.tags:
        for name in ("src", "href", "srcset", "poster", "data", "action"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("data:image/png;base64,", "#")), (tag, value)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert tag not in ("link", "iframe", "object", "embed", "base")
    assert "@import" not in page
    assert "url(" not in page
    ids = [attributes["id"] for _, attributes in checker.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    svgs = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    for svg in svgs:
        root = ET.fromstring(svg)  # raises if it is not XML
        if root.get("role") == "img":
            assert root.get("aria-label")
            assert root.find("{http://www.w3.org/2000/svg}title") is not None
        numbers = re.findall(r'(?:[xy][12]?|c[xy]|r|d)="([^"]*)"', svg)
        assert not any(re.search("nan|inf", value) for value in numbers)
    return checker


@pytest.fixture(scope="module")
def made(images: Any) -> tuple[Any, Any, dict[str, Any]]:
    detectors = {
        "ent": tulip_ood.detectors.Entropy(images.model).fit(images.loader()),
        "tulip": tulip_ood.Tulip(images.model).fit(images.loader(), recipe="balanced"),
    }
    comparison = evaluate(detectors, images.test, {"columns": images.ood}, {"columns": "near"})
    shown = (images.test[0].clamp(0, 1), images.ood.clamp(0, 1))
    more = {
        "title": "bars",
        "about": {"The data": "bars and columns"},
        "examples": [
            Examples(None, images.test[0], shown[0], images.test[1]),
            Examples("columns", images.ood, shown[1]),
        ],
        "class_names": ("first", "second", "third", "fourth"),
    }
    return comparison, detectors["tulip"], more


def test_page_holds_everything(made: Any, tmp_path: Path) -> None:
    comparison, detector, more = made
    path = write_report(tmp_path / "report.html", comparison, detector, **more)
    assert list(tmp_path.iterdir()) == [path]
    page = path.read_text("utf-8")
    checker = checked(page)
    sections = {a["id"] for tag, a in checker.tags if tag == "section"}
    assert sections == {
        "comparison", "scores", "roc", "errors", "calibration", "inputs", "fitted", "about", "yours"
    }  # fmt: skip
    text = " ".join(checker.text)
    for name, result in comparison.methods.items():
        assert f"{100 * result.sets['columns'].auroc:.1f}" in text, name
        assert f"{1000 * result.aurc:.2f}" in text
        assert f"ECE {100 * result.ece:.2f}\xa0% · NLL {result.nll:.4f}" in text
    assert str(detector.report()) in "".join(checker.text)
    for symbol in "εΘDλSJpt":
        assert any(piece == symbol for piece in checker.text)
    assert sum(tag == "img" for tag, _ in checker.tags) == 24
    assert sum(tag == "h1" for tag, _ in checker.tags) == 1


def test_headings_and_tables_can_be_read_out(made: Any) -> None:
    comparison, detector, more = made
    checker = checked(report_html(comparison, detector, **more))
    levels = [int(tag[1]) for tag, _ in checker.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    assert all("scope" in a for tag, a in checker.tags if tag == "th")
    assert all(a.get("alt") for tag, a in checker.tags if tag == "img")
    assert ("html", {"lang": "en"}) in checker.tags


def test_same_input_same_page(made: Any) -> None:
    comparison, detector, more = made
    assert report_html(comparison, detector, **more) == report_html(comparison, detector, **more)


def test_text_is_escaped(images: Any) -> None:
    detector = tulip_ood.detectors.Entropy(images.model).fit(images.loader())
    comparison = evaluate({EVIL: detector}, images.test, {EVIL: images.ood}, {EVIL: "far"})
    page = report_html(
        comparison,
        detector,
        method=EVIL,
        title=EVIL,
        about={EVIL: EVIL},
        class_names=(EVIL,) * 4,
        examples=[
            Examples(None, images.test[0], images.test[0], images.test[1]),
            Examples(EVIL, images.ood, images.ood),
        ],
    )
    checker = checked(page)
    assert sum(tag == "script" for tag, _ in checker.tags) == 1
    assert "<script>alert" not in page
    assert EVIL in "".join(checker.text)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
@pytest.mark.parametrize("n", [1, 2])
def test_tiny_and_spoiled_sets(vectors: Any, n: int) -> None:
    detectors = {
        name: tulip_ood.detectors.make(name, vectors.model).fit(vectors.loader())
        for name in ("ent", "ebo")
    }
    x, y = vectors.test
    nothing = torch.full((n, 2), math.nan)
    sets = {"spoiled": nothing, "tiny": vectors.ood[:n], "huge": torch.full((n, 2), 1e30)}
    found = evaluate(detectors, (x[:n], y[:n]), sets)
    page = report_html(found, detectors["ebo"], method="ebo")
    checked(page)
    found = evaluate(detectors, (nothing, y[:n]), sets)  # not one ID input with a score
    checked(report_html(found, detectors["ebo"], method="ebo"))


def test_a_constant_score(vectors: Any) -> None:
    model = nn.Linear(2, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    detector = tulip_ood.detectors.Entropy(model).fit(vectors.loader())
    found = evaluate({"ent": detector}, vectors.test, {"far": vectors.ood})
    checked(report_html(found, detector, method="ent"))


def test_one_detector_without_ood(vectors: Any) -> None:
    detector = tulip_ood.detectors.MSP(vectors.model).fit(vectors.loader())
    page = report_html(evaluate({"msp": detector}, vectors.test, {}), detector, method="msp")
    sections = {a["id"] for tag, a in checked(page).tags if tag == "section"}
    assert sections == {"comparison", "errors", "calibration", "fitted", "yours"}


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_regression() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 2, generator=generator)
    y = x.sum(1, keepdim=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    detector = tulip_ood.Tulip(model, task="regression", j=1.0).fit([(x, y)], recipe="balanced")
    found = evaluate({"tulip": detector}, (x, y), {"far": 5 * x})
    sections = {
        a["id"] for tag, a in checked(report_html(found, detector)).tags if tag == "section"
    }
    assert not {"errors", "calibration", "inputs"} & sections


def test_many_methods_and_sets(vectors: Any) -> None:
    detector = tulip_ood.detectors.Entropy(vectors.model).fit(vectors.loader())
    detectors = {f"method {i}": detector for i in range(12)}
    sets = {f"set {i}": vectors.ood[i : i + 40] for i in range(7)}
    found = evaluate(detectors, vectors.test, sets)
    page = report_html(found, detector, method="method 0", baseline="method 1")
    checked(page)
    assert "series rest" in page


def test_findings_are_shown(vectors: Any) -> None:
    with pytest.warns(tulip_ood.TulipWarning):
        detector = tulip_ood.detectors.Entropy(vectors.model).fit(
            [(vectors.val[0][:60], vectors.val[1][:60])]
        )
    found = evaluate({"ent": detector}, vectors.test, {"far": vectors.ood})
    text = " ".join(checked(report_html(found, detector, method="ent")).text)
    assert "Look at this" in text
    assert "only 60 validation inputs" in text


@pytest.mark.parametrize("n_samples", [0, 4])
def test_auto_says_what_it_listens_to(n_samples: int, images: Any) -> None:
    x, y = images.val
    auto = tulip_ood.Auto(images.model, n_samples=n_samples).fit([(x[:200], y[:200])])
    found = evaluate({"auto": auto}, (x[200:260], y[200:260]), {"odd": images.ood[:40]})
    page = report_html(found, auto, method="auto", baseline=None)
    text = " ".join(" ".join(checked(page).text).split())
    heard = {"react": "clipped features", "knn": "neighbours", "ratio": "noise to drift"}
    heard |= {"nci": "alignment", "fdbd": "boundaries", "depth": "inner stages"}
    for name, words in heard.items():
        assert (f" {words} weight " in text) == (name in auto._heard), name
    j, noisy = auto._order._state.j_score, auto._needs_to_score().settings.n_samples > 0
    assert (f"T TULiP ε = 0.005, J = {j:g}" in text) == noisy
    assert ("T entropy no noise" in text) == (not noisy)
    assert noisy <= (n_samples > 0)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_terms_say_what_was_measured(vectors: Any) -> None:
    """R² is no share of right answers, and ‖f(z)‖ takes no pass."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 2, generator=generator)
    regression = tulip_ood.Tulip(nn.Linear(2, 1), task="regression", j=1.0)
    meanings = {t.symbol: t.meaning for t in terms(regression.fit([(x, x.sum(1, keepdim=True))]))}
    assert "its R² is" in meanings["ε"]
    assert "right" not in meanings["ε"]
    by_norm = tulip_ood.Tulip(vectors.model, drift="norm").fit(vectors.loader(), recipe="balanced")
    by_pass = tulip_ood.Tulip(vectors.model).fit(vectors.loader(), recipe="balanced")
    values = [{t.symbol: t.value for t in terms(each)}["D"] for each in (by_norm, by_pass)]
    assert values == ["‖f(z)‖, no pass", "one more pass"]


def test_a_report_goes_into_a_folder_that_is_there(vectors: Any, tmp_path: Path) -> None:
    msp = tulip_ood.detectors.MSP(vectors.model).fit(vectors.loader())
    found = evaluate({"msp": msp}, vectors.test, {"ood": vectors.ood})
    with pytest.raises(InputError, match="there is no folder"):
        write_report(tmp_path / "none" / "report.html", found, msp, method="msp")
    (tmp_path / "report.html.partial").write_text("another program's")
    write_report(tmp_path / "report.html", found, msp, method="msp")
    assert (tmp_path / "report.html.partial").read_text() == "another program's"
