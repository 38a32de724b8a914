"""What `Auto` is made of on one network: raw scores of all its parts, as a fit itself makes them.

    python benchmarks/auto/columns.py cards --data FOLDER --network FILE… --out FOLDER

`Auto` is fitted on the validation images as a user would. Kept is what each part says, not yet
centred and scaled, of

- `held`: the inputs that were learned from, each by what others of them have taught (the scale);
- `inside`, `kind …`, `mild_…`: the trial half of the validation images, its pseudo-OOD and its mild
  changes, by what the other half has taught (weights and bars);
- `test`, `shifted` and every OOD set, by what the fitted detector has learned.

Image and mirror image stand apart, TULiP with several J, and beside the parts more scores that the
same passes give, so that any rule of this kind can be put together exactly (`parts.py`). With
`--methods`, other detectors of the library are fitted and scored too.
"""

import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from study import asking, fitted, task_of
from tasks import Task
from torch import Tensor

from tulip_ood.detectors import evidence
from tulip_ood.detectors.auto import MIRRORED, Auto
from tulip_ood.detectors.auto_parts import ORDER, RATIO
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.envelope_fit import FittedEnvelope
from tulip_ood.detectors.evidence import Trial
from tulip_ood.detectors.fitting import cross_fit
from tulip_ood.detectors.measured import measure
from tulip_ood.detectors.registry import make
from tulip_ood.errors import InputError
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import Rows
from tulip_ood.numerics import envelope
from tulip_ood.numerics.scores import gen
from tulip_ood.shifts.mild import MILD

STRENGTHS = (1.0, 1.5, 2.0)  # of J
BESIDE = ("ebo", "scale")  # more that one pass gives
FEWER, LESS = 4, ", M 4"  # noisy passes


class Watched(Auto):
    """`Auto`, which keeps what it has weighed its parts by."""

    _rows: Rows
    _half: Passes
    _trial: Trial

    def _prepare(self, rows: Rows, *more: Any) -> None:
        self._rows = rows
        super()._prepare(rows, *more)

    def _weigh(self, trial: Trial) -> None:
        self.tried: dict[str, Passes] = {}
        alone = evidence.pseudo_sets

        def sets(*arguments: Any, **named: Any) -> dict[str, Passes]:
            found = alone(*arguments, **named)
            self.tried |= {f"kind {kind}": passes for kind, passes in found.items()}
            return found

        def rightly(rows: Rows) -> Passes:
            made, kinds = trial._passes(rows).only_finite(), list(MILD)
            self.tried[kinds[sum(name in kinds for name in self.tried)]] = made
            assert made.labels is not None
            return made.take((made.base.argmax(-1) == made.labels).nonzero().squeeze(1))

        evidence.pseudo_sets = sets  # type: ignore[assignment]
        trial._rightly_answered = rightly  # type: ignore[method-assign]
        try:
            super()._weigh(trial)
        finally:
            evidence.pseudo_sets = alone
        self._trial = trial

    def _standardised(self, passes: Passes, states: Any) -> Any:
        self._half = passes  # the last of them is what the state has learned from
        return super()._standardised(passes, states)


def sure(probs: Tensor, answer: Tensor) -> Iterator[tuple[str, Tensor]]:
    """How unsure probabilities are, [N, o]."""
    yield "entropy", -(probs * probs.clamp_min(1e-300).log()).sum(-1)
    yield "msp", 1 - probs.max(-1).values
    own = probs.gather(-1, answer[:, None])[:, 0]
    yield "nll", -own.clamp_min(1e-300).log()
    yield "gen", gen(probs)


def fewer(passes: Passes) -> Passes:
    """As if less noise had been asked for."""
    return replace(passes, noisy=passes.noisy[:FEWER])


def told(
    detector: Watched, states: dict[str, Any], beside: dict[str, Detector], passes: Passes
) -> dict[str, Tensor]:
    """Every column."""
    answer, base = passes.base.argmax(-1), passes.base.double().softmax(-1)

    def of(name: str, probs: Tensor) -> dict[str, Tensor]:
        return {f"{name} {what}": values for what, values in sure(probs, answer)}

    found = of("base", base)
    if detector._mirrors:
        other = MIRRORED.passes_of(passes)
        found |= of("mirror", other.base.double().softmax(-1))
        for part in ("knn", "nci"):
            if part in states:
                own = detector.parts[detector._part_names.index(part)]
                found[f"mirror {part}"] = own._score(states[part], other)
    named = {**dict(zip(detector._part_names, detector.parts, strict=True)), **beside}
    for more, some in (("", passes), (LESS, fewer(passes))):
        order = states[ORDER + more]
        assert isinstance(order, FittedEnvelope)
        measured = measure(some, sqrt_outputs=False)
        unit = measured.stretch(order.scoring.trace_xx, order.scoring.lam)
        for name, j in [*((f"J {j:g}", j) for j in STRENGTHS), ("J*", order.j_star)]:
            samples = envelope.samples(some.base.double(), some.noisy, j * unit)
            found |= of(f"{name}{more}", samples.softmax(-1).mean(0))
        found |= of(f"noise{more}", some.noisy.double().softmax(-1).mean(0))
        if RATIO + more in states:
            found[RATIO + more] = named[RATIO]._score(states[RATIO + more], some)
    for name, state in states.items():
        if not name.startswith((ORDER, RATIO)):
            found[name] = named[name]._score(state, passes)
    return {name: values.double().nan_to_num(posinf=1e6) for name, values in found.items()}


