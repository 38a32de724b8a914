"""Pseudo-OOD made from validation inputs, and which kinds of it say anything.

A kind on which the network keeps 80 % of what it does better than chance keeps the label
(upside-down tissue is still tissue) and says nothing about OOD.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from tulip_ood.detectors.engine import Engine
from tulip_ood.detectors.fitting import CROSS_FIT_BELOW
from tulip_ood.detectors.recipes import Budget
from tulip_ood.errors import InputError
from tulip_ood.network import inputs as structures
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import Needs
from tulip_ood.shifts.kinds import Range, domain_of, kinds_for, main_tensor, shift

__all__ = [
    "KEEPS_LABEL",
    "Kind",
    "make_kinds",
    "pseudo_sets",
    "share_kept",
    "shifted_rows",
    "usual_kinds",
]

KEEPS_LABEL = 0.8
Kind = str | Callable[[Inputs], Inputs]


def share_kept(kept: float, clean: float, chance: float) -> float:
    """How much of what the network does better than chance it still does.

    Example:
        >>> share_kept(0.5, 0.9, 0.1)
        0.5
    """
    if clean <= chance:  # nothing is better than chance: how often the answer stays right
        return kept / clean if clean > 0 else 0.0
    return (kept - chance) / (clean - chance)


def make_kinds(
    inside: Rows, kinds: Sequence[Kind] | None, inputs: int, seed: int
) -> dict[str, Rows]:
    """Pseudo-OOD of every kind, from the first rows.

    Args:
        inside: Validation inputs.
        kinds: Names, or functions from inputs to inputs; None for the usual ones.
        inputs: How many of each.
        seed: Decides what is random in the kinds.

    Example:
        >>> import torch
        >>> from tulip_ood.network.rows import collect_rows
        >>> rows = collect_rows([(torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))])
        >>> list(make_kinds(rows, ["negative"], 2, seed=0))
        ['negative']
    """
    chosen = inside.take(range(min(inputs, len(inside))))
    if kinds is None:
        kinds = usual_kinds(chosen)
    made: dict[str, Rows] = {}
    for kind in kinds:
        name = kind if isinstance(kind, str) else getattr(kind, "__name__", type(kind).__name__)
        if name in made:  # two lambdas, say
            name = f"{name} ({len(made) + 1})"
        made[name] = shifted_rows(chosen, kind, seed)
    return made


def usual_kinds(rows: Rows) -> Sequence[str]:
    """The kinds that fit some inputs, by name.

    Example:
        >>> import torch
        >>> from tulip_ood.network.rows import collect_rows
        >>> len(usual_kinds(collect_rows([(torch.rand(4, 1, 8, 8), torch.zeros(4))])))
        7
    """
    first = rows.inputs[0]
    place = main_tensor(first)
    return kinds_for(domain_of(first if place is None else first[place]))


def pseudo_sets(
    engine: Engine,
    rows: Rows,
    needs: Needs,
    *,
    seed: int,
    progress: Callable[[int], None] | None = None,
    clean: Passes | None = None,
    budget: Budget | None = None,
) -> dict[str, Passes]:
    """Passes of the usual kinds of pseudo-OOD, without those that keep the label.

    Args:
        engine: Makes the passes.
        rows: Validation inputs; only those that are learned from are used.
        needs: What the passes must hold.
        seed: Decides what is random in the kinds.
        progress: Told of the inputs that went through a pass.
        clean: Passes of the first rows as they are, if they are there; a base pass is enough.
        budget: How many inputs are looked at, if not as many as usual.

    Example:
        >>> import torch, tulip_ood
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Linear(4, 3), torch.randn(200, 4)
        >>> detector, y = tulip_ood.detectors.GEN(model), (model(x) + torch.randn(200, 3)).argmax(1)
        >>> rows = detector.engine.collect([(x, y)], detector._needs(), seed=0, memory=1 << 20)
        >>> sorted(pseudo_sets(detector.engine, rows, detector._needs(), seed=0))
        ['mixed_rows', 'permuted_columns']
    """
    task, budget = engine.network.task, budget or Budget()
    own = rows.take(range(len(rows) if len(rows) < CROSS_FIT_BELOW else len(rows) // 2))
    few = min(budget.id_inputs, len(own))
    if clean is None or len(clean) < few:
        clean = engine.passes_of(own.take(range(few)), needs, seed=seed, progress=progress)
    clean = clean.base_alone().take(slice(0, few))
    labels = task.check_labels(_labels(clean), clean.base)
    accuracy, chance = task.performance(clean.base, labels), task.chance(clean.base, labels)
    found: dict[str, Passes] = {}
    for name, part in make_kinds(own, None, budget.kind_inputs, seed).items():
        made = engine.passes_of(part, needs, seed=seed, progress=progress).only_finite()
        kept = task.performance(made.base, task.check_labels(_labels(made), made.base))
        if share_kept(kept, accuracy, chance) <= KEEPS_LABEL:
            found[name] = made
    if not found:
        raise InputError(
            "the network keeps its answers on every kind of pseudo-OOD, so nothing can be chosen "
            "on them: pass a loader of OOD inputs"
        )
    return found


def _labels(passes: Passes) -> Tensor:
    assert passes.labels is not None
    return passes.labels


def shifted_rows(rows: Rows, kind: Kind, seed: int) -> Rows:
    """Rows changed by one kind of pseudo-OOD; the labels stay those of the originals.

    Example:
        >>> import torch
        >>> from tulip_ood.network.rows import collect_rows
        >>> rows = collect_rows([(torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))])
        >>> len(shifted_rows(rows, "negative", seed=0))
        4
    """
    changed: list[Inputs] = [None] * len(rows)
    for index, batch in rows.batches(len(rows)):
        if callable(kind):
            result = kind(batch)
        else:
            place = main_tensor(batch)
            main = batch if place is None else batch[place]
            within = Range.of(main) if main.is_floating_point() or main.ndim == 4 else None
            result = shift(batch, kind, seed=seed, within=within)
        if structures.count_rows(result) != len(index):
            raise InputError(
                f"a kind of pseudo-OOD must return as many inputs as it gets; got "
                f"{structures.count_rows(result)} for {len(index)}"
            )
        for at, i in enumerate(index.tolist()):
            changed[i] = structures.take(result, slice(at, at + 1))
    return Rows(tuple(changed), rows.labels, rows.digests, rows.seen, rows.dropped)
