"""What a network must keep to so that an input has a score of its own, found out by a few passes.

The same input gives the same output, whatever else is in its batch; a pass leaves nothing behind;
and parameters that are handed in are those that the output comes from.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress

import torch
from torch import Tensor

from tulip_ood.errors import ModelError
from tulip_ood.network import inputs as structures
from tulip_ood.network.inputs import Inputs
from tulip_ood.numerics import random

__all__ = ["check_alone", "check_reached", "check_repeated", "companion", "few_rows", "shaken"]

_FEW = 4  # rows that a network is looked at with
_PERIOD = 4099  # numbers of noise that a parameter is shaken by, over and over


def few_rows(inputs: Inputs) -> Inputs:
    """The first few rows that are finite; the first ones of all if none is.

    Example:
        >>> nan = float("nan")
        >>> few_rows(torch.tensor([[nan], [2.0], [3.0]]))
        tensor([[2.],
                [3.]])
    """
    good = structures.finite_rows(inputs).nonzero().squeeze(1)[:_FEW]
    return structures.take(inputs, good if len(good) else slice(0, _FEW))


def companion(row: Inputs) -> Inputs:
    """Another input that the network can take, made from this one, with other statistics.

    Rolled by one place; numbers are halved, but for token ids and masks, which must keep theirs.

    Example:
        >>> companion(torch.tensor([[2.0, 4.0, 6.0]]))
        tensor([[3., 1., 2.]])
    """

    def change(t: Tensor) -> Tensor:
        rolled = t.roll(1, dims=-1) if t.ndim > 1 else t
        if t.dtype == torch.uint8:
            return rolled // 2
        return rolled / 2 if t.is_floating_point() else rolled

    return structures.map_tensors(change, row)


def check_repeated(first: Tensor, again: Tensor) -> None:
    """Refuse a network whose outputs [N, …, o] differ between two passes over the same inputs.

    Example:
        >>> check_repeated(torch.ones(1, 2), torch.ones(1, 2))
    """
    if float((again - first).abs().max()) > 1e-3 * _scale(first):
        raise ModelError(
            "the network gives different outputs for the same inputs although it is in "
            "evaluation mode: something random is always on (F.dropout without "
            "training=self.training?). Make it deterministic in eval()"
        )


def check_alone(run: Callable[[Inputs], Tensor], row: Inputs, together: Tensor) -> None:
    """Refuse a network whose output for an input depends on what else is in the batch.

    Args:
        run: From inputs to outputs [N, …, o].
        row: One input.
        together: Its output in the batch that it came in, […, o].

    Example:
        >>> check_alone(lambda x: x - x.mean(0), torch.tensor([[1.0, 2.0]]), torch.zeros(2))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.ModelError: the network's output for an input changes with the rest of \
its batch, so no input has a score of its own: replace what computes statistics over the batch
    """
    alone = run(row)[0]
    found = [together]
    with suppress(Exception):  # an input that we made up is not the user's to answer for
        found.append(run(structures.collate([row, companion(row)]))[0])
    for other in found:
        if other.shape == alone.shape and (
            float((alone - other).abs().max()) > 1e-2 * max(_scale(alone), _scale(together))
        ):
            raise ModelError(
                "the network's output for an input changes with the rest of its batch, so no "
                "input has a score of its own: replace what computes statistics over the batch"
            )


def shaken(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters that are all visibly different: noise is added, so that zeros change, too.

    Example:
        >>> moved = shaken({"bias": torch.zeros(3)})
        >>> bool((moved["bias"] != 0).all())
        True
    """
    moved = {}
    for name, theta in parameters.items():
        if not theta.is_floating_point() or not theta.numel():
            moved[name] = theta
            continue
        n = theta.numel()
        noise = random.normal((min(n, _PERIOD),), seed=0, name=name).to(theta.device, theta.dtype)
        noise = noise.repeat(-(-n // len(noise)))[:n].reshape(theta.shape)
        size = 0.02 + 0.2 * float(torch.linalg.vector_norm(theta, dtype=torch.float64)) / n**0.5
        moved[name] = theta + size * noise
    return moved


def check_reached(run: Callable[[], Tensor], first: Tensor, again: Tensor) -> None:
    """Refuse a network whose output stays the same when all of its parameters are changed.

    Args:
        run: A pass with other parameters.
        first: The outputs with the network's own, […, o], finite.
        again: The same once more: what differs between them is rounding.

    Example:
        >>> check_reached(lambda: torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1, 2))
    """
    try:
        moved = run()
    except Exception:  # other parameters made a difference
        return
    if moved.shape != first.shape:
        return
    change = (moved - first).abs().nan_to_num(torch.inf)
    if float(change.max()) <= float((again - first).abs().max()):
        raise ModelError(
            "perturbed parameters do not reach the output: passes run on a copy of the network, "
            "but its output came from elsewhere (is `forward` patched on the instance, or does it "
            "call a module that is kept in a closure, a list or a global?). Put that code into "
            "the class, and modules into attributes"
        )


def _scale(outputs: Tensor) -> float:
    return float(outputs.abs().max()) + 1e-12