def right(detector: Watched, passes: Passes) -> Any:
    assert passes.labels is not None
    return (passes.base.argmax(-1).cpu() == passes.labels.cpu()).numpy()


@torch.no_grad()
def columns(
    task: Task, batch: int
) -> tuple[Tensor, dict[str, Any], dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Scores [N, columns] of all sources, right answers by source, what the header says; and the
    scores of the fitted detector by source."""
    detector = Watched(task.model, batch_size=batch)
    detector.fit([task.val])
    beside: dict[str, Detector] = {}
    for name in BESIDE:
        one = make(name, detector.network)
        try:
            one._learn(detector._half)
            beside[name] = one
        except InputError:
            continue
    parts = {**dict(zip(detector._part_names, detector.parts, strict=True)), **beside}

    def learned(passes: Passes) -> dict[str, Any]:
        made = {name: part._learn(passes) for name, part in parts.items()}
        again = {n + LESS: parts[n]._learn(fewer(passes)) for n in (ORDER, RATIO) if n in parts}
        return {**made, **again}

    def stacked(states: dict[str, Any], passes: Passes) -> Tensor:
        return torch.stack(list(told(detector, states, beside, passes).values()), 1)

    states, held = cross_fit(detector._half, learned, stacked)
    names = list(told(detector, states, beside, detector._half.take(slice(0, 2))))
    found = {"held": held}
    answers = {"held": right(detector, detector._half)}

    trial, rows = detector._trial, detector._rows
    second = trial._some(rows.take(range(len(rows) // 2, len(rows)))).only_finite()
    taught = learned(second)
    for name, made in {"inside": trial._inside, **detector.tried}.items():
        found[name] = stacked(taught, made)
        answers[name] = right(detector, made)

    sources = {"test": task.test[0], "shifted": task.shifted[0], **task.sets}

    scores = {}

    def each(passes: Passes) -> tuple[Tensor, ...]:
        fitted = detector._score(detector._ready(), passes)
        return (*stacked(states, passes).unbind(1), passes.base.argmax(-1), fitted)

    for name, x in sources.items():
        *own, said, scores[name] = detector.engine.over(x, detector._needs(), each)
        found[name] = torch.stack([v.cpu() for v in own], 1)
        labels = {"test": task.test[1], "shifted": task.shifted[1]}.get(name)
        if labels is not None:
            answers[name] = (said.cpu() == labels.cpu()).numpy()
    assert detector._state is not None
    header = {
        "columns": names, "sources": list(found), "sizes": [len(v) for v in found.values()],
        "J*": states[ORDER].j_star, "dead": states[ORDER].inactive,
        "facts": {k: v for k, v in detector._facts.items() if k in ("evidence", "mirrored")},
        "mirrors": detector._mirrors, "weights": detector._weights, "bars": detector._bars,
        "accuracy": float(answers["test"].mean()), "classes": detector._facts["n_outputs"],
        "about": {"auto": {
            "report": detector._report_lines(), "findings": [str(f) for f in detector._findings],
        }},
    }  # fmt: skip
    return torch.cat(list(found.values())), answers, header, {"auto": scores}


def stored(task: Task, network: str, given: Any) -> None:
    """The columns of one network, as a file."""
    began = time.perf_counter()
    task.model.to(given.device).eval()
    table, answers, header, own = columns(task, given.batch)
    made = time.perf_counter()
    methods, about = fitted(task, given.batch, given.methods)
    methods |= own
    arrays = {f"right {name}": values for name, values in answers.items()}
    arrays["table"] = table.float().numpy().T
    order = ["test", "shifted", *task.sets]
    arrays["methods"] = np.stack(
        [np.concatenate([m[n].cpu().numpy() for n in order]) for m in methods.values()]
    ).astype(np.float32)
    header |= {
        "task": task.name, "near": list(task.near), "about": {**about, **header["about"]},
        "methods": list(methods),
        "far": [name for name in task.sets if name not in task.near], "method sources": order,
    }  # fmt: skip
    file = given.out / f"{Path(network).stem}.npz"
    np.savez_compressed(file, header=json.dumps(header), **arrays)
    took = [round(made - began), round(time.perf_counter() - made)]
    print(f"{file.stem}: {header['accuracy']:.4f}, {took} s", flush=True)


def main() -> None:
    parser = asking(__doc__, several=True)
    parser.add_argument("--methods", nargs="*", default=[])
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    given.out.mkdir(parents=True, exist_ok=True)
    task: Task | None = None
    for network in given.network:
        task = task_of(given.task, given.data, network, given.limit, task)
        task = replace(task, sets={name: x[: given.outside] for name, x in task.sets.items()})
        stored(task, network, given)


if __name__ == "__main__":
    main()
