"""What the parts of `Auto` say, learned as `Auto` learns them: scores to put rules together from.

    python benchmarks/auto/columns.py cards --data FOLDER --network FILE --out columns.npz

One half of the validation images learns for the other (`val`, which gives the scale), one half for
`inside`, its pseudo-OOD and its mildly changed copies, and all of them for everything else. Stored
as they are, not yet centred and scaled: image and mirror image apart, TULiP with several J and M.
`parts.py` reads them. Needs a GPU (half a minute a network).
"""

import json
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from study import SCORES, Features, asking, features, nearest, task_of
from tasks import Task
from torch import Tensor

from tulip_ood.detectors.depth import Depth
from tulip_ood.detectors.pseudo import make_kinds
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.network.inner import InnerStatistics, find_inner
from tulip_ood.network.mirrored import Mirrored
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import collect_rows
from tulip_ood.network.running import Needs, run_passes
from tulip_ood.shifts.kinds import kinds_for
from tulip_ood.shifts.mild import MILD

EPSILON, KIND, CLIP = 0.005, 128, 0.9
M, FEWER = 10, (4, 6)
ENT, EBO = SCORES["ent"], SCORES["ebo"]


def few(z: Tensor, samples: int) -> Tensor:
    """The first noisy passes between the base pass and the drift."""
    return torch.cat([z[: 1 + samples], z[-1:]])


def stretched(z: Tensor, own: Tensor, balance: float, strength: float) -> Tensor:
    """TULiP's samples; Θ_XX and the balanced λ are learned from `own`."""
    trace, trace_xx = (((v[1:-1] - v[0]) ** 2).sum(-1).mean(0) for v in (z, own))
    drift, drift_xx = ((v[-1] - v[0]).norm(dim=-1) for v in (z, own))
    balanced = 2 * trace_xx.mean() / drift_xx.mean()
    bound = (trace + trace_xx.mean() - balance * balanced * drift).clamp_min(0)
    stretch = (bound / trace.clamp_min(1e-30)).sqrt()[None, :, None]
    return z[:1] + strength * stretch * (z[1:-1] - z[:1])


def ratio(z: Tensor, own: Tensor) -> Tensor:
    trace_xx = ((own[1:-1] - own[0]) ** 2).sum(-1).mean()
    trace, drift = ((z[1:-1] - z[0]) ** 2).sum(-1).mean(0), (z[-1] - z[0]).norm(dim=-1)
    return ((trace + trace_xx) / drift.clamp_min(1e-9)).log()


def aligned(f: Tensor, logits: Tensor, learned: Tensor, weight: Tensor) -> Tensor:
    """NCI: how little features point along the weights of the class that is answered."""
    out = f - learned.mean(0)
    return -(out * weight[logits.argmax(-1)]).sum(-1) / out.norm(dim=-1).clamp_min(1e-12)


