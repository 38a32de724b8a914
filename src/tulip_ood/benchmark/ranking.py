"""What `compare` found, as text: a table for each track, what is sure about it, and what to use.

The two tracks stand in two tables, because a method that has seen the training data is no better
for having seen more.
"""

import math
import textwrap
from typing import TYPE_CHECKING

from tulip_ood.benchmark.bootstrap import Interval
from tulip_ood.benchmark.results import Comparison
from tulip_ood.numerics.tasks import make_task

if TYPE_CHECKING:
    from tulip_ood.benchmark.comparing import Compared

__all__ = ["as_text", "verdict"]

_CALLED = {"ent": "entropy", "noise": "noise averaging"}  # yardsticks, in words
NO_BETTER_THAN_GUESSING = 0.52
WORTH_NAMING = 0.005  # of AUROC
_COLUMNS = (  # title, metric, unit
    ("AUROC ↑", "auroc", 100),
    ("FPR@95 ↓", "id_flagged_at_95_ood", 100),
    ("missed@95 ↓", "ood_missed_at_95_id", 100),
)


def as_text(found: "Compared") -> str:
    """Both tables, the verdict, and the methods that could not be run.

    Example:
        >>> import torch, tulip_ood
        >>> x, y, model = torch.randn(200, 4), torch.randint(3, (200,)), torch.nn.Linear(4, 3)
        >>> data = {"id_val": [(x, y)], "id_test": [(x, y)], "ood": {"wide": [9 * x]}}
        >>> print(as_text(tulip_ood.compare(model, **data, methods=["msp"])).splitlines()[2][:15])
        method  AUROC ↑
    """
    judged = found.val
    sets = f"{len(judged.sets)} OOD set{'s' if len(judged.sets) > 1 else ''}"
    sample = f" (a sample of {found.seen:,}: fit_memory)" if found.seen > found.n_val else ""
    out = [
        f"Fitted on the same {found.n_val:,} validation inputs{sample}, judged on "
        f"{judged.n_id:,} ID inputs and {sets}",
        "",
        *_table(found, "val"),
        "",
        *_wrapped(verdict(found, "val")),
    ]
    if found.train is not None:
        out += [
            "",
            f"Fitted on {found.n_train:,} training inputs (another track: not to be compared with "
            f"the table above)",
            "",
            *_table(found, "train"),
            "",
            *_wrapped(verdict(found, "train")),
        ]
    out += ["", *_legend(found)]
    for line in _seen_before(found):
        out += ["", *_wrapped(line)]
    if found.skipped:
        out += ["", "not run:"]
        for name, why in found.skipped.items():
            out += _wrapped(f"  {name}: {why}", "    ")
    return "\n".join(out)


def _legend(found: "Compared") -> list[str]:
    errors = "AURC × 10⁻³ ranks the network's own errors."
    if not _has_errors(found):
        errors = (
            f"only these three remain for task '{found.task}', where no answer is right or wrong: "
            f"there is no AURC, accuracy or calibration error."
        )
    return _wrapped(
        f"AUROC, FPR@95 (ID refused where 95 % of OOD are caught) and missed@95 (OOD accepted "
        f"where 95 % of ID are) in %, means over the OOD sets; {errors} ± to {_yardstick(found)}: "
        f"difference of AUROC, with a 95 % interval over the same resampled images; a star marks "
        f"one that leaves out 0."
    )


def _seen_before(found: "Compared") -> list[str]:
    """Warnings of test inputs that are no test: learned from, or both ID and OOD."""
    lines = []
    if found.repeated:
        lines.append(
            f"look at this: {found.repeated:,} of the {found.val.n_id:,} ID test inputs were "
            f"fitted on as well. Judge on others."
        )
    for name, count in found.tuned_on.items():
        lines.append(
            f"look at this: {count:,} of the {found.val.n_ood[name]:,} inputs of the OOD set "
            f"{name} were tuned on as well. Judge on others."
        )
    for name, count in found.inside.items():
        lines.append(
            f"look at this: {count:,} of the {found.val.n_ood[name]:,} inputs of the OOD set "
            f"{name} are ID inputs as well, which no method can tell apart. Leave them out."
        )
    return lines


