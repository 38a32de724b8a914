"""AUROC of every scope and every M on a trained CIFAR ResNet-18, and what "auto" would choose.

    make evidence-scope DATA=sets.npz CHECKPOINT=cifar10.safetensors NAME=cifar10

Passes of each scope with all samples are made once, on a GPU if there is one (what a scope does not
reach is shared, which takes half an hour of one core instead of hours). Everything else is
arithmetic on them, by the functions that `fit` uses: the best setting of each scope on pseudo-OOD
with four samples, its loss against all parameters with a paired interval, the AUROC against real
OOD sets for every M, and Spearman's ρ between successive M. No real OOD image takes part in any
choice. ε of the smaller scopes: the nearest, of those that were run, to the one that moves the
outputs as far.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.func import functional_call

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from data.cifar import load_network, load_sets
from measuring import machine

import tulip_ood
from tulip_ood.detectors.pseudo import make_kinds
from tulip_ood.detectors.sample_choice import ID_INPUTS, KIND_INPUTS, STILL
from tulip_ood.detectors.scope_choice import SCOPES
from tulip_ood.detectors.steadiness import HARDLY_WORSE
from tulip_ood.detectors.tuning import Candidate, SearchSpace, best_first, candidates, scores_of
from tulip_ood.network.compute import compute_shares
from tulip_ood.network.full_precision import full_precision
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings
from tulip_ood.network.rows import Rows, collect_rows
from tulip_ood.numerics import calibration, envelope
from tulip_ood.numerics.metrics import auroc, spearman
from tulip_ood.numerics.paired import Paired, Scored, resampled_auroc
from tulip_ood.numerics.tasks import make_task

TASK = make_task("classification")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH = 64 if DEVICE.type == "cpu" else 500
EPSILONS = {"head": (0.05, 0.1), "last-block": (0.01,), "last-stage": (0.01,), "all": (0.005,)}
TUNED_WITH = 4  # samples, as in `fit`


class Tail(nn.Module):
    """A ResNet-18 from where a scope begins."""

    def __init__(self, model: nn.Module, scope: str) -> None:
        super().__init__()
        self.scope = scope
        for name, part in model.named_children():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        if self.scope == "all":
            x = self.layer3(self.layer2(self.layer1(torch.relu(self.bn1(self.conv1(x))))))
        if self.scope in ("all", "last-stage"):
            x = self.layer4[0](x)
        if self.scope != "head":
            x = self.layer4[1](x).mean(dim=(2, 3))
        return self.fc(x)


def over(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.no_grad(), full_precision():
        return torch.cat([function(part.to(DEVICE)).cpu() for part in x.split(BATCH)])


def with_parameters(module: nn.Module, parameters: dict[str, Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: functional_call(module, parameters, (x,))


def in_order(rows: Rows) -> Tensor:
    index, inputs = next(rows.batches(len(rows)))
    return inputs[torch.argsort(index)]


def inputs_of(options: Any, sets: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Validation inputs, pseudo-OOD, test inputs and OOD sets; and the labels of the first."""
    rows = collect_rows([(sets["id_val"], sets["id_val_labels"])], seed=0)
    rows = rows.take(range(options.inputs))
    found = {"val": in_order(rows)}
    for name, made in make_kinds(rows, None, options.kind_inputs, 0).items():
        found[f"kind_{name}"] = in_order(made)
    found["id_test"] = sets["id_test"][: options.test]
    for name in sets:
        if name.startswith(("near_", "far_")):
            found[name] = sets[name][: options.ood]
    assert rows.labels is not None
    return found, rows.labels


