"""The paper's tables in four forms: what must stand in them, and what must not."""

import re

import pytest

from tulip_ood.benchmark.paper_table import paper_table, paper_table_model
from tulip_ood.benchmark.pooled import Pooled, pool
from tulip_ood.benchmark.rendering import FORMATS, as_text, render
from tulip_ood.benchmark.rendering_latex import escaped
from tulip_ood.benchmark.runs import Benchmark
from tulip_ood.benchmark.set_tables import per_set_table, shift_table
from tulip_ood.benchmark.table_model import Cell, Column, Row, Table
from tulip_ood.errors import InputError

from .synthetic import benchmark

STRENGTH = {
    "ent": 1.0,
    "gen": 0.9,
    "vim": 0.8,
    "tulip": 1.1,
    "tulip[recipe=paper,tune=ood]": 1.05,
    "knn&tulip": 4.0,
}
SKIPPED = {
    "mcd": "the network has no dropout_layers, 100 % of it",
    "rankfeat (val)": "no inner layers",
    "nnguide (train)": "out of memory",
}


@pytest.fixture(scope="module")
def made() -> Benchmark:
    return benchmark(strength=STRENGTH, shifted=True, skipped=SKIPPED, limit=60)


@pytest.fixture(scope="module")
def pooled(made: Benchmark) -> Pooled:
    return pool(made, "val")


@pytest.fixture(scope="module")
def table(made: Benchmark, pooled: Pooled) -> Table:
    return paper_table_model(made, "val", pooled=pooled)


def cells(table: Table, group: str, title: str) -> dict[str, Cell]:
    place = [i for i, c in enumerate(table.columns) if (c.group, c.title) == (group, title)]
    assert len(place) == 1, [(c.group, c.title) for c in table.columns]
    return {row.name: row.cells[place[0]] for row in table.rows}


def test_numbers_are_means_with_the_spread_over_networks(table: Table, pooled: Pooled) -> None:
    for group, title, key, unit in (
        ("near OOD", "AUROC ↑", ("near", "auroc"), 100),
        ("far OOD †", "FPR@95 ↓", ("far", "id_flagged_at_95_ood"), 100),
        ("far OOD †", "missed@95 ↓", ("far", "ood_missed_at_95_id"), 100),
        ("errors", "AURC × 10³ ↓", ("id", "aurc"), 1000),
    ):
        for name, cell in cells(table, group, title).items():
            mean, spread = (unit * f(name, *key) for f in (pooled.mean, pooled.spread))
            assert cell.text == f"{mean:.2f} ± {spread:.2f}"


def test_differences_to_entropy(table: Table, pooled: Pooled) -> None:
    found = cells(table, "far OOD †", "AUROC − ent")
    assert found["ent"].text == ""
    gain = pooled.difference("gen", "ent", "far", "auroc")
    shown = (100 * gain.value, 100 * gain.low, 100 * gain.high)
    assert found["gen"].text == "{:+.2f} ({:+.2f} to {:+.2f})".format(*shown).replace("-", "−")


def test_bold_only_where_it_is_clear(made: Benchmark, table: Table) -> None:
    bold = {
        (column.title, row.name)
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell.bold
    }
    assert {name for _, name in bold} == {"knn&tulip"}
    close = benchmark(strength={"ent": 1.0, "msp": 1.01, "gen": 1.02})
    found = paper_table_model(close, "val")
    assert not any(cell.bold for row in found.rows for cell in row.cells)
    assert any("not told apart from" in note for note in found.notes)
    assert "*" not in as_text(found)


def test_published_numbers_and_their_marks(table: Table) -> None:
    far = cells(table, "published", "far FPR")
    assert (far["gen"].text, far["gen"].mark) == ("47.03", "?")
    assert (far["tulip"].text, far["tulip"].mark) == ("28.40", "‡")
    assert far["tulip[recipe=paper,tune=ood]"].mark == ""
    assert far["knn&tulip"].text == "–"
    notes = "\n".join(table.notes)
    assert "‡ The paper’s TULiP, tulip[recipe=paper,tune=ood]" in notes
    assert "? Doubtful: gen: above" in notes
    assert "vim: published with all training images" in notes
    assert "near 91.16 (GROOD), far 95.64 (Gram)" in notes


def test_what_differs_from_the_protocol_is_named(table: Table) -> None:
    notes = "\n".join(table.notes)
    assert "texture: ten of 47 DTD classes, 32 px (40 of 5,640 images)" in notes
    assert "svhn and places365: not there" in notes
    assert "Not run: mcd (the network has no dropout_layers, 100 % of it)" in notes
    assert "rankfeat (no inner layers)" in notes
    assert "nnguide" not in notes
    assert "Track val: fitted on N = 1,000 validation images." in table.caption
    assert "at most 60 images" in table.caption
    assert "3 networks" in table.caption


def test_whole_sets_have_no_dagger() -> None:
    sets = {
        "cifar100": ("near", 60, 60, None),
        "tin": ("near", 45, 45, None),
        "mnist": ("far", 50, 50, "other digits"),
    }
    found = paper_table_model(benchmark(sets=sets), "val")
    groups = [group for group, _ in found.spans()]
    assert groups == ["near OOD", "far OOD †", "errors", "published"]