def _yardstick(found: "Compared") -> str:
    return _CALLED.get(found.yardstick, found.yardstick)


def _has_errors(found: "Compared") -> bool:
    """Whether answers are right or wrong, as classes are and numbers are not."""
    return make_task(found.task).has_errors


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, 100, subsequent_indent=indent, break_on_hyphens=False)


def _comparison(found: "Compared", track: str) -> Comparison:
    comparison = found.val if track == "val" else found.train
    assert comparison is not None
    return comparison


def _order(comparison: Comparison) -> list[str]:
    """The best AUROC first."""
    return sorted(comparison.methods, key=lambda name: -comparison.mean(name, "auroc"))


def _table(found: "Compared", track: str) -> list[str]:
    comparison, against = _comparison(found, track), found.against[track]
    groups = [g for g in ("near", "far") if comparison.in_group(g)]
    titles = ["method", *(f"{group} AUROC ↑" for group in groups)]
    titles += [title for title, _, _ in _COLUMNS]
    titles += ["AURC ↓"] if _has_errors(found) else []
    titles.append(f"± to {_yardstick(found)}")
    rows = [titles]
    for name in _order(comparison):
        cells = [name]
        cells += [_number(100 * comparison.mean(name, "auroc", group=g), 2) for g in groups]
        cells += [_number(unit * comparison.mean(name, metric), 2) for _, metric, unit in _COLUMNS]
        if _has_errors(found):
            cells.append(_number(1000 * comparison.methods[name].aurc, 2))
        cells.append("" if name == found.yardstick else _difference(against[name]["auroc"]))
        rows.append(cells)
    widths = [max(len(row[i]) for row in rows) for i in range(len(titles))]
    return [
        "  ".join(
            cell.ljust(width) if i in (0, len(titles) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


def _difference(interval: Interval) -> str:
    value, low, high = (100 * v for v in (interval.value, interval.low, interval.high))
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f}){' *' if interval.clear else ''}"


def verdict(found: "Compared", track: str) -> str:
    """Which method to use, in plain words, and how sure that is.

    Args:
        found: What `compare` returned.
        track: "val" or "train".

    Example:
        >>> import torch, tulip_ood
        >>> x, y, model = torch.randn(200, 4), torch.randint(3, (200,)), torch.nn.Linear(4, 3)
        >>> data = {"id_val": [(x, y)], "id_test": [(x, y)], "ood": {"wide": [9 * x]}}
        >>> found = tulip_ood.compare(model, **data, methods=["msp"])
        >>> verdict(found, "val").split()[0] in ("Use", "None")
        True
    """
    comparison, against = _comparison(found, track), found.against[track]
    best = _order(comparison)[0]
    top = comparison.mean(best, "auroc")
    if top < NO_BETTER_THAN_GUESSING:
        return (
            f"None of these tells these OOD sets from ID: the highest AUROC is {100 * top:.1f} %, "
            f"and guessing gives 50 %."
        )
    plain = _yardstick(found)
    if best == found.yardstick:
        return f"Use {plain}: no method has a higher AUROC on these OOD sets."
    gain = against[best]["auroc"]
    if not found.gains[track][best]:
        return (
            f"Use {plain}: {best} has the highest AUROC of {len(comparison.methods)} methods, but "
            f"a difference of {_difference(gain)} may be chance when so many are tried."
        )
    if gain.value < WORTH_NAMING:
        return (
            f"Use {plain}: {best} has the highest AUROC, but only {100 * gain.value:.2f} points "
            f"more."
        )
    ties = [name for name in found.tied[track] if name != best]
    words = [f"Use {best}: its AUROC is {100 * gain.value:.2f} points above {plain}'s."]
    if ties:
        words.append(f"Not told apart from it by these images: {', '.join(ties)}.")
    errors = against[best].get("aurc")
    if errors is not None and errors.clear and errors.value > 0:
        words.append(
            f"But it ranks the network's own errors worse than {plain} does (AURC "
            f"{1000 * errors.value:+.2f} × 10⁻³): to find wrong answers on ordinary inputs, use "
            f"another."
        )
    return " ".join(words)