def said(
    made: Features, mirror: Passes, name: str, learned: Tensor, j_star: float
) -> Iterator[tuple[str, Tensor]]:
    """Every column of one source; `learned` are the features that parts have learned from."""
    f, device = made.of[name], learned.device

    def logits(shape: Any, of: Tensor) -> Tensor:
        z = torch.einsum("mnd,mod->mno", shape(of), made.weight) + made.bias[:, None]
        return z.double()

    z, own = (logits(lambda v: v, of) for of in (f, learned))
    yield "entropy", ENT(z[:1])
    yield "mirror", ENT(mirror.base[None].double().to(device))
    for samples in (*FEWER, M):
        some, theirs = few(z, samples), few(own, samples)
        for strength in (1.0, 1.5, 2.0):
            yield f"J {strength:g}, M {samples}", ENT(stretched(some, theirs, 1.0, strength))
        yield f"ratio, M {samples}", ratio(some, theirs)
    yield f"J*, M {M}", ENT(stretched(z, own, 1.0, j_star))
    yield f"noise, M {M}", ENT(z[1:-1])
    clip = float(torch.quantile(learned[0].flatten()[:: 1 + learned[0].numel() // 2**22], CLIP))
    yield "react", EBO(logits(lambda v: v.clamp_max(clip), f)[:1])
    other = mirror.need_features().to(device)
    yield "knn", nearest(f[0], learned[0], 1)
    yield "mirror, knn", nearest(other, learned[0], 1)
    yield "nci", aligned(f[0], z[0], learned[0], made.weight[0])
    yield "mirror, nci", aligned(other, mirror.base.to(device), learned[0], made.weight[0])


def right(logits: Tensor, labels: Tensor | None) -> Any:
    assert labels is not None
    return (logits.argmax(-1).cpu() == labels.cpu()).numpy()


@torch.no_grad()
def columns(task: Task, batch: int) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any], Any]:
    """Scores by column and source, right answers by source, and what the header says."""
    detector = Tulip(task.model, batch_size=batch).fit([task.val], recipe="balanced")
    rows = collect_rows([task.val], seed=0)
    half = len(rows) // 2
    halves = {"first": rows.take(range(half)), "second": rows.take(range(half, len(rows)))}
    most = min(KIND, (half + 1) // 2)
    kinds = make_kinds(halves["first"], list(kinds_for("images")), most, 0)
    copies = {f"kind {name}": part for name, part in kinds.items()}
    copies |= make_kinds(halves["first"], list(MILD), most, 0)
    rest = {"test": task.test[0], "shifted": task.shifted[0], **task.sets}
    sources: Mapping[str, Any] = {**halves, **copies, **rest}

    made = features(detector, dict(sources), EPSILON)
    depth = Depth(detector.network)
    depth.stages = find_inner(detector.network, task.test[0][:2])
    measures = (Mirrored(), InnerStatistics(depth.stages))
    needs = Needs(detector._settings().with_(n_samples=0), measures=measures)
    perturbation = detector._make_perturbation(needs.settings)
    base = {
        name: run_passes(perturbation, source, batch_size=batch, needs=needs)
        for name, source in {**sources, "all": rows}.items()
    }
    known = {**made.of, "all": torch.cat([made.of["first"], made.of["second"]], 1)}
    inner = {name: depth._learn(base[name]) for name in ("first", "second", "all")}

    plan = [("val", "first", "second"), ("val", "second", "first"), ("inside", "first", "second")]
    plan += [(name, name, "second") for name in copies] + [(name, name, "all") for name in rest]
    found: dict[str, dict[str, Tensor]] = {}
    for name, source, learner in plan:
        mirror, j_star = Mirrored().passes_of(base[source]), detector.fitted.j_score
        each = dict(said(made, mirror, source, known[learner], j_star))
        each["depth"] = depth._score(inner[learner], base[source])
        for column, values in each.items():
            before = found.setdefault(column, {}).get(name, torch.empty(0))
            found[column][name] = torch.cat([before, values.double().cpu()])

    labels = {"inside": halves["first"].labels, "test": task.test[1], "shifted": task.shifted[1]}
    labels |= {name: part.labels for name, part in copies.items()}
    answers = {name: right(base[{"inside": "first"}.get(name, name)].base, y)
               for name, y in labels.items()}  # fmt: skip
    own = [base["all"].base, Mirrored().passes_of(base["all"]).base]
    accuracy = [float(right(logits, rows.labels).mean()) for logits in own]
    header = {"J*": detector.fitted.j_score, "classes": made.weight.shape[1], "mirrored": accuracy}
    return found, answers, header


def main() -> None:
    given = asking(__doc__).parse_args()
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    task = task_of(given.task, given.data, given.network, given.limit)
    task.model.to(given.device).eval()
    found, answers, header = columns(task, given.batch)
    names = list(found["entropy"])
    table = [torch.cat([by_source[name] for name in names]) for by_source in found.values()]
    header |= {
        "task": task.name, "columns": list(found), "sources": names,
        "sizes": [len(found["entropy"][name]) for name in names], "near": list(task.near),
        "far": [name for name in task.sets if name not in task.near],
    }  # fmt: skip
    arrays = {f"right {name}": values for name, values in answers.items()}
    stacked = torch.stack(table).float().numpy()
    np.savez_compressed(given.out, header=json.dumps(header), table=stacked, **arrays)
    print(f"{given.task} {Path(given.network).stem}: {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