def test_the_training_track_says_what_it_was_fitted_on() -> None:
    made = benchmark(tracks=["val", "train"])
    found = paper_table_model(made, "train")
    fitted = "Track train: fitted on N = 50,000 training images and N = 1,000 validation images."
    assert fitted in found.caption
    with pytest.raises(InputError, match="the track 'val', the table shows 'train'"):
        paper_table(made, "train", pooled=pool(made, "val", resamples=2))


def test_one_network_and_no_entropy() -> None:
    found = paper_table_model(benchmark(networks=["s0"], strength={"msp": 1.0, "gen": 1.1}), "val")
    assert "One network." in found.caption
    assert not any("±" in cell.text for row in found.rows for cell in row.cells)
    assert not any("ent" in column.title for column in found.columns)
    assert any("ent was not run" in note for note in found.notes)
    with_ent = paper_table_model(benchmark(networks=["s0"]), "val")
    assert any("one network and one noise seed" in note for note in with_ent.notes)


def test_partial_methods_are_named(made: Benchmark) -> None:
    runs = tuple(r for r in made.runs if (r.method, r.network) != ("gen", "s2"))
    found = paper_table_model(Benchmark(made.id_set, runs, made.sets), "val")
    assert "gen" not in [row.name for row in found.rows]
    assert any("gen (on 2 of 3 networks)" in note for note in found.notes)


# ----------------------------------------------------------------------------------- forms


def test_text_fits_a_terminal(table: Table) -> None:
    text = as_text(table)
    assert max(map(len, text.splitlines())) <= 140
    narrow = as_text(table, width=100)
    assert max(map(len, narrow.splitlines())) <= 100
    for found in (text, narrow):  # every number is there, however it is cut
        for row in table.rows:
            for cell in row.cells:
                assert cell.text in found


def test_text_aligns_digits_whether_marked_or_not() -> None:
    rows = (Row("a", (Cell("1.00", bold=True),)), Row("b", (Cell("22.00"),)))
    lines = as_text(Table("T", (Column("", "x"),), rows, ())).splitlines()
    assert lines[3].index(".") == lines[4].index(".")


def test_markdown_has_as_many_cells_in_every_line(table: Table) -> None:
    lines = [line for line in render(table, "markdown").splitlines() if line.startswith("|")]
    assert len(lines) == len(table.rows) + 2
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(table.columns) + 2}
    assert "| `knn&tulip` | **" in "\n".join(lines)
    assert r"dropout\_layers" in render(table, "markdown")


def test_latex_is_escaped_and_balanced(table: Table) -> None:
    text = render(table, "latex")
    body = text.split("\\midrule\n")[1].split("\\bottomrule")[0]
    for line in body.strip().splitlines():
        assert line.endswith(r" \\")
        assert len(re.findall(r"(?<!\\)&", line)) == len(table.columns)
    assert r"\texttt{knn\&tulip}" in body
    assert r"\textbf{" in body
    assert r"no dropout\_layers, 100 \% of it" in text
    unescaped = re.sub(r"\\[{}]", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    begun = re.findall(r"\\begin\{([a-z*]+)\}", text)
    assert sorted(begun) == sorted(re.findall(r"\\end\{([a-z*]+)\}", text))
    assert text.isascii()
    groups = re.findall(r"\\multicolumn\{(\d+)\}", text)
    assert sum(map(int, groups)) == len(table.columns)


def test_every_special_character_of_latex() -> None:
    assert escaped(r"\&%$#_{}~^") == (
        r"\textbackslash{}\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}"
    )
    assert escaped("× 10⁻³ ±") == r"$\times$ 10$^{-3}$ $\pm$"


def test_html_needs_nothing_else_and_hides_no_markup(made: Benchmark, pooled: Pooled) -> None:
    page = paper_table(made, "val", pooled=pooled, format="html")
    assert "knn&amp;tulip" in page
    assert not re.search(r"https?:|<script|<link|@import|url\(", page)
    assert page.count("<tr>") == page.count("</tr>") == len(STRENGTH) + 2
    evil = Table("<i>", (Column("<g>", "<t>"),), (Row("<m>", (Cell("<c>"),)),), ("<n>",))
    assert not re.search(r"<(i|g|t|m|c|n)>", render(evil, "html"))


@pytest.mark.parametrize("format_", FORMATS)
def test_every_form_has_every_method_and_note(made: Benchmark, format_: str) -> None:
    for text in (
        per_set_table(made, "val", "refused", format=format_),
        shift_table(made, "val", format=format_),
    ):
        for name in ("gen", "vim"):
            assert name in text
        assert "ten of 47 DTD classes" in text or "cifar10c: 30 of 10,000 images" in text


def test_shift_table_shows_right_answers_refused(made: Benchmark) -> None:
    lines = shift_table(made, "val").splitlines()
    titles = next(line for line in lines if line.startswith("method"))
    assert titles.count("right, refused ↓") == 2
    with pytest.raises(InputError, match="no ID set under other conditions"):
        shift_table(benchmark(), "val")


def test_unknown_forms_and_metrics_are_refused(made: Benchmark, pooled: Pooled) -> None:
    with pytest.raises(InputError, match="text, markdown, latex or html, not 'pdf'"):
        paper_table(made, "val", pooled=pooled, format="pdf")
    with pytest.raises(InputError, match="there is no table of 'aurc'"):
        per_set_table(made, "val", "aurc")
