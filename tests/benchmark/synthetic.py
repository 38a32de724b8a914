"""A benchmark made of random scores: three networks, a few methods, two near and two far sets."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import torch
from torch import Tensor

from tulip_ood.benchmark.results import MethodResult, SetResult
from tulip_ood.benchmark.runs import Benchmark, BenchmarkSet, Run, ShiftedResult
from tulip_ood.benchmark.tidy import correct_refused
from tulip_ood.numerics import metrics

SETS = {  # name: (group, images, images of the protocol, what it is instead)
    "cifar100": ("near", 60, 60, None),
    "tin": ("near", 45, 45, None),
    "mnist": ("far", 50, 70_000, "the 10,000 test digits of the protocol's 70,000"),
    "texture": ("far", 40, 5_640, "ten of 47 DTD classes, 32 px"),
}
STRENGTH = {"ent": 1.0, "msp": 0.9, "tulip": 1.4}


def result_of(
    name: str, inside: Tensor, wrong: Tensor, sets: Mapping[str, Tensor], threshold: float
) -> MethodResult:
    """Every number, straight from the metrics."""
    accepted = (inside <= threshold) & (inside < torch.inf)
    return MethodResult(
        name=name,
        id_scores=inside,
        wrong=wrong,
        confidence=torch.full_like(wrong, 0.9),
        sets={
            each: SetResult(
                scores,
                metrics.auroc(inside, scores),
                metrics.id_flagged_at_95_ood(inside, scores),
                metrics.ood_missed_at_95_id(inside, scores),
                correct_refused(scores, torch.zeros_like(scores), threshold),
            )
            for each, scores in sets.items()
        },
        accuracy=1.0 - float(wrong.mean()),
        aurc=metrics.aurc(inside, wrong),
        augrc=metrics.augrc(inside, wrong),
        ece=metrics.ece(torch.full_like(wrong, 0.9), 1.0 - wrong),
        nll=0.3,
        threshold=threshold,
        coverage=float(accepted.double().mean()),
        false_alarms=1.0 - float(accepted.double().mean()),
        accepted_error=float(wrong[accepted].mean()),
    )


def benchmark(
    *,
    networks: Sequence[str] = ("s0", "s1", "s2"),
    strength: Mapping[str, float] = STRENGTH,
    noise_seeds: Callable[[str], Sequence[int]] = lambda method: (0,),
    tracks: Sequence[str] = ("val",),
    shifted: bool = False,
    n_id: int = 80,
    sets: Mapping[str, tuple[str, int, int | None, str | None]] = SETS,
    change: Callable[[Tensor], Tensor] = lambda scores: scores,
    limit: int | None = None,
    skipped: Mapping[str, str] | None = None,
) -> Benchmark:
    """Scores whose OOD part lies `strength` above the ID part, alike for all methods but noise."""
    generator = torch.Generator().manual_seed(0)

    def draw(n: int) -> Tensor:
        return torch.randn(n, generator=generator, dtype=torch.float64)

    id_images = draw(n_id)
    images = {name: draw(size) for name, (_, size, _, _) in sets.items()}
    runs = []
    for seed, network in enumerate(networks):
        wrong = (id_images + draw(n_id) > 1.8).to(torch.float64)
        for track, (method, gain) in product(tracks, strength.items()):
            for noise in noise_seeds(method):
                own = {n: change(each + gain + 0.4 * draw(len(each))) for n, each in images.items()}
                inside = change(id_images + 0.4 * draw(n_id))
                other = {"cifar10c": ShiftedResult(change(draw(30) + 0.5), wrong[:30])}
                run = Run(
                    id_set="cifar10",
                    network=network,
                    training_seed=seed,
                    noise_seed=noise,
                    method=method,
                    track=track,
                    n_val=1_000,
                    n_train=50_000 if track == "train" else 0,
                    parameters={"z": 1, "a": [0.5, method]},
                    result=result_of(method, inside, wrong, own, 1.6),
                    shifted=other if shifted else {},
                )
                runs.append(run)
    known = {"cifar10": BenchmarkSet("cifar10", "id", n_id, n_id)}
    known |= {name: BenchmarkSet(name, *rest) for name, rest in sets.items()}
    if shifted:
        known["cifar10c"] = BenchmarkSet("cifar10c", "shifted", 30, 10_000)
    return Benchmark("cifar10", tuple(runs), known, limit, skipped or {}, {"torch": "2.13"})