def make_passes(options: Any, model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Logits of all passes, by scope and ε."""
    model = model.to(DEVICE, memory_format=torch.channels_last)
    x = x.contiguous(memory_format=torch.channels_last)
    trunk = nn.Sequential(model.conv1, model.bn1, nn.ReLU(), model.layer1, model.layer2)
    starts = {"all": x, "last-stage": over(nn.Sequential(trunk, model.layer3), x)}
    starts["last-block"] = over(model.layer4[0], starts["last-stage"])
    starts["head"] = over(lambda h: model.layer4[1](h).mean((2, 3)), starts["last-block"])
    found = {"base": over(model.fc, starts["head"])}
    for scope in SCOPES:
        tail = Tail(model, scope).eval()
        detector = tulip_ood.Tulip(model, scope=scope, hold=False)
        detector.network.probe(x[:4])
        for epsilon in EPSILONS[scope]:
            settings = PassSettings(epsilon, n_samples=options.samples)
            perturbation = detector._make_perturbation(settings)
            every = chain(perturbation.noisy(), [perturbation.drifted()])
            *noisy, drift = (over(with_parameters(tail, w), starts[scope]) for w in every)
            found[f"{scope}/{epsilon}/noisy"] = torch.stack(noisy)
            found[f"{scope}/{epsilon}/drift"] = drift
            print(scope, epsilon, "made", flush=True)
    return found


class Records:
    """Passes of any set and M, from what was made once."""

    def __init__(self, made: dict[str, Tensor], sizes: dict[str, int], labels: Tensor) -> None:
        self._made, self._labels = made, labels
        self.places, start = {}, 0
        for name, n in sizes.items():
            self.places[name] = slice(start, start + n)
            start += n

    def names(self, beginning: str) -> list[str]:
        return [name for name in self.places if name.startswith(beginning)]

    def of(self, name: str, scope: str, epsilon: float, m: int) -> Passes:
        where = self.places[name]
        noisy = self._made[f"{scope}/{epsilon}/noisy"]
        own = "val" if name.startswith("kind_") else name  # made from the same images
        n = where.stop - where.start
        return Passes(
            self._made["base"][where],
            noisy[:m, where],
            self._made[f"{scope}/{epsilon}/drift"][where],
            None,
            self._labels if name == "val" else None,
            PassSettings(epsilon, n_samples=m),
            ids=tuple(f"{own}/{i}".encode() for i in range(n)),
        )


def scored(records: Records, names: list[str], best: Candidate, scope: str, m: int) -> list[Tensor]:
    """Scores of validation inputs and then of these sets."""
    epsilon = best.setting.epsilon
    inside = records.of("val", scope, epsilon, m)
    others = [records.of(name, scope, epsilon, m) for name in names]
    return scores_of(best, inside, others, TASK, "ent", sqrt_outputs=False)


def near_and_far(records: Records, best: Candidate, scope: str, m: int) -> dict[str, float]:
    row = {}
    for group in ("near", "far"):
        names = records.names(f"{group}_")
        _, inside, *outside = scored(records, ["id_test", *names], best, scope, m)
        row[group] = round(100 * sum(auroc(inside, o) for o in outside) / len(outside), 2)
    return row


def ranking(records: Records, best: Candidate, scope: str, m: int) -> Tensor:
    inside, *outside = scored(records, records.names("kind_"), best, scope, m)
    return torch.cat([inside[:ID_INPUTS], *(o[:KIND_INPUTS] for o in outside)])


def matched(records: Records, scope: str) -> float:
    """Of the ε that were run, the nearest to the one that moves outputs as far as all do."""

    def trace(scope: str, epsilon: float) -> float:
        passes = records.of("val", scope, epsilon, 2)
        return calibration.mean_trace(envelope.trace(passes.base, passes.noisy))

    (full,), there = EPSILONS["all"], EPSILONS[scope]
    wanted = there[0] * math.sqrt(trace("all", full) / trace(scope, there[0]))
    return min(there, key=lambda epsilon: abs(math.log(epsilon / wanted)))


def judge(records: Records, samples: int) -> dict[str, Any]:
    kinds = records.names("kind_")
    rows: dict[str, Any] = {}
    drawn: dict[str, Tensor] = {}
    for scope in SCOPES:
        epsilon = matched(records, scope)
        inside = records.of("val", scope, epsilon, TUNED_WITH)
        outside = {kind: records.of(kind, scope, epsilon, TUNED_WITH) for kind in kinds}
        tried = candidates(inside, outside, TASK, "ent", SearchSpace(), sqrt_outputs=False)
        best = best_first(tried, "auroc")[0]
        own, *others = scored(records, kinds, best, scope, TUNED_WITH)
        drawn[scope] = resampled_auroc(
            Scored(own, inside.ids or ()),
            {k: Scored(s, outside[k].ids or ()) for k, s in zip(kinds, others, strict=True)},
            seed=0,
        )
        orders = {m: ranking(records, best, scope, m) for m in range(2, samples + 1, 2)}
        rhos = {m: spearman(orders[m], orders[m + 2]) for m in range(2, samples - 1, 2)}
        still = next((m for m, rho in rhos.items() if rho >= STILL), samples)
        rows[scope] = {
            "epsilon": epsilon,
            "lam_over_balanced": best.setting.balance,
            "j": round(best.j, 3),
            "pseudo_auroc": round(100 * float(drawn[scope][0]), 2),
            "rho_with_two_more": {m: round(rho, 4) for m, rho in rhos.items()},
            "rho_with_most": {m: round(spearman(orders[m], orders[samples]), 4) for m in rhos},
            "auto_samples": still,
            "real": {m: near_and_far(records, best, scope, m) for m in orders},
        }
    for scope, row in rows.items():
        paired = Paired.of(drawn["all"], drawn[scope])
        loss = [round(100 * v, 2) for v in (paired.loss, paired.low, paired.high)]
        row["loss"], row["loss_low"], row["loss_high"] = loss
        row["good"] = paired.low <= 0 and paired.loss <= HARDLY_WORSE
    chosen = next(scope for scope, row in rows.items() if row["good"])
    return {"auto_scope": chosen, "scopes": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="keep the passes here, or take them from here")
    parser.add_argument("--inputs", type=int, default=256)
    parser.add_argument("--kind-inputs", type=int, default=96)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--ood", type=int, default=100)
    parser.add_argument("--samples", type=int, default=16)
    options = parser.parse_args()
    model, mean, std = load_network(options.checkpoint)
    inputs, labels = inputs_of(options, load_sets(options.data, mean, std))
    sizes = {name: len(x) for name, x in inputs.items()}
    if options.cache is not None and options.cache.exists():
        made = load_file(options.cache)
    else:
        made = make_passes(options, model, torch.cat(list(inputs.values())))
        if options.cache is not None:
            save_file({name: value.contiguous() for name, value in made.items()}, options.cache)
    detector = tulip_ood.Tulip(model.cpu())
    detector.network.probe(inputs["val"][:4])
    names = {scope: frozenset(detector._scales_in(scope)) for scope in SCOPES}
    shares = compute_shares(detector.network, inputs["val"][:1], names) or {}
    found = judge(Records(made, sizes, labels), options.samples)
    for scope, row in found["scopes"].items():
        row["share"] = round(shares[scope], 5)
    result = {
        "checkpoint": options.checkpoint.name,
        "sets": sizes,
        "samples": options.samples,
        "machine": machine(threads=torch.get_num_threads()) | {"device": DEVICE.type},
        **found,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
