"""θ_ts = E[θ_0]: what each parameter was, on average, when training began (Alg. 1, line 1).

0 for weights and biases, 1 for the scale of a normalisation layer, and whatever else an
initialisation scheme has. The drift pass moves along θ_T − θ_ts.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, fx, nn

from tulip_ood.errors import InputError

__all__ = ["InitialMean", "canonical_name", "initial_mean"]

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_PRELU = 0.25  # PyTorch's own initial slope
# Where modules keep the constant that their LayerScale started from.
_SCALE_ATTRIBUTES = ("init_values", "init_value", "layerscale_value", "layer_scale_init_value")
_WRAPPERS = ("module.", "_orig_mod.")


def canonical_name(name: str) -> str:
    """A parameter's name without the prefixes of torch.compile and DataParallel.

    Example:
        >>> canonical_name("module._orig_mod.layer1.0.weight")
        'layer1.0.weight'
    """
    while name.startswith(_WRAPPERS):
        name = name.split(".", 1)[1]
    return name.replace("._orig_mod.", ".")


@dataclass(frozen=True)
class InitialMean:
    """The means that are not 0, and what had to be guessed.

    Attributes:
        values: Canonical parameter name → a number or a tensor.
        guesses: One sentence for every mean that was inferred from the trained value.

    Example:
        >>> InitialMean({"bn.weight": 1.0}, ()).of("bn.weight")
        1.0
    """

    values: dict[str, float | Tensor]
    guesses: tuple[str, ...]

    def of(self, name: str) -> float | Tensor:
        """The mean of one parameter, 0 where nothing else is known."""
        return self.values.get(name, 0.0)


def initial_mean(
    module: nn.Module,
    parameters: Mapping[str, Tensor],
    given: Mapping[str, float | Tensor] | None = None,
) -> InitialMean:
    """The initial mean of every parameter, by the kind of layer that owns it.

    Args:
        module: The network (its structure; values are taken from `parameters`).
        parameters: Canonical name → trained value.
        given: What the user knows better: numbers or tensors by parameter name, or the state
            dict of an early checkpoint (entries that are buffers are passed over).

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4))
        >>> initial_mean(net, dict(net.named_parameters())).values
        {'1.weight': 1.0}
    """
    values: dict[str, float | Tensor] = {}
    guesses: list[str] = []
    for name in parameters:
        owner_name, _, leaf = name.rpartition(".")
        owner = module.get_submodule(owner_name)
        mean, guess = _by_owner(owner, leaf, parameters[name])
        if guess:
            guesses.append(f"{name}: {guess}")
        if mean != 0.0:
            values[name] = mean
    for prefix, part in module.named_modules():
        if isinstance(part, fx.GraphModule):
            for name, mean in _by_operation(part):
                values[f"{prefix}.{name}" if prefix else name] = mean
    values.update(_given(module, parameters, given or {}))
    return InitialMean(
        {name: values[name] for name in parameters if name in values}, tuple(guesses)
    )


def _by_owner(owner: nn.Module, leaf: str, value: Tensor) -> tuple[float, str]:
    kind = type(owner).__name__
    if isinstance(owner, _NORMS):
        return (1.0 if leaf == "weight" else 0.0), ""
    if isinstance(owner, nn.PReLU):
        return _PRELU, ""
    if "layerscale" in kind.lower() or "layer_scale" in leaf:
        return _layer_scale(owner), ""
    if "norm" in kind.lower() and "bias" not in leaf and leaf != "beta" and value.ndim <= 1:
        mean = 1.0 if float(value.detach().double().mean()) > 0.5 else 0.0
        return mean, f"{kind} is not PyTorch's own; its scale is taken to have begun at {mean:g}"
    return 0.0, ""


def _layer_scale(owner: nn.Module) -> float:
    for holder in (owner, getattr(owner, "config", None)):
        for attribute in _SCALE_ATTRIBUTES:
            found = getattr(holder, attribute, None)
            if isinstance(found, int | float) and not isinstance(found, bool):
                return float(found)
    return 0.0  # the usual 1e-6…1e-4 is nearer to 0 than to anything else


def _by_operation(graph: fx.GraphModule) -> Iterator[tuple[str, float]]:
    """Exported graphs have no layer classes: the operation that reads a parameter tells."""
    for node in graph.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        operation = schema.name.rpartition("::")[2]
        mean = 1.0 if "norm" in operation else _PRELU if "prelu" in operation else None
        if mean is None:
            continue
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.name == "weight" and isinstance(value, fx.Node) and value.op == "get_attr":
                yield str(value.target), mean


def _given(
    module: nn.Module, parameters: Mapping[str, Tensor], given: Mapping[str, float | Tensor]
) -> dict[str, float | Tensor]:
    buffers = {canonical_name(name) for name, _ in module.named_buffers()}
    aliases = {canonical_name(name) for name, _ in module.named_parameters(remove_duplicate=False)}
    chosen: dict[str, float | Tensor] = {}
    for raw, value in given.items():
        name = canonical_name(raw)
        if name not in parameters:
            if name in buffers or name in aliases or name.endswith("num_batches_tracked"):
                continue
            near = difflib.get_close_matches(name, list(parameters), n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise InputError(f"initial_mean names {raw!r}, which is no parameter{hint}")
        if isinstance(value, Tensor) and value.ndim and value.shape != parameters[name].shape:
            raise InputError(
                f"initial_mean[{raw!r}] has the shape {list(value.shape)}, but the parameter has "
                f"{list(parameters[name].shape)}"
            )
        chosen[name] = value.detach() if isinstance(value, Tensor) else value
    return chosen
