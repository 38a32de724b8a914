"""Exact blocks of the empirical NTK, against automatic differentiation by other means."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vjp

from tulip_ood.errors import InputError, ModelError
from tulip_ood.models.digits import DigitNet
from tulip_ood.network.network import Network
from tulip_ood.network.ntk_blocks import _pull_all, ntk_blocks
from tulip_ood.numerics.random import uniform
from tulip_ood.numerics.tasks import make_task
from tulip_ood.theory.bound import closeness


def network(module: nn.Module) -> Network:
    return Network(module.eval(), make_task("classification"))


def jacobians(module: nn.Module, x: Tensor) -> Tensor:
    """[n, o, parameters], by `jacrev`."""
    held = {name: p.detach().double() for name, p in module.named_parameters()}
    buffers = {name: b.double() for name, b in module.named_buffers() if b.is_floating_point()}
    found = jacrev(lambda p: functional_call(module, {**p, **buffers}, (x.double(),)))(held)
    return torch.cat([part.flatten(2) for part in found.values()], dim=2)


def test_blocks_are_products_of_jacobians(vectors: Any) -> None:
    z, x = vectors.test[0][:4], vectors.val[0][:5]
    blocks = ntk_blocks(network(vectors.model), z, x)
    first, second = jacobians(vectors.model, z), jacobians(vectors.model, x)
    assert torch.allclose(blocks.cross, torch.einsum("iap,jbp->ijab", first, second))
    assert torch.allclose(blocks.test, torch.einsum("iap,ibp->iab", first, first))
    assert torch.allclose(blocks.train, torch.einsum("iap,ibp->iab", second, second))
    apart = (first[:, None] - second[None]).square().sum(dim=(2, 3))
    assert torch.allclose(blocks.distances, apart)


def test_the_right_side_of_a5_is_a_nuclear_norm(vectors: Any) -> None:
    blocks = ntk_blocks(network(vectors.model), vectors.test[0][:3], vectors.val[0][:4])
    gram = blocks.cross.mT @ blocks.cross
    root = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt().sum(dim=-1)  # Tr (ΘᵀΘ)^½
    trace = (
        blocks.test.diagonal(dim1=1, dim2=2).sum(1)
        + blocks.train.diagonal(dim1=1, dim2=2).sum(1).mean()
    )
    assert torch.allclose(blocks.allowed, trace - 2 * root.mean(dim=1), rtol=1e-6)
    assert (blocks.allowed >= 0).all()


def test_a_scalar_kernel_gives_what_the_theory_gives() -> None:
    """A linear layer has Θ = (z·x + 1) I, as at infinite width."""
    z, x = uniform((3, 4), seed=0, name="z") - 0.5, uniform((5, 4), seed=0, name="x") - 0.5
    blocks = ntk_blocks(network(nn.Linear(4, 3)), z, x)
    kernel = [(a.double() @ b.double().T) + 1 for a, b in ((x, x), (z, x), (z, z))]
    sides = closeness(kernel[0], kernel[1], kernel[2].diagonal(), outputs=3)
    assert torch.allclose(blocks.nearest, sides.nearest, atol=1e-12)
    assert torch.allclose(blocks.allowed, sides.allowed)


def test_little_memory_changes_nothing_but_the_number_of_gradients() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DigitNet(3).eval()
    images = uniform((5, 1, 8, 8), seed=0, name="images")
    counts: list[tuple[int, int]] = []
    one = ntk_blocks(network(model), images[:2], images[2:])
    two = ntk_blocks(
        network(model), images[:2], images[2:], memory=1,
        progress=lambda done, of: counts.append((done, of)),
    )  # fmt: skip
    assert all(torch.allclose(a, b, rtol=1e-6) for a, b in zip(one, two, strict=True))
    assert counts == [(i + 1, 9) for i in range(9)]  # 3 tiles of 1, each with both test images
    assert all(p.grad is None for p in model.parameters())


class _OneCotangent(torch.autograd.Function):
    """y = x², whose backward pass cannot be batched."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        assert math.isfinite(float(grads[0].sum()))  # asks for the value of one cotangent
        return 2 * x * grads[0]


@pytest.mark.parametrize("square", [torch.square, _OneCotangent.apply])
def test_gradients_made_together_are_those_made_one_by_one(square: Any) -> None:
    weight = uniform((3, 4), seed=0, name="weight")
    x = uniform((1, 4), seed=0, name="x")
    pull = vjp(lambda held: square(x @ held["w"].T), {"w": weight})[1]
    unit = torch.eye(3).unsqueeze(1)
    one, all_ = (_pull_all(pull, unit, together=how)["w"] for how in (False, True))
    assert one.shape == (3, 3, 4)
    assert torch.allclose(one, all_)


def test_what_cannot_be_done_is_refused(vectors: Any) -> None:
    x = vectors.val[0][:2]
    with pytest.raises(InputError, match="test inputs are empty"):
        ntk_blocks(network(vectors.model), x[:0], x)
    with pytest.raises(ModelError, match="at most 2 outputs"):
        ntk_blocks(network(vectors.model), x, x, most_outputs=2)
