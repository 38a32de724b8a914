"""What all figures share: how they look, and how a picture and its numbers are written.

matplotlib comes with the extra `figures` and is imported only when something is drawn. Nothing of
its global state is used or changed.
"""

import importlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tulip_ood.errors import TulipError
from tulip_ood.network.files import appear

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "MARKERS", "Drawn", "canvas", "need_matplotlib", "note", "save"]

DPI = 160
# Okabe and Ito (2008): told apart with any kind of colour vision, and by lightness.
COLOURS = {
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "vermilion": "#D55E00",
    "sky": "#56B4E9",
    "purple": "#CC79A7",
    "ink": "#1A1A1A",
    "grey": "#6B6B6B",
}
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
_STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "font.size": 12.0,
    "axes.titlesize": 13.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
    "axes.labelsize": 12.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": COLOURS["grey"],
    "axes.linewidth": 0.8,
    "axes.labelcolor": COLOURS["ink"],
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["ink"],
    "ytick.color": COLOURS["ink"],
    "xtick.labelsize": 11.0,
    "ytick.labelsize": 11.0,
    "legend.fontsize": 11.0,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "tulip-ood",  # ids in the SVG come from this, not from chance
    "svg.fonttype": "path",
    "path.simplify": True,
}


@dataclass(frozen=True)
class Drawn:
    """A figure that was written, and what is in it.

    Attributes:
        pictures: The PNG and the SVG.
        table: The parquet file with the numbers.
        rows: These numbers.
        facts: Numbers about the figure as a whole (also in the parquet file's metadata).
        lines: What to tell the user.

    Example:
        >>> drawn = Drawn((Path("a.png"), Path("a.svg")), Path("a.parquet"), [{"x": 1.0}], {})
        >>> [path.name for path in drawn.files]
        ['a.png', 'a.svg', 'a.parquet']
    """

    pictures: tuple[Path, ...]
    table: Path
    rows: list[dict[str, Any]] = field(repr=False)
    facts: dict[str, Any]
    lines: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything that was written."""
        return (*self.pictures, self.table)


def need_matplotlib() -> Any:
    """The package, or an error that says how to get it; call it before the work.

    Example:
        >>> need_matplotlib().__name__
        'matplotlib'
    """
    try:
        return importlib.import_module("matplotlib")
    except ImportError as error:
        raise TulipError(
            "figures are drawn with the package matplotlib, which cannot be imported "
            f"({error}): pip install 'tulip-ood[figures]'"
        ) from error


@contextmanager
def canvas(width: float, height: float) -> "Iterator[Figure]":
    """An empty figure of so many inches, in the style of all figures; draw and save inside.

    Example:
        >>> with canvas(4, 3) as figure:
        ...     axes = figure.subplots()
        >>> axes.spines["top"].get_visible()
        False
    """
    matplotlib = need_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        # What the user's matplotlibrc says must not change our picture; a backend is not ours to
        # change, and we use none.
        plain = {k: v for k, v in matplotlib.rcParamsDefault.items() if k != "backend"}
        matplotlib.rcParams.update(plain | _STYLE)
        yield Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def note(axes: "Axes", text: str, *, x: float, y: float, **more: Any) -> None:
    """Small text in a panel, placed as a share of its width and height, readable over lines.

    Example:
        >>> with canvas(4, 3) as figure:
        ...     axes = figure.subplots()
        ...     note(axes, "log₁₀ C = 1,204", x=0.02, y=0.98, va="top")
        >>> len(axes.texts)
        1
    """
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 3.0}
    style: dict[str, Any] = {"fontsize": 11.0, "bbox": box, **more}
    axes.text(x, y, text, transform=axes.transAxes, **style)


def save(
    figure: "Figure",
    name: str,
    out: str | Path,
    rows: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    lines: Sequence[str] = (),
) -> Drawn:
    """Write NAME.png, NAME.svg and NAME.parquet into a folder; equal figures give equal bytes.

    Each file appears whole or not at all, and if one cannot be made, none appears.

    Args:
        figure: Drawn inside `canvas`; save it there, too.
        name: Of the files.
        out: The folder; it is made.
        rows: The numbers in the figure, with the same keys in every row.
        facts: Numbers about the whole figure.
        lines: What to tell the user.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, canvas(2, 2) as figure:
        ...     _ = figure.subplots().plot([0, 1])
        ...     drawn = save(figure, "line", folder, [{"x": 0}, {"x": 1}], {"n": 2})
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['line.parquet', 'line.png', 'line.svg']
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    png, svg, parquet = (folder / f"{name}.{kind}" for kind in ("png", "svg", "parquet"))
    held, known = [dict(row) for row in rows], dict(facts)

    # One inside the other: nothing is renamed to its place before everything is written.
    def write_png(partial: Path) -> None:
        figure.savefig(partial, format="png", dpi=DPI, metadata={"Software": None})
        appear(svg, write_svg)

    def write_svg(partial: Path) -> None:
        figure.savefig(partial, format="svg", metadata={"Date": None, "Creator": None})
        appear(parquet, lambda inner: _write_table(inner, held, known))

    appear(png, write_png)
    return Drawn((png, svg), parquet, held, known, tuple(lines))


def _write_table(path: Path, rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in facts.items()
    }
    table = pa.Table.from_pylist(rows)
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False, allow_nan=False)
    pq.write_table(table.replace_schema_metadata({"facts": text}), path)
