"""A finite network for a toy problem in the plane: a wide one's prior, trained in a few seconds."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tulip_ood.numerics.random import normal
from tulip_ood.theory.kernels import WideNetwork
from tulip_ood.theory.problems import Points

__all__ = ["train_toy_network"]


class _Erf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.erf(x)


def _linear(network: WideNetwork, inputs: int, outputs: int, seed: int, name: str) -> nn.Linear:
    """A layer as the infinite network has it; nothing is drawn from the process's generator."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    weight, bias = (
        normal(shape, seed=seed, name=f"figures.toy.{name}.{part}")
        for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,)))
    )
    with torch.no_grad():
        layer.weight.copy_(weight * network.W_std / math.sqrt(inputs))
        layer.bias.copy_(bias * network.b_std)
    return layer


def train_toy_network(
    network: WideNetwork,
    points: Points,
    *,
    width: int = 256,
    steps: int = 300,
    rate: float = 0.003,
    seed: int = 0,
) -> nn.Sequential:
    """A draw from an infinite network's prior at finite width, trained on two classes.

    Args:
        network: Depth, activation, and the spread of the first weights and biases.
        points: Training points, labels 0 and 1.
        width: Of the hidden layers.
        steps: Of Adam, on all points at once; its rate falls to 0 along a cosine.
        rate: At the start.
        seed: Of the first weights.

    Example:
        >>> from tulip_ood.theory.problems import moons
        >>> trained = train_toy_network(WideNetwork(2, "erf"), moons(20), width=8, steps=5)
        >>> trained(moons(20).x.float()).shape, trained.training
        (torch.Size([20, 2]), False)
    """
    layers: list[nn.Module] = []
    inputs = points.x.shape[1]
    for depth in range(network.depth):
        layers.append(_linear(network, inputs, width, seed, f"hidden{depth}"))
        layers.append(_Erf() if network.activation == "erf" else nn.ReLU())
        inputs = width
    module = nn.Sequential(*layers, _linear(network, inputs, 2, seed, "last"))
    x, labels = points.x.float(), points.y[:, 0].long()
    optimiser = torch.optim.Adam(module.parameters(), lr=rate)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
        optimiser.zero_grad()
        F.cross_entropy(module(x), labels).backward()
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return module.eval()
