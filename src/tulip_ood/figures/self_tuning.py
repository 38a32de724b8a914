"""What self-tuning chooses, what that is worth, and what it costs."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from tulip_ood.errors import FileFormatError, InputError
from tulip_ood.figures.canvas import COLOURS, MARKERS, Drawn, canvas, need_matplotlib, save
from tulip_ood.figures.columns import below
from tulip_ood.figures.finished import Finished, short_names
from tulip_ood.figures.labels import GROUP_LINES, id_name
from tulip_ood.wording import from_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "read_tuning"]

_RECIPES = {
    "paper-1": "λ of Alg. 1",
    "balanced-1": "balanced",
    "self-1": "self-1: best rank",
    "self-2": "self: best AUROC",
    "self-2, full search": "self, all images",
}
_NUMBERS = ("auroc_near", "auroc_far", "cost_in_plain_calibrations")
_ORDER = ("blue", "orange", "green", "purple")


def read_tuning(places: Iterable[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """The rows of files that `make evidence-tuning` wrote, each with the network's name.

    Example:
        >>> read_tuning([])
        []
    """
    rows = []
    for place in places:
        try:
            found = from_json(Path(place).read_text(encoding="utf-8"))
            name = Path(found["checkpoint"]).stem
            rows += [{"network": name, **row} for row in found["rows"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileFormatError(
                f"{os.fspath(place)} is no result of make evidence-tuning: {error}"
            ) from error
    return rows


def draw(
    finished: Finished, tuning: Sequence[dict[str, Any]], out: str | Path = "figures"
) -> Drawn:
    """Draw `self-tuning` into a folder.

    Args:
        finished: Benchmarks with `tulip` (what it chose on each network); may be empty.
        tuning: Rows of `read_tuning` (what other recipes reach, and the cost); may be empty.
        out: The folder.

    Example:
        >>> draw(Finished(()), [])
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: there is no self-tuned TULiP in these results
    """
    need_matplotlib()
    chosen = [*_chosen(finished), *_chosen_in(tuning)]
    if not chosen:
        raise InputError("there is no self-tuned TULiP in these results")
    costs = _costs(tuning)
    panels = 2 if costs else 1
    with canvas(6.6 * panels + 0.6, 6.4) as figure:
        grid = figure.subplots(1, panels, squeeze=False)[0]
        _draw_choices(grid[0], chosen)
        if costs:
            _draw_costs(grid[1], costs)
        below(figure, _small_print(finished, tuning))
        rows = [*chosen, *costs]
        keys = list(dict.fromkeys(key for row in rows for key in row))
        rows = [{key: row.get(key) for key in keys} for row in rows]
        return save(figure, "self-tuning", out, rows, {}, _lines(chosen, costs))


def _chosen(finished: Finished) -> list[dict[str, Any]]:
    found = []
    for id_set in finished.id_sets:
        own = finished.of(id_set).parameters("tulip")
        names = short_names(list(own))
        found += [_choice(id_set, names[network], given, None) for network, given in own.items()]
    return found


def _chosen_in(tuning: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        _choice(row["network"].partition("_")[0], row["network"], row, row["noise_seed"])
        for row in tuning
        if row["detector"] == "self-2"
    ]


def _choice(id_set: str, network: str, given: dict[str, Any], seed: int | None) -> dict[str, Any]:
    return {
        "what": "choice",
        "id_set": id_set,
        "network": network,
        "noise_seed": seed or 0,
        "epsilon": given["epsilon"],
        "lam_over_balanced": round(given["lam_over_balanced"], 3),
        "j": given["j"],
    }


def _costs(tuning: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean over noise seeds, of each recipe on each network, less plain entropy."""
    found = []
    for network in dict.fromkeys(row["network"] for row in tuning):
        own = [row for row in tuning if row["network"] == network]
        plain = next((row for row in own if row["detector"] == "ent"), None)
        if plain is None:
            continue
        for recipe in _RECIPES:
            seeds = [row for row in own if row["detector"] == recipe]
            if seeds:
                near, far, cost = (mean(row.get(key, 1.0) for row in seeds) for key in _NUMBERS)
                found.append(
                    {
                        "what": "cost",
                        "network": network,
                        "recipe": recipe,
                        "cost": cost,
                        "near_gain": near - plain["auroc_near"],
                        "far_gain": far - plain["auroc_far"],
                    }
                )
    return found


