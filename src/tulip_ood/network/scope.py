"""Which parameters are perturbed, and how strongly: the scope and Γ.

A parameter outside the scope has Γ = 0, in the noise and in the drift alike.
"""

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Mapping

from torch import nn

from tulip_ood.errors import InputError
from tulip_ood.network.blocks import repeated_blocks
from tulip_ood.network.features import Calls
from tulip_ood.network.operations import NOT_COUNTED, Compute
from tulip_ood.numerics.given import number

__all__ = ["parameter_scales", "parameters_in_scope"]

Scope = str | Iterable[str]
LayerScale = Mapping[str, float] | Callable[[str], float]

_NAMED = ("all", "head", "last-block", "last-stage", "last-25%")
_SHARE = re.compile(r"last-(\d+(?:\.\d+)?)%")


def parameter_scales(
    names: Iterable[str],
    scope: Iterable[str],
    layer_scale: LayerScale | None = None,
) -> dict[str, float]:
    """Γ for every parameter in scope: 1, or what `layer_scale` says.

    Args:
        names: All parameters.
        scope: Those in scope.
        layer_scale: A mapping of globs to factors (a later one wins), or a function of the name.

    Example:
        >>> parameter_scales(["a.weight", "b.weight"], ["a.weight", "b.weight"], {"b.*": 0.5})
        {'a.weight': 1.0, 'b.weight': 0.5}
    """
    inside = set(scope)
    scales = {name: 1.0 for name in names if name in inside}
    if layer_scale is None:
        return scales
    if callable(layer_scale):
        scales = {name: number("layer_scale", layer_scale(name)) for name in scales}
    elif not isinstance(layer_scale, Mapping):
        raise InputError(
            f"layer_scale must be a mapping like {{'fc.*': 0.5}} or a function of a parameter's "
            f"name, got {layer_scale!r}"
        )
    else:
        for pattern, factor in layer_scale.items():
            hits = fnmatch.filter(scales, pattern)
            if not hits:
                raise InputError(
                    f"layer_scale names {pattern!r}, which fits no parameter in scope; there are "
                    f"{_some(scales)}"
                )
            scales.update(dict.fromkeys(hits, number("layer_scale", factor)))
    bad = {name: s for name, s in scales.items() if not (math.isfinite(s) and s >= 0)}
    if bad:
        name, value = next(iter(bad.items()))
        raise InputError(f"layer_scale must be finite and not negative; {name} has {value}")
    return {name: s for name, s in scales.items() if s > 0}


def parameters_in_scope(
    module: nn.Module,
    names: Iterable[str],
    scope: Scope,
    calls: Calls,
    head: str | None,
    compute: Compute = NOT_COUNTED,
) -> list[str]:
    """The names of the parameters that `scope` means.

    Args:
        module: The network.
        names: All parameters, by canonical name.
        scope: "all", "head" (the last linear layer), "last-block", "last-stage", a share of the
            compute ("last-25%"), or one or more globs on parameter names.
        calls: Which part ran when.
        head: The name of the last linear layer.
        compute: What a pass computes, for shares of it.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        >>> parameters_in_scope(net, ["0.weight", "1.weight"], "1.*", Calls({}), "1")
        ['1.weight']
    """
    names = list(names)
    if scope == "all":
        return names
    if scope == "head":
        if head is None:
            raise InputError(
                "scope 'head' needs a last linear layer, and none was found: name parameters by "
                f"globs instead; there are {_some(names)}"
            )
        return [name for name in names if _inside(name, head)]
    if scope in ("last-block", "last-stage"):
        return _after_blocks(module, names, str(scope), calls)
    if isinstance(scope, str) and (share := _SHARE.fullmatch(scope)) is not None:
        return _last_share(names, float(share[1]) / 100, compute)
    patterns = [scope] if isinstance(scope, str) else list(scope)
    chosen: set[str] = set()
    for pattern in patterns:
        hits = fnmatch.filter(names, pattern)
        if not hits:
            raise InputError(
                f"scope {pattern!r} fits no parameter; use {', '.join(_NAMED)} or globs on these "
                f"names: {_some(names)}"
            )
        chosen.update(hits)
    return [name for name in names if name in chosen]


def _last_share(names: list[str], share: float, compute: Compute) -> list[str]:
    """Parameters after whose first use no more than this share of a pass is computed."""
    if not 0 < share <= 1:
        raise InputError(f"scope='last-…%' takes a share above 0 up to 100; got {100 * share:g}")
    if not compute.left:
        raise InputError(
            "the operations of this network cannot be counted: name parameters by globs instead; "
            f"there are {_some(names)}"
        )
    chosen = [name for name in names if compute.left.get(name, 1.0) <= share + 1e-9]
    if not chosen:
        least = min(compute.left.values())
        raise InputError(
            f"no parameter lies in the last {100 * share:g} % of the compute: the last one in use "
            f"is followed by {100 * least:.2g} % of it"
        )
    return chosen


def _after_blocks(module: nn.Module, names: list[str], scope: str, calls: Calls) -> list[str]:
    groups = repeated_blocks(module, calls)
    if not groups:
        raise InputError(
            f"scope {scope!r} needs repeated blocks (same-class siblings in a Sequential or "
            f"ModuleList), and none were found; use globs on these names: {_some(names)}"
        )
    container = max(groups, key=lambda c: max(calls.spans[b][0] for b in groups[c]))
    blocks = sorted(groups[container], key=lambda b: calls.spans[b][0])
    if scope == "last-block":
        chosen = blocks[-1:]
    elif len(groups) > 1:
        # The whole container: what stands between its blocks, or before them, belongs to the stage.
        chosen = [*blocks, container]
    else:
        chosen = blocks[-math.ceil(len(blocks) / 4) :]
    end = min(calls.spans[block][1] for block in chosen if block in calls.spans)

    def included(name: str) -> bool:
        owner = name.rpartition(".")[0]
        started = calls.spans.get(owner, (-1, -1))[0]
        return any(_inside(name, block) for block in chosen) or started > end

    return [name for name in names if included(name)]


def _inside(name: str, part: str) -> bool:
    return part == "" or name.startswith(part + ".")


def _some(names: Iterable[str]) -> str:
    names = list(names)
    shown = names if len(names) <= 8 else [*names[:4], "…", *names[-4:]]
    return ", ".join(shown)
