"""What the bound adds: TULiP with its parts taken out one by one, against the whole.

Two kinds of evidence stand side by side: finished benchmarks, and networks at hand. The interval is
over networks where there are several, over images (DeLong) where there is one. Only networks at
hand have noise on the inputs, as large as moves the logits of validation images as far as weight
noise does.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tulip_ood.benchmark.paired import Difference, mean_auroc_difference
from tulip_ood.detectors.recipes import Setting
from tulip_ood.errors import InputError
from tulip_ood.figures.canvas import COLOURS, Drawn, canvas, need_matplotlib, save
from tulip_ood.figures.columns import below, by_set, sources
from tulip_ood.figures.enhancement import score_at
from tulip_ood.figures.finished import Finished, Gap, paired
from tulip_ood.figures.labels import GROUP_LINES, METHODS, id_name
from tulip_ood.figures.measured import EPSILON, MeasuredNetwork
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["REFERENCE", "draw"]

REFERENCE = "tulip[recipe=balanced]"
_NORM, _ZERO = "tulip-norm[recipe=balanced]", "tulip[lam=0,recipe=balanced]"
_METHODS = ("ent", "noise-input", "noise", _ZERO, _NORM, "tulip")
_WIDE = 1.96
Score = Callable[[Passes], Tensor]


def draw(
    finished: Finished, networks: Sequence[MeasuredNetwork], out: str | Path = "figures"
) -> Drawn:
    """Draw `what-the-bound-adds` into a folder.

    Args:
        finished: Benchmarks with `tulip[recipe=balanced]` and some of its ablations; may be empty.
        networks: With passes, and input noise; may be empty.
        out: The folder.

    Example:
        >>> draw(Finished(()), [])
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: nothing to compare: give results with tulip[recipe=balanced], \
or networks
    """
    need_matplotlib()
    at_hand = by_set(networks) if networks else {}
    rows = [*_of_benchmarks(finished), *(r for own in at_hand.values() for r in _at_hand(own))]
    if not rows:
        raise InputError(f"nothing to compare: give results with {REFERENCE}, or networks")
    sets = list(dict.fromkeys(row["id_set"] for row in rows))
    methods = [m for m in _METHODS if any(row["method"] == m for row in rows)]
    with canvas(2.6 + 5.2 * len(sets), 1.9 + 0.95 * len(methods)) as figure:
        grid = figure.subplots(1, len(sets), squeeze=False, sharey=True)[0]
        for axes, id_set in zip(grid, sets, strict=True):
            _draw_panel(axes, [row for row in rows if row["id_set"] == id_set], methods)
            axes.set_title(id_name(id_set))
        grid[0].set_yticks(range(len(methods)), [METHODS[m] for m in methods])
        _legend(figure, grid[0], rows)
        below(figure, _small_print(finished, networks))
        return save(figure, "what-the-bound-adds", out, rows, {}, _lines(rows))


def _of_benchmarks(finished: Finished) -> list[dict[str, Any]]:
    found = []
    for id_set in finished.id_sets:
        own = finished.of(id_set)
        for group in GROUP_LINES:
            numbers = own.numbers("auroc", group)
            reference = numbers.get(REFERENCE, {})
            for method in _METHODS:
                if set(numbers.get(method, {})) & set(reference):
                    gap = paired(numbers[method], reference)
                    found.append(_row(id_set, group, method, "benchmark", gap))
    return found


def _at_hand(networks: Sequence[MeasuredNetwork]) -> list[dict[str, Any]]:
    """Networks of one ID set; the interval is over images where there is only one."""
    gaps: dict[tuple[str, str], list[Difference]] = {}
    for network in networks:
        whole = _scores(network)
        for group in network.groups:
            reference = _on(network, group, whole[REFERENCE])
            for method in _METHODS:
                if method in whole and method != REFERENCE:
                    other = _on(network, group, whole[method])
                    gap = mean_auroc_difference(reference, other)
                    gaps.setdefault((group, method), []).append(gap)
    found = []
    for (group, method), each in gaps.items():
        over = Gap.of(gap.value for gap in each)
        if len(each) == 1:
            half = _WIDE * each[0].error
            over = replace(over, low=over.mean - half, high=over.mean + half)
        found.append(_row(networks[0].id_set, group, method, "at hand", over))
    return found


def _row(id_set: str, group: str, method: str, source: str, gap: Gap) -> dict[str, Any]:
    return {
        "id_set": id_set,
        "group": group,
        "method": method,
        "source": source,
        "difference": gap.mean,
        "low": None if math.isnan(gap.low) else gap.low,
        "high": None if math.isnan(gap.high) else gap.high,
        "each": list(gap.values),
    }


def _on(network: MeasuredNetwork, group: str, score: Score) -> tuple[Tensor, list[Tensor]]:
    inside = score(network.only("id").passes[EPSILON])
    return inside, [score(each.passes[EPSILON]) for each in network.of(group)]


def _scores(network: MeasuredNetwork) -> dict[str, Score]:
    """Every ablation as a score of passes; all are fitted on the same validation images."""

    def enveloped(setting: Setting, change: Callable[[Passes], Passes] = lambda p: p) -> Score:
        val = network.only("val")
        changed = replace(val, passes={EPSILON: change(val.passes[EPSILON])})
        constants = replace(network, sets=(changed,)).constants(setting)
        return lambda passes: score_at(constants, "ent", constants.j_star, change(passes))

    def averaged(samples: Callable[[Passes], Tensor]) -> Score:
        return lambda p: scores.sample_score("ent", samples(p).to(torch.float64))

    found: dict[str, Score] = {
        "ent": averaged(lambda p: p.base.unsqueeze(0)),
        "noise": averaged(lambda p: p.noisy),
        _ZERO: enveloped(Setting(EPSILON, lam=0.0)),
        _NORM: enveloped(Setting(EPSILON), lambda p: replace(p, drift=None)),
        REFERENCE: enveloped(Setting(EPSILON)),
    }
    noise = network.input_noise
    if noise is not None:
        found["noise-input"] = averaged(lambda p: p.extras[noise.key].movedim(1, 0))
    return found


_PLACES = {("near", "benchmark"): -0.27, ("near", "at hand"): -0.1, ("far", "benchmark"): 0.1}
_SHAPES = {"benchmark": "o", "at hand": "D"}


def _draw_panel(axes: "Axes", rows: list[dict[str, Any]], methods: list[str]) -> None:
    axes.axvline(0, color=COLOURS["ink"], lw=1.4)
    for odd in range(1, len(methods), 2):
        axes.axhspan(odd - 0.5, odd + 0.5, color=COLOURS["grey"], alpha=0.07, lw=0)
    for row in rows:
        style, source = GROUP_LINES[row["group"]], row["source"]
        place = methods.index(row["method"]) + _PLACES.get((row["group"], source), 0.27)
        colour = style["color"]
        if row["low"] is not None:
            ends = [100 * row["low"], 100 * row["high"]]
            axes.plot(ends, [place, place], color=colour, lw=2.0, zorder=2)
        each = [100 * value for value in row["each"]]
        if len(each) > 1:
            axes.plot(each, [place] * len(each), "|", color=colour, ms=9, mew=1.6, zorder=3)
        axes.plot(
            100 * row["difference"], place, _SHAPES[source], color=colour, ms=8.5, mew=1.8,
            zorder=4, mfc=colour if row["group"] == "near" else "white",
        )  # fmt: skip
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.tick_params(left=False)
    axes.set_xlabel("AUROC less that of TULiP (balanced), points")


def _legend(figure: Any, axes: "Axes", rows: list[dict[str, Any]]) -> None:
    told = {"benchmark": "benchmark", "at hand": "passes at hand"}
    handles = [
        axes.plot(
            [], [], _SHAPES[source], color=style["color"], ms=8.5, mew=1.8,
            mfc=style["color"] if group == "near" else "white",
            label=f"{group} OOD, {told[source]}",
        )[0]
        for group, style in GROUP_LINES.items()
        for source in told
        if any((row["group"], row["source"]) == (group, source) for row in rows)
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper center", ncols=2)


def _small_print(finished: Finished, networks: Sequence[MeasuredNetwork]) -> str:
    parts = [
        "Lines: 95 % intervals of the paired difference over networks (|: each),",
        "or over images where there is one network.",
    ]
    if finished.rows:
        many = len(finished.parameters(REFERENCE))
        limit = f", at most {finished.limit:,} images of each set" if finished.limit else ""
        parts.append(f"Benchmark: {many} networks{limit}.")
    if networks:
        parts.append("At hand: " + sources(networks))
    return " ".join(parts)


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        interval = "no interval"
        if row["low"] is not None:
            interval = f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f}"
        lines.append(
            f"{id_name(row['id_set'])}, {row['group']}, {METHODS[row['method']]} less TULiP "
            f"(balanced): {100 * row['difference']:+.2f} ({interval}, {row['source']})"
        )
    return [*lines, _verdict([row for row in rows if row["method"] == _NORM])]


def _verdict(rows: list[dict[str, Any]]) -> str:
    """Does the drift pass know more than the norm of the logits?"""
    if not rows:
        return "D := ‖f(z)‖ was not run here"
    found = []
    for word, sign in (("better", -1), ("worse", 1)):
        clear = [row for row in rows if row["low"] is not None and row["low"] * row["high"] > 0]
        where = [
            f"{id_name(row['id_set'])} {row['group']} ({100 * abs(row['difference']):.2f} points, "
            f"{row['source']})"
            for row in clear
            if row["difference"] * sign > 0
        ]
        if where:
            found.append(f"{word} than ‖f(z)‖ on {', '.join(where)}")
    if not found:
        return "the drift pass adds nothing beyond ‖f(z)‖ that these images and networks can tell"
    return f"the drift pass is {'; '.join(found)}"
