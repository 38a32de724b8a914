"""The record of passes: on disk and back, its key, and what happens when memory is short."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import FileFormatError
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import collect_rows
from tulip_ood.network.running import run_passes

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


def made(problem: Any, *, model: nn.Module | None = None, n: int = 50, **settings: Any) -> Passes:
    detector = tulip_ood.Tulip(model or problem.model, n_samples=2, **settings)
    detector.fit(problem.loader(), recipe="balanced")
    rows = collect_rows([(problem.test[0][:n], problem.test[1][:n])])
    return run_passes(
        detector.engine.perturbation(detector._settings()),
        rows,
        batch_size=16,
        labels=rows.labels,
        keyed=True,
    )


def test_on_disk_and_back(images: Any, tmp_path: Path) -> None:
    passes = made(images)
    passes.save(tmp_path / "p.safetensors")
    again = Passes.load(tmp_path / "p.safetensors")
    for name in ("base", "noisy", "drift", "features", "labels"):
        assert torch.equal(getattr(again, name), getattr(passes, name)), name
    assert (again.key, again.settings, again.ids) == (passes.key, passes.settings, passes.ids)
    assert [p.name for p in tmp_path.iterdir()] == ["p.safetensors"]


def test_damaged_records_are_refused(images: Any, tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    made(images).save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(FileFormatError, match="damaged, or not passes"):
        Passes.load(path)


def test_the_key_changes_with_everything_that_matters(images: Any) -> None:
    base = made(images)
    keys = {
        "same": made(images).key,
        "seed": made(images, seed=1).key,
        "epsilon": made(images, epsilon=0.01).key,
        "scope": made(images, scope="head").key,
        "inputs": made(images, n=49).key,
    }
    assert keys.pop("same") == base.key
    assert len({base.key, *keys.values()}) == 5
    weights = nn.Sequential(*images.model)
    with torch.no_grad():
        weights[0].bias.add_(0.01)
    try:
        assert made(images, model=weights).key != base.key
    finally:
        with torch.no_grad():
            weights[0].bias.sub_(0.01)


def test_taking_rows(images: Any) -> None:
    passes = made(images)
    index = torch.tensor([3, 1])
    part = passes.take(index)
    assert torch.equal(part.noisy, passes.noisy[:, index])
    assert part.ids == (passes.ids[3], passes.ids[1])
    mask = torch.zeros(len(passes), dtype=torch.bool)
    mask[[1, 3]] = True
    assert passes.take(mask).ids == (passes.ids[1], passes.ids[3])


def test_rows_that_are_not_finite(images: Any) -> None:
    passes = made(images)
    noisy = passes.noisy.clone()
    noisy[1, 7, 2] = float("nan")
    broken = replace(passes, noisy=noisy)
    assert (~broken.finite).nonzero().flatten().tolist() == [7]


class Hungry(nn.Module):
    """Runs out of memory on more than four inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory (pretended)")
        return self.net(x)


def test_out_of_memory_halves_the_batch(vectors: Any) -> None:
    model = Hungry()
    detector = tulip_ood.Tulip(model, n_samples=2).fit(vectors.loader(), recipe="balanced")
    plain = tulip_ood.Tulip(nn.ModuleDict({"net": model.net}).net)
    assert detector.score(vectors.ood).isfinite().all()
    assert plain.network.run(vectors.ood).logits.shape == (300, 3)


def test_other_errors_are_the_users_own(vectors: Any) -> None:
    class Broken(Hungry):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        tulip_ood.Tulip(Broken()).fit(vectors.loader())
