"""Reading a loader: what goes along with tensors, and the process's random state."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tulip_ood
from tulip_ood.errors import InputError
from tulip_ood.network.inputs import row_digests, signature
from tulip_ood.network.loaders import batches
from tulip_ood.network.rows import collect_rows

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


def data(n: int = 120) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=generator), torch.arange(n) % 3


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
        return self.net(torch.cat([a, b * scale], dim=1))


def test_constants_that_differ_between_batches_are_refused() -> None:
    """Rows are put together again: one batch's constant would have been used for all."""
    x, y = data()
    batches = [
        {"a": x[i : i + 40, :2], "b": x[i : i + 40, 2:], "scale": s, "labels": y[i : i + 40]}
        for i, s in ((0, 1.0), (40, 1.0), (80, 2.0))
    ]
    with pytest.raises(InputError, match=r"differ in scale.* 1\.0 in one, 2\.0 in another"):
        tulip_ood.Tulip(Two(), n_samples=2).fit(batches)
    del batches[2]["scale"]
    with pytest.raises(InputError, match=r"differ in scale.* 1\.0 in one, nothing in another"):
        tulip_ood.Tulip(Two(), n_samples=2).fit(batches)
    one, two = ({"x": torch.zeros(1), "s": s} for s in (1, True))
    assert signature(one) != signature(two)
    same = torch.zeros(1, 2)
    differing = [row_digests({"x": same, "s": s}, seed=0) for s in (1, 2, "1", None)]
    assert len({digest for (digest,) in differing}) == 4


# ---------------------------------------------------------------- random state


def shuffling(workers: int = 0) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data()), batch_size=32, shuffle=True, num_workers=workers)


def test_fitting_leaves_the_random_state_alone() -> None:
    """iter(DataLoader) draws a seed for its workers, and its sampler one for the order."""
    model = nn.Linear(4, 3)
    before = torch.get_rng_state()
    detector = tulip_ood.Tulip(model, n_samples=2).fit(shuffling(), recipe="balanced")
    assert torch.equal(torch.get_rng_state(), before)
    detector.fit(shuffling(), tune=shuffling())
    assert torch.equal(torch.get_rng_state(), before)


def test_learning_from_training_data_leaves_it_alone() -> None:
    made = tulip_ood.detectors.make("react", nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)))
    before = torch.get_rng_state()
    made.fit(shuffling(), train=shuffling())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loader_still_shuffles() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        state = torch.get_rng_state()
        ours = [x for x, _ in batches(shuffling())]
        assert torch.equal(torch.get_rng_state(), state)
        theirs = [x for x, _ in shuffling()]
        torch.manual_seed(6)
        other = [x for x, _ in batches(shuffling())]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not torch.equal(torch.cat(ours), torch.cat(other))
    assert not torch.equal(torch.cat(ours), data()[0])


def test_draws_between_batches_are_the_users_own() -> None:
    """Reading neither hands out numbers twice nor takes any away; nor does it when broken off."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = torch.rand(3)
        torch.manual_seed(0)
        reading = batches(shuffling())
        found = [torch.rand(1)]
        next(reading)
        found.append(torch.rand(1))
        next(reading)
        del reading
        found.append(torch.rand(1))
    assert torch.equal(torch.cat(found), expected)


def test_random_transforms_go_on_from_batch_to_batch() -> None:
    class Noise(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            return torch.rand(2), 0

    rows = collect_rows(DataLoader(Noise(), batch_size=2))
    assert len(set(rows.digests)) == 8


def test_a_loader_that_dies_leaves_the_random_state_alone() -> None:
    class Dying(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 100

        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            torch.rand(1)
            if i == 70:
                raise OSError("the disk is gone")
            return torch.zeros(4), 0

    detector = tulip_ood.detectors.MSP(nn.Linear(4, 3))
    before = torch.get_rng_state()
    with pytest.raises(OSError, match="the disk is gone"):
        detector.fit(DataLoader(Dying(), batch_size=32))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_no_loader_is_named(vectors: Any) -> None:
    """Texts and mappings can be iterated over, letter by letter and key by key."""
    detector = tulip_ood.detectors.make("msp", vectors.model)
    x, y = vectors.test
    for given, said in {
        "val/": r"expected a loader .*, got 'val/': .* tulip calibrate … --data val/",
        Path("val"): r"expected a loader .*--data val$",
        None: "expected a loader .*, got NoneType",
    }.items():
        with pytest.raises(InputError, match=said):
            detector.fit(given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"expected a loader .*, got dict: put a single batch"):
        detector.fit({"inputs": x, "labels": y})
