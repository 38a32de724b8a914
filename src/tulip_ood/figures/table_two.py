"""The paper's second table: how even methods are over networks, for the networks at hand."""

from pathlib import Path
from typing import Any

from tulip_ood.benchmark.published import EXTENDED
from tulip_ood.figures.canvas import Drawn
from tulip_ood.figures.drawn_table import Entry, PictureTable, draw_table, emphasise
from tulip_ood.figures.finished import Finished, short_names
from tulip_ood.figures.labels import STAND_IN, id_name, method

__all__ = ["draw"]

_METHODS = ("ebo", "odin", "mls", "ash-b", "ent", "tulip[recipe=balanced]", "tulip")
_PUBLISHED = ("ebo", "odin", "mls", "ash-b", "tulip")
_NOTHING = "–"
_MOST = 8  # networks in one picture


def draw(finished: Finished, out: str | Path = "figures") -> Drawn:
    """Draw `table-2` into a folder: near / far AUROC on every network.

    Args:
        finished: Benchmarks; those of ImageNet-1K if there are any, else all.
        out: The folder.

    Example:
        >>> draw(Finished(()))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: table-2: there is nothing to show in these results
    """
    large = "imagenet" in finished.id_sets
    chosen = finished.of("imagenet") if large else finished
    columns: list[dict[str, tuple[float, float]]] = []
    groups: list[tuple[str, int]] = []
    heads: list[str] = []
    flat: list[dict[str, Any]] = []
    names: list[str] = []
    for id_set in chosen.id_sets:
        near, far = (chosen.of(id_set).numbers("auroc", group) for group in ("near", "far"))
        networks = list(dict.fromkeys(n for m in _METHODS for n in near.get(m, {})))
        short = short_names(networks)
        for network in networks[: _MOST - len(columns)]:
            own = {
                m: (100 * near[m][network], 100 * far[m][network])
                for m in _METHODS
                if network in near.get(m, {}) and network in far.get(m, {})
            }
            names += [m for m in own if m not in names]
            columns.append(own)
            heads.append(short[network].removeprefix(f"{id_set}_"))
            flat += [_row(id_set, network, m, pair, "ours") for m, pair in own.items()]
        groups.append((id_name(id_set), len(heads) - sum(span for _, span in groups)))
    order = [m for m in _METHODS if m in names]
    entries = [emphasise([_entry(own.get(m)) for m in order]) for own in columns]
    rows = [(method(m), [column[i] for column in entries]) for i, m in enumerate(order)]
    flat += [
        _row("imagenet", network, m, pair, "published")
        for network, by in EXTENDED.items()
        for m, pair in by.items()
        if pair is not None
    ]
    table = PictureTable(groups, heads, rows, _rules(order), _small_print(chosen, large))
    lines = [] if large else [_absent()]
    return draw_table(table, "table-2", out, flat, lines)


def _row(
    id_set: str, network: str, name: str, pair: tuple[float, float], source: str
) -> dict[str, Any]:
    return {
        "id_set": id_set,
        "network": network,
        "method": name,
        "near": pair[0],
        "far": pair[1],
        "source": source,
    }


def _entry(pair: tuple[float, float] | None) -> Entry:
    return Entry(_NOTHING) if pair is None else Entry(f"{pair[0]:.1f} / {pair[1]:.1f}", pair[0])


def _rules(order: list[str]) -> list[int]:
    first = [i for i, m in enumerate(order) if m.startswith("tulip")]
    return first[:1]


def _small_print(finished: Finished, large: bool) -> str:
    text = "near / far AUROC on every network. Bold and underlined: best and second near."
    if not large:
        text += " The paper's table has other networks on ImageNet-1K; these are those at hand."
    if finished.limit:
        text += f" At most {finished.limit:,} images of each set."
    if any(each[2] is not None for each in finished.sets()):
        text += f" Far sets stand in for OpenOOD's ({STAND_IN} in table-1)."
    return text


def _absent() -> str:
    told = "; ".join(
        f"{network}: "
        + ", ".join(f"{m} {p[0]:.1f}/{p[1]:.1f}" for m, p in by.items() if p and m in _PUBLISHED)
        for network, by in EXTENDED.items()
    )
    return f"no results of ImageNet-1K are at hand; published there: {told}"
