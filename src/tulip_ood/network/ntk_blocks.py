"""The empirical NTK of a network, exactly: Θ(z, x) = ∇f(z) ∇f(x)ᵀ, an o × o block a pair.

A row of ∇f(x) is one vector–Jacobian product, so an input costs o of them, made together on a GPU.
Gradients of a few inputs at a time are held, those of all others come and go: memory does not grow
with their number, time does where they do not fit.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vjp, vmap

from tulip_ood.errors import InputError, ModelError
from tulip_ood.network.full_precision import full_precision
from tulip_ood.network.network import Network
from tulip_ood.wording import counted

__all__ = ["NtkBlocks", "ntk_blocks"]

Jacobian = list[Tensor]  # one [o, size] for each parameter


class NtkBlocks(NamedTuple):
    """Blocks of the NTK between two sets of inputs, float64.

    Attributes:
        cross: Θ(z, x), [m, N, o, o].
        test: Θ(z, z), [m, o, o].
        train: Θ(x, x), [N, o, o].

    Example:
        >>> one = torch.eye(2).reshape(1, 1, 2, 2)
        >>> NtkBlocks(one, one[0], one[0]).nearest
        tensor([0.])
    """

    cross: Tensor
    test: Tensor
    train: Tensor

    @property
    def distances(self) -> Tensor:
        """‖∇f(z) − ∇f(x)‖_F² = Tr(Θ(z,z) + Θ(x,x) − 2 Θ(z,x)), [m, N]."""
        own, other = _traces(self.test)[:, None], _traces(self.train)
        return (own + other - 2 * _traces(self.cross)).clamp_min(0.0)

    @property
    def nearest(self) -> Tensor:
        """inf_x ‖∇f(z) − ∇f(x)‖_F², [m]: the left side of A5."""
        return self.distances.amin(dim=1)

    @property
    def allowed(self) -> Tensor:
        """Tr(Θ(z,z) + E_x Θ(x,x) − 2 E_x|Θ(z,x)|), [m]: the right side of A5.

        |Θ| = (ΘᵀΘ)^{1/2}, so its trace is the sum of Θ's singular values. Never negative: that sum
        is at most ‖∇f(z)‖_F ‖∇f(x)‖_F.
        """
        similar = torch.linalg.svdvals(self.cross).sum(dim=-1).mean(dim=1)
        allowed: Tensor = _traces(self.test) + _traces(self.train).mean() - 2 * similar
        return allowed


def _traces(blocks: Tensor) -> Tensor:
    return blocks.diagonal(dim1=-2, dim2=-1).sum(dim=-1)


def _jacobian(network: Network, row: Tensor) -> Jacobian:
    """∇f of one input [1, …], each parameter's part as a matrix with a row for each output."""

    def logits(parameters: dict[str, Tensor]) -> Tensor:
        return network.run_as_is(row, parameters).logits  # with gradients

    floating = {n: p for n, p in network.parameters.items() if p.is_floating_point()}
    fixed = {n: p for n, p in network.parameters.items() if n not in floating}
    with full_precision():  # the way back, too
        out, pull = vjp(lambda moving: logits({**fixed, **moving}), floating)[:2]
        unit = torch.eye(out.shape[1], dtype=out.dtype, device=out.device).unsqueeze(1)
        found = _pull_all(pull, unit, together=out.is_cuda)
    return [found[name].flatten(1) for name in floating]


def _pull_all(pull: Callable[..., Any], unit: Tensor, *, together: bool) -> dict[str, Tensor]:
    """The gradients of all outputs; on a CPU one after another is faster."""
    if together:
        try:
            (batched,) = vmap(pull)(unit)
        except RuntimeError:  # an operation whose backward pass takes one cotangent only
            pass
        else:
            return dict(batched)
    rows = [pull(one)[0] for one in unit]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _stacked(jacobians: Iterator[Jacobian], count: int) -> Jacobian:
    """Several Jacobians below each other, one [count · o, size] for each parameter."""
    held: Jacobian = []
    for i, found in enumerate(jacobians):
        o = len(found[0])
        held = held or [part.new_empty(count * o, part.shape[1]) for part in found]
        for rows, part in zip(held, found, strict=True):
            rows[i * o : (i + 1) * o] = part
    return held


def _products(one: Jacobian, others: Jacobian) -> Tensor:
    """∇f(z) ∇f(x)ᵀ for all x in a stack, [N, o, o]; the parts are added in float64."""
    o, many = len(one[0]), len(others[0])
    total = torch.zeros(o, many, dtype=torch.float64, device=one[0].device)
    with full_precision():
        for part, rows in zip(one, others, strict=True):
            total += part @ rows.T
    return total.reshape(o, many // o, o).movedim(1, 0).cpu()


def ntk_blocks(
    network: Network,
    test: Tensor,
    train: Tensor,
    *,
    most_outputs: int = 100,
    memory: int = 2 << 30,
    progress: Callable[[int, int], None] | None = None,
) -> NtkBlocks:
    """Θ at the trained weights, between test and training inputs.

    Args:
        network: With outputs [N, o].
        test: The inputs z, [m, …].
        train: The inputs x, [N, …].
        most_outputs: Refuse more outputs than this: time grows with o, memory with o².
        memory: Bytes that the gradients of training inputs may take while they are held.
        progress: Called with (gradients done, gradients in all).

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(2, 3), make_task("classification"))
        >>> blocks = ntk_blocks(network, torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]]))
        >>> blocks.cross[0, 0]  # Wx + b: (z·x + 1) I
        tensor([[6., 0., 0.],
                [0., 6., 0.],
                [0., 0., 6.]], dtype=torch.float64)
    """
    for name, inputs in (("test", test), ("train", train)):
        if len(inputs) == 0:
            raise InputError(f"the {name} inputs are empty")
    probe = network.probe(train)
    o = probe.n_outputs
    if probe.outputs_per_input != o or o > most_outputs:
        raise ModelError(
            f"NTK blocks need a network with one row of at most {counted(most_outputs, 'output')} "
            f"an input; this one has {counted(probe.outputs_per_input, 'output')}, {o} in a row"
        )
    rows = [network.to_device(part) for part in (test, train)]
    size = sum(p.numel() * p.element_size() for p in network.parameters.values()) * o
    held = max(1, min(len(train), memory // max(1, size)))
    tiles = -(-len(train) // held)
    done, total = 0, len(train) + tiles * len(test)

    def jacobian(inputs: Tensor, i: int) -> Jacobian:
        nonlocal done
        found = _jacobian(network, inputs[i : i + 1])
        done += 1
        if progress is not None:
            progress(done, total)
        return found

    cross = torch.empty(len(test), len(train), o, o, dtype=torch.float64)
    own = torch.empty(len(test), o, o, dtype=torch.float64)
    other = torch.empty(len(train), o, o, dtype=torch.float64)
    for start in range(0, len(train), held):
        tile = range(start, min(start + held, len(train)))
        kept = _stacked((jacobian(rows[1], j) for j in tile), len(tile))
        for j in tile:
            gradient = [part[(j - start) * o : (j - start + 1) * o] for part in kept]
            (other[j],) = _products(gradient, gradient)
        for i in range(len(test)):
            gradient = jacobian(rows[0], i)
            (own[i],) = _products(gradient, gradient)
            cross[i, start : tile.stop] = _products(gradient, kept)
    return NtkBlocks(cross, own, other)
