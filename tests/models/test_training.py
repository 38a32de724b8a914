"""Training by the recipe: it learns, it is seeded, and a run that was stopped goes on exactly."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from tulip_ood.errors import FileFormatError, InputError
from tulip_ood.models.training import TrainingRecipe, _Batches, train

RECIPE = TrainingRecipe(epochs=6, batch_size=32, learning_rate=0.05, padding=1)


def images(n: int = 256) -> tuple[Tensor, Tensor]:
    """Red or blue."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 2
    x = torch.randint(0, 120, (n, 8, 8, 3), generator=generator, dtype=torch.uint8)
    x[y == 0, :, :, 0] += 100
    x[y == 1, :, :, 2] += 100
    return x, y


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 2),
        )


def run(out: Path, seed: int = 0, model: nn.Module | None = None, **more: Any) -> Any:
    x, y = images()
    model = model or network()
    done = train(
        model, x, y, val=images(64), out=out, recipe=RECIPE, seed=seed, device="cpu", **more
    )
    return model, done


def test_it_learns_and_writes_the_best_weights(tmp_path: Path) -> None:
    model, done = run(tmp_path / "net.safetensors")
    assert done.accuracy > 0.95
    assert done.accuracy == max(done.history) == done.history[done.best_epoch - 1]
    with safe_open(tmp_path / "net.safetensors", framework="pt") as file:
        assert file.metadata()["classes"] == "2"
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert all(torch.equal(stored[name], t) for name, t in model.state_dict().items())
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


def test_the_seed_decides(tmp_path: Path) -> None:
    one, _ = run(tmp_path / "a.safetensors")
    two, _ = run(tmp_path / "b.safetensors")
    other, _ = run(tmp_path / "c.safetensors", seed=1)
    assert torch.equal(one[0].weight, two[0].weight)
    assert not torch.equal(one[0].weight, other[0].weight)


def test_a_stopped_run_goes_on_to_the_same_network(tmp_path: Path) -> None:
    whole, expected = run(tmp_path / "a.safetensors")

    def stop(done: int, of: int, accuracy: float) -> None:
        if done == 5:
            raise KeyboardInterrupt

    out = tmp_path / "b.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run(out, save_every=2, progress=stop)
    assert not out.exists()
    seen: list[int] = []
    again, done = run(out, progress=lambda at, of, accuracy: seen.append(at))
    assert seen == [5, 6]  # from the file of epoch 4
    assert done == expected
    assert all(torch.equal(t, whole.state_dict()[n]) for n, t in again.state_dict().items())


def test_another_run_s_file_is_refused(tmp_path: Path) -> None:
    def stop(done: int, of: int, accuracy: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a.safetensors", save_every=1, progress=stop)
    with pytest.raises(FileFormatError, match="another training run"):
        run(tmp_path / "a.safetensors", seed=5)


def test_crops_and_flips_are_of_the_image() -> None:
    x, y = images(40)
    batches = _Batches(x, y, TrainingRecipe(batch_size=20, padding=2), seed=0)
    table = batches.epoch(3)
    assert table.shape == (2, 4, 20)
    assert sorted(table[:, 0].flatten().tolist()) == list(range(40))  # each image once
    made, labels = batches.make(table[0])
    mean, std = torch.tensor(RECIPE.mean), torch.tensor(RECIPE.std)
    for i, (image, row, column, flip) in enumerate(table[0].T.tolist()):
        padded = nn.functional.pad(x[image].permute(2, 0, 1), (2, 2, 2, 2))
        crop = padded[:, row : row + 8, column : column + 8]
        crop = crop.flip(2) if flip else crop
        expected = (crop.permute(1, 2, 0) / 255 - mean) / std
        torch.testing.assert_close(made[i].permute(1, 2, 0), expected, rtol=1e-5, atol=1e-5)
        assert labels[i] == y[image]


def test_wrong_images_are_refused(tmp_path: Path) -> None:
    x, y = images()
    for bad in (x.float(), x[..., :1], x[:8]):
        with pytest.raises(InputError):
            train(network(), bad, y[: len(bad)], val=(x, y), out=tmp_path / "n", device="cpu")
