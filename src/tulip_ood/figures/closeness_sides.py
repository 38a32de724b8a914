"""Both sides of assumption A5 on a network: measured exactly, kept as JSON.

    inf_{x∈X} ‖∇f(z) − ∇f(x)‖_F² ≤ Tr(Θ(z,z) + E_x Θ(x,x) − 2 E_x|Θ(z,x)|)

A GPU may measure what another machine draws: nothing here needs matplotlib.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tulip_ood.errors import FileFormatError, InputError
from tulip_ood.network.files import appear, reading
from tulip_ood.network.network import Network
from tulip_ood.network.ntk_blocks import ntk_blocks
from tulip_ood.theory.bound import Closeness

__all__ = ["MOST_GROUPS", "MOST_IMAGES", "Sides", "measure_sides"]

MOST_IMAGES = 64
MOST_GROUPS = 7
_FORMAT = "tulip-closeness-1"


@dataclass(frozen=True)
class Sides:
    """The two sides of A5 for groups of inputs.

    Attributes:
        title: What the network is called.
        outputs: o.
        train: How many inputs X has.
        groups: The sides for each z, by the group's name.

    Example:
        >>> import tempfile
        >>> two = Closeness(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Sides("net", 10, 64, {"ID": two}).save(Path(folder, "sides.json"))
        ...     Sides.load(Path(folder, "sides.json")).groups["ID"].holds.tolist()
        [True, False]
    """

    title: str
    outputs: int
    train: int
    groups: Mapping[str, Closeness]

    def save(self, path: str | Path) -> None:
        """Write a JSON file, whole or not at all."""
        groups = {
            name: {"nearest": sides.nearest.tolist(), "allowed": sides.allowed.tolist()}
            for name, sides in self.groups.items()
        }
        held = {"format": _FORMAT, "title": self.title, "outputs": self.outputs}
        text = json.dumps({**held, "train": self.train, "groups": groups}, ensure_ascii=False)
        appear(Path(path), lambda part: part.write_text(text + "\n", encoding="utf-8"))

    @staticmethod
    def load(path: str | Path) -> "Sides":
        """Read what `save` wrote."""
        with reading(path, "the two sides of A5"):
            held = json.loads(Path(path).read_text(encoding="utf-8"))
            if not isinstance(held, dict) or held.get("format") != _FORMAT:
                raise FileFormatError(f"{path} does not hold the two sides of A5")
            groups = {
                str(name): Closeness(
                    *(torch.tensor(each[k], dtype=torch.float64) for k in ("nearest", "allowed"))
                )
                for name, each in held["groups"].items()
            }
            return Sides(str(held["title"]), int(held["outputs"]), int(held["train"]), groups)


def measure_sides(
    network: Network,
    train: Tensor,
    test: Mapping[str, Tensor],
    *,
    title: str = "",
    memory: int = 2 << 30,
    progress: Callable[[int, int], None] | None = None,
) -> Sides:
    """Both sides, exact for an X of as many inputs as are given.

    With the whole training set as X the left side could only be smaller.

    Args:
        network: With at most 100 outputs an input.
        train: X: inputs from the network's training distribution, at most 64.
        test: Groups of test inputs z by name, at most 64 each.
        title: What the network is called in a figure.
        memory: Bytes that the gradients of X may take while they are held.
        progress: Called with (gradients done, gradients in all).

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(2, 3), make_task("classification"))
        >>> x = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
        >>> measure_sides(network, x, {"near": x + 0.1}).groups["near"].holds.tolist()
        [True, True]
    """
    if not test or len(test) > MOST_GROUPS:
        raise InputError(f"give 1 to {MOST_GROUPS} groups of test inputs, got {len(test)}")
    for name, inputs in {"training inputs": train, **test}.items():
        if not 1 <= len(inputs) <= MOST_IMAGES:
            raise InputError(f"{name}: expected 1 to {MOST_IMAGES} inputs, got {len(inputs)}")
    # All groups at once: the gradients of X are made once.
    blocks = ntk_blocks(
        network, torch.cat(list(test.values())), train, memory=memory, progress=progress
    )
    counts = [len(inputs) for inputs in test.values()]
    both = zip(blocks.nearest.split(counts), blocks.allowed.split(counts), strict=True)
    groups = {name: Closeness(*sides) for name, sides in zip(test, both, strict=True)}
    return Sides(title, network.known_probe.n_outputs, len(train), groups)
