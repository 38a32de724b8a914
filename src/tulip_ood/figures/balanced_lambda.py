"""The balanced λ against that of Alg. 1, network by network, from finished benchmarks."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tulip_ood.errors import InputError
from tulip_ood.figures.canvas import COLOURS, Drawn, canvas, need_matplotlib, save
from tulip_ood.figures.columns import below
from tulip_ood.figures.finished import Finished, short_names
from tulip_ood.figures.labels import GROUP_LINES, METHODS, id_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_LITERAL, _BALANCED, _ZERO = (
    "tulip[recipe=paper]",
    "tulip[recipe=balanced]",
    "tulip[lam=0,recipe=balanced]",
)
_MARKS = {
    _LITERAL: ("X", "purple"),
    _ZERO: ("s", "orange"),
    _BALANCED: ("o", "green"),
}
_APART = 0.2  # of a row


def draw(finished: Finished, out: str | Path = "figures") -> Drawn:
    """Draw `balanced-lambda` into a folder.

    Args:
        finished: Benchmarks with `tulip[recipe=paper]` and `tulip[recipe=balanced]`.
        out: The folder.

    Example:
        >>> draw(Finished(()))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: these results have no network with both \
tulip[recipe=paper] and tulip[recipe=balanced]
    """
    need_matplotlib()
    rows = [row for id_set in finished.id_sets for row in _rows(finished.of(id_set), id_set)]
    if not rows:
        raise InputError(f"these results have no network with both {_LITERAL} and {_BALANCED}")
    with canvas(13.0, 2.2 + 0.62 * len(rows)) as figure:
        ratio, near, far = figure.subplots(1, 3, sharey=True, width_ratios=(1, 1.25, 1.25))
        _draw_ratio(ratio, rows)
        for axes, group in ((near, "near"), (far, "far")):
            _draw_aurocs(axes, rows, group)
        figure.legend(*near.get_legend_handles_labels(), loc="outside upper center", ncols=3)
        below(figure, finished.small_print())
        return save(figure, "balanced-lambda", out, rows, _facts(rows), _lines(rows))


def _rows(finished: Finished, id_set: str) -> list[dict[str, Any]]:
    literal, balanced = (finished.parameters(m) for m in (_LITERAL, _BALANCED))
    numbers = {group: finished.numbers("auroc", group) for group in ("near", "far")}
    names = short_names(list(literal))
    return [
        {
            "id_set": id_set,
            "network": network,
            "label": f"{id_name(id_set)}\n{names[network]}",
            "literal_over_balanced": literal[network]["lam_over_balanced"],
            "literal_j": literal[network]["j"],
            "balanced_lam": balanced[network]["lam"],
            "balanced_j": balanced[network]["j"],
            **{
                f"{group}: {method}": by.get(method, {}).get(network)
                for group, by in numbers.items()
                for method in ("ent", *_MARKS)
            },
        }
        for network in literal
        if network in balanced and all(network in by.get("ent", {}) for by in numbers.values())
    ]


def _draw_ratio(axes: "Axes", rows: Sequence[dict[str, Any]]) -> None:
    for place, row in enumerate(rows):
        value = row["literal_over_balanced"]
        axes.plot([1, value], [place, place], color=COLOURS["grey"], lw=1.6, zorder=1)
        axes.plot(1, place, "o", color=COLOURS["green"], ms=10, mec="white")
        axes.plot(value, place, "X", color=COLOURS["purple"], ms=10, mec="white")
        axes.annotate(
            f"J* = {row['literal_j']:.3g}", (value, place), xytext=(0, 9),
            textcoords="offset points", ha="center", fontsize=10.5, color=COLOURS["purple"],
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    most = max(row["literal_over_balanced"] for row in rows)
    axes.set(xlim=(0, most + 0.8), ylim=(len(rows) - 0.5, -0.6))
    axes.set_xlabel("λ in units of the balanced λ")
    axes.set_title("(a) how large is λ?")


def _draw_aurocs(axes: "Axes", rows: Sequence[dict[str, Any]], group: str) -> None:
    axes.axvline(0, color=COLOURS["ink"], lw=1.4, zorder=0)
    for place, row in enumerate(rows):
        plain = row[f"{group}: ent"]
        known = {m: row[f"{group}: {m}"] for m in _MARKS if row[f"{group}: {m}"] is not None}
        gains = {m: 100 * (value - plain) for m, value in known.items()}
        for number, (method, gain) in enumerate(gains.items()):
            marker, colour = _MARKS[method]
            beside = place + _APART * (number - (len(gains) - 1) / 2)  # equal gains are all seen
            label = METHODS[method] if not place else None
            axes.plot(
                [0, gain], [beside, beside], color=COLOURS[colour], lw=2.0, alpha=0.45, zorder=1
            )
            axes.plot(
                gain, beside, marker, color=COLOURS[colour], ms=10, mec="white", label=label,
                ls="", zorder=3,
            )  # fmt: skip
    axes.set_xlabel("AUROC gained over entropy, points")
    axes.set_title(f"({'b' if group == 'near' else 'c'}) {group} OOD")
    axes.tick_params(left=False)


def _facts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"networks": len(rows)}
    for id_set in dict.fromkeys(row["id_set"] for row in rows):
        own = [row for row in rows if row["id_set"] == id_set]
        found[f"{id_set}: literal over balanced"] = _mean(own, "literal_over_balanced")
        for group in GROUP_LINES:
            for method in ("ent", *_MARKS):
                found[f"{id_set}: {group}: {method}"] = _mean(own, f"{group}: {method}")
    return found


def _mean(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row[key] is not None]
    return sum(values) / len(values) if values else None


def _lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    off = sum(row["literal_j"] == 0 for row in rows)
    higher = {
        group: sum(
            row[f"{group}: {_BALANCED}"] > row[f"{group}: {_LITERAL}"]
            for row in rows
            if row[f"{group}: {_BALANCED}"] is not None
        )
        for group in GROUP_LINES
    }
    return [
        f"the λ of Alg. 1 gives J* = 0 (TULiP does nothing) on {off} of {len(rows)} networks",
        f"the balanced λ has the higher AUROC on {higher['near']} of {len(rows)} networks near, "
        f"on {higher['far']} far",
    ]