def _draw_choices(axes: "Axes", chosen: Sequence[dict[str, Any]]) -> None:
    epsilons = sorted({row["epsilon"] for row in chosen})
    sets = list(dict.fromkeys(row["id_set"] for row in chosen))
    # Equal choices lie side by side.
    seen: dict[tuple[float, float], int] = {}
    for row in chosen:
        place = (row["lam_over_balanced"], row["j"])
        near = [k for k in seen if abs(k[0] - place[0]) < 0.02 and abs(k[1] / place[1] - 1) < 0.12]
        key = near[0] if near else place
        shift = seen[key] = seen.get(key, -1) + 1
        offset = (shift + 1) // 2 * (-1 if shift % 2 else 1)
        axes.plot(
            place[0] + 0.045 * offset, place[1], MARKERS[sets.index(row["id_set"]) % len(MARKERS)],
            color=COLOURS[_ORDER[epsilons.index(row["epsilon"]) % len(_ORDER)]], ms=11, mec="white",
            alpha=0.9,
        )  # fmt: skip
    handles = [
        axes.plot([], [], MARKERS[i % len(MARKERS)], color=COLOURS["grey"], ms=10, label=id_name(s))
        for i, s in enumerate(sets)
    ]
    handles += [
        axes.plot([], [], "s", color=COLOURS[_ORDER[i % len(_ORDER)]], ms=10, label=f"ε = {e:g}")
        for i, e in enumerate(epsilons)
    ]
    axes.legend(handles=[h for (h,) in handles], loc="best")
    axes.set(xlim=(-0.15, 1.45), yscale="log")
    axes.set_xticks([0, 0.5, 0.75, 1, 1.25], ["0", "0.5", "0.75", "1", "1.25"])
    values = [1, 1.5, 2, 3, 5, 10, 20]
    top = max(row["j"] for row in chosen)
    ticks = [v for v in values if v <= 1.3 * top]
    axes.set_yticks(ticks, [f"{v:g}" for v in ticks])
    axes.set_yticks([], minor=True)
    axes.grid(True, axis="x", color=COLOURS["grey"], alpha=0.25, lw=0.8)
    axes.set_xlabel("λ in units of the balanced λ")
    axes.set_ylabel("J")
    axes.set_title("(a) what it chooses, a mark a network and seed")


def _draw_costs(axes: "Axes", costs: Sequence[dict[str, Any]]) -> None:
    networks = list(dict.fromkeys(row["network"] for row in costs))
    recipes = [r for r in _RECIPES if any(row["recipe"] == r for row in costs)]
    axes.axvline(0, color=COLOURS["grey"], lw=1.2)
    for row in costs:
        place = recipes.index(row["recipe"]) + 0.2 * (networks.index(row["network"]) - 0.5)
        marker = MARKERS[networks.index(row["network"]) % len(MARKERS)]
        for group, style in GROUP_LINES.items():
            axes.plot(
                row[f"{group}_gain"], place, marker, ms=10, color=style["color"],
                mfc=style["color"] if group == "near" else "white", mew=2,
            )  # fmt: skip
    labels = []
    for recipe in recipes:
        cost = mean(row["cost"] for row in costs if row["recipe"] == recipe)
        labels.append(f"{_RECIPES[recipe]}\ncost {cost:.2g}")
    axes.set_yticks(range(len(recipes)), labels)
    axes.set_ylim(len(recipes) - 0.5, -0.5)
    handles = [
        axes.plot(
            [], [], MARKERS[i % len(MARKERS)], color=COLOURS["grey"], ms=10,
            label=id_name(n.partition("_")[0]),
        )[0]
        for i, n in enumerate(networks)
    ]  # fmt: skip
    handles += [
        axes.plot(
            [], [], "s", ms=10, mew=2, color=style["color"], label=f"{group} OOD",
            mfc=style["color"] if group == "near" else "white",
        )[0]
        for group, style in GROUP_LINES.items()
    ]  # fmt: skip
    axes.legend(handles=handles, loc="upper right")
    axes.set_xlabel("AUROC gained over entropy, points")
    axes.set_title("(b) what that is worth, and costs")


def _small_print(finished: Finished, tuning: Sequence[dict[str, Any]]) -> str:
    text = "Nothing is tuned on OOD images."
    if finished.rows:
        text += f" Networks of the benchmark: {len(finished.parameters('tulip'))}, one noise seed."
    if tuning:
        seeds = len({row["noise_seed"] for row in tuning})
        networks = len({row["network"] for row in tuning})
        text += (
            f" Tuning runs: {networks} networks, mean over {seeds} noise seeds in (b). Cost: "
            f"forward passes of fitting, in plain calibrations of twelve passes over 1,000 images."
        )
    return text


def _lines(chosen: Sequence[dict[str, Any]], costs: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for id_set in dict.fromkeys(row["id_set"] for row in chosen):
        own = [row for row in chosen if row["id_set"] == id_set]
        spans = {
            key: f"{min(r[key] for r in own):.3g} to {max(r[key] for r in own):.3g}"
            for key in ("epsilon", "lam_over_balanced", "j")
        }
        lines.append(
            f"{id_name(id_set)}: {len(own)} choices, ε {spans['epsilon']}, λ/balanced "
            f"{spans['lam_over_balanced']}, J {spans['j']}"
        )
    lines += [
        f"{row['network']}, {_RECIPES[row['recipe']]}: near {row['near_gain']:+.2f}, far "
        f"{row['far_gain']:+.2f} points over entropy, cost {row['cost']:.2f}"
        for row in costs
    ]
    return lines
