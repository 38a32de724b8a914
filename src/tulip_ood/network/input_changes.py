"""Inputs moved along a gradient: what ODIN and AdaSCALE look at."""

from collections.abc import Callable

import torch
from torch import Tensor

from tulip_ood.errors import ModelError
from tulip_ood.network import inputs as structures
from tulip_ood.network.full_precision import full_precision
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network

__all__ = ["move_inputs"]

_NO_PATH = ("does not require grad", "not to have been used in the graph")


def move_inputs(
    network: Network,
    inputs: Inputs,
    objective: Callable[[Tensor], Tensor],
    step: Callable[[Tensor, Tensor], Tensor],
) -> Inputs:
    """The inputs after a step that depends on the gradient of a function of their logits.

    Args:
        network: The network.
        inputs: As the model takes them; the first floating tensor in them is moved.
        objective: From logits [N, o] to one number an input, [N].
        step: From that tensor and the gradient to the moved tensor.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> _ = torch.nn.init.eye_(model.weight)
        >>> network = Network(model, make_task("classification"))
        >>> x = torch.zeros(1, 2)
        >>> move_inputs(network, x, lambda z: z[:, 1], lambda x, g: x + g).tolist()
        [[0.0, 1.0]]
    """
    # A caller's inference mode would forbid gradients; tensors made in it are copied. The way
    # back, too, is in full precision: signs are taken of small gradients.
    with torch.inference_mode(False), full_precision():
        moved = structures.map_tensors(lambda t: t.clone(), network.to_device(inputs))
        try:
            gradient = network.input_gradient(moved, objective)[1]
        except RuntimeError as error:
            if not any(text in str(error) for text in _NO_PATH):
                raise
            raise ModelError(
                "this method changes its inputs along a gradient, and none reaches them from the "
                "logits: something on the way cuts it (torch.no_grad, .detach(), numpy, or a "
                "rounding to whole numbers). Take that out of forward, or use another method"
            ) from error
    for place, main in structures.tensors(moved):
        if main.is_floating_point():
            return structures.replace(moved, place, step(main, gradient))
    raise ModelError("this method changes its inputs along a gradient: they must be real")
