"""A private copy of the user's module without storage, to be run with any parameters.

`torch.func.functional_call` swaps a module's parameters while it runs, and a second thread sees
them. So passes never go through the user's object: the copy shares its code and structure, its
parameters are empty placeholders on the meta device, and the real tensors are handed in for each
call. The user's parameters, buffers, mode, hooks and gradients are never written to.
"""

import copy
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from tulip_ood.errors import ModelError
from tulip_ood.network.followed import Followed
from tulip_ood.network.marks import same_bits

__all__ = ["Skeleton", "make_skeleton", "unwrap"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
Hooks = OrderedDict[int, Any]
# Hooks of these packages compute weights (weight norm, spectral norm, pruning): always kept.
_WEIGHT_HOOKS = ("torch.nn.utils",)


def unwrap(model: Any) -> nn.Module:
    """The network inside torch.compile, DataParallel or DistributedDataParallel.

    Example:
        >>> import torch
        >>> unwrap(torch.nn.DataParallel(torch.nn.Linear(2, 2)))
        Linear(in_features=2, out_features=2, bias=True)
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {_instead(model)}")
    _refuse_scripts(model)
    while True:
        inner = _wrapped(model)
        if inner is None:
            network: nn.Module = model
            return network
        model = inner


def _instead(given: Any) -> str:
    """What came instead of a network, and what to do with it."""
    if isinstance(given, type) and issubclass(given, nn.Module):
        return f"the class {given.__name__}: pass a network of that class, with trained weights"
    if isinstance(given, Mapping):
        kind = type(given).__name__
        return f"{kind}: if these are weights, pass the network after model.load_state_dict(…)"
    if isinstance(given, str | PathLike):
        return f"{type(given).__name__}: load the network first"
    return type(given).__name__


def _refuse_scripts(model: nn.Module) -> None:
    """Before anything is read of them: their attributes are not those of a Python object."""
    for name, part in model.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            which = f"the network's part {name}" if name else "the network"
            raise ModelError(
                f"{which} is a TorchScript module, which cannot be run with other parameters: pass "
                f"the eager torch.nn.Module that it was made from (or a torch.export program's "
                f".module())"
            )


def _wrapped(module: nn.Module) -> nn.Module | None:
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner: nn.Module = module.module
        return inner
    compiled = module.__dict__.get("_modules", {}).get("_orig_mod")
    return compiled if isinstance(compiled, nn.Module) else None


class Skeleton:
    """What `make_skeleton` returns.

    Attributes:
        module: The copy, in evaluation mode.
        parameters: The user's own parameter objects by canonical name, tied ones once, as they
            were when `follow` was called last.
        buffers: The user's own buffers by name; the copy holds clones of them.
        hooks_are_called: Whether passes call the user's hooks.
        noise_names: The name by which each parameter's noise is drawn: its own, or of tied ones
            the first in the alphabet, so that the order of definition does not matter.

    Example:
        >>> import torch
        >>> skeleton = make_skeleton(torch.nn.Linear(2, 3))
        >>> skeleton.module.weight.device.type, list(skeleton.parameters)
        ('meta', ['weight', 'bias'])
    """

    def __init__(self, module: nn.Module, followed: Followed) -> None:
        self.module = module
        self._followed = followed
        self.follow()
        self.noise_names = _noise_names(module)
        # The user's hooks, as (part, attribute, all of them, those that compute weights).
        self._hooks: list[tuple[nn.Module, str, Hooks, Hooks]] = []
        self.hooks_are_called = False
        for part in module.modules():
            for name in _BACKWARD_HOOKS:
                setattr(part, name, OrderedDict())
            for name in _HOOKS:
                every: Hooks = getattr(part, name)
                needed = OrderedDict((k, h) for k, h in every.items() if _computes_weights(h))
                if len(needed) < len(every):
                    self._hooks.append((part, name, every, needed))
        self.call_user_hooks(False)

    def follow(self) -> list[Tensor]:
        """Take up the tensors that are in the user's network now; refuse if its layers changed."""
        self.parameters, self.buffers = self._followed.now()
        return [*self.parameters.values(), *self.buffers.values()]

    @property
    def has_user_hooks(self) -> bool:
        """Whether the user's module has hooks of its own. They are not called unless asked for."""
        return bool(self._hooks)

    def call_user_hooks(self, on: bool) -> None:
        """Whether passes call the user's hooks: only right for hooks that change the output."""
        for part, name, every, needed in self._hooks:
            setattr(part, name, every if on else needed)
        self.hooks_are_called = on and self.has_user_hooks

    def refresh_buffers(self, device: torch.device, dtype: torch.dtype) -> None:
        """Clone the user's buffers again, on `device`, floating ones in `dtype`."""
        for name, buffer in self.buffers.items():
            owner_name, _, leaf = name.rpartition(".")
            owner = self.module.get_submodule(owner_name)
            target = dtype if buffer.is_floating_point() else buffer.dtype
            owner._buffers[leaf] = buffer.detach().to(device=device, dtype=target, copy=True)
        for part in self.module.modules():
            for key, value in vars(part).items():
                if isinstance(value, Tensor):
                    setattr(part, key, value.detach().to(device))

    def own_buffers(self) -> dict[str, Tensor]:
        """Clones of the copy's own buffers as they are now."""
        return {name: b.detach().clone() for name, b in self.module.named_buffers()}

    def changed_buffer(self, before: dict[str, Tensor]) -> str | None:
        """The name of a buffer of the copy that is not what `own_buffers` gave, if there is one."""
        now = dict(self.module.named_buffers())
        changed = (n for n, b in before.items() if n in now and not same_bits(now[n], b))
        return next(changed, None)


def _noise_names(module: nn.Module) -> dict[str, str]:
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name: min(names[id(p)]) for name, p in module.named_parameters()}


def _computes_weights(hook: Any) -> bool:
    origin = getattr(hook, "__module__", None) or type(hook).__module__
    return str(origin).startswith(_WEIGHT_HOOKS) or type(hook).__module__.startswith(_WEIGHT_HOOKS)


def make_skeleton(model: Any) -> Skeleton:
    """Copy the structure of `model`; refuse, with the reason, what cannot be handled.

    Example:
        >>> import torch
        >>> make_skeleton(torch.nn.LazyLinear(3))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.ModelError: the network has lazy parameters that are not initialised \
(weight): run one batch through it first
    """
    model = unwrap(model)
    _refuse(model)
    memo: dict[int, Any] = {}
    originals: dict[int, nn.Parameter] = {}
    for parameter in model.parameters():
        placeholder = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
        memo[id(parameter)] = placeholder
        originals[id(placeholder)] = parameter
    for part in model.modules():
        for name in (*_HOOKS, *_BACKWARD_HOOKS):
            # A shallow copy: a hook may be a method of something large that is not ours to copy.
            memo[id(getattr(part, name))] = OrderedDict(getattr(part, name))
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        with warnings.catch_warnings():
            # PyTorch warns of its own internals whenever an exported program is copied.
            warnings.simplefilter("ignore", FutureWarning)
            for part in reversed(list(model.modules())):  # the innermost wrapper first
                inner = _wrapped(part)
                if inner is not None:
                    memo[id(part)] = copy.deepcopy(inner, memo)
            module = copy.deepcopy(model, memo)
    except Exception as error:
        raise ModelError(
            f"the network {type(model).__name__} cannot be copied ({error}). Passes run on a copy "
            f"of its structure so that your own object is never touched: take out what cannot be "
            f"copied (locks, open files, handles), or give that part a __deepcopy__"
        ) from error
    module.eval()
    parameters = {name: originals[id(p)] for name, p in module.named_parameters()}
    return Skeleton(module, Followed(model, parameters, _buffers(model, module)))


def _buffers(model: nn.Module, copied: nn.Module) -> dict[str, Tensor]:
    """The user's buffers by the names they have in the copy (wrappers inside are gone there)."""
    names = [name for name, _ in copied.named_buffers(remove_duplicate=False)]
    theirs = [buffer for _, buffer in model.named_buffers(remove_duplicate=False)]
    return dict(zip(names, theirs, strict=True))


def _refuse(model: nn.Module) -> None:
    lazy = [n for n, p in model.named_parameters() if nn.parameter.is_lazy(p)]
    if lazy:
        raise ModelError(
            f"the network has lazy parameters that are not initialised ({lazy[0]}): run one "
            f"batch through it first"
        )
    empty = [n for n, p in model.named_parameters() if p.device.type == "meta"]
    if empty:
        raise ModelError(
            f"the network's parameters have no data ({empty[0]} is on the meta device): load its "
            f"weights first"
        )
    if not any(p.is_floating_point() for p in model.parameters()):
        raise ModelError(
            f"the network {type(model).__name__} has no floating-point parameters to perturb"
        )
    devices = sorted({str(p.device) for p in model.parameters()})
    if len(devices) > 1:
        raise ModelError(
            f"the network's parameters lie on several devices ({', '.join(devices)}): move it to "
            f"one with model.to(…)"
        )
    for name, part in model.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is None:
            raise ModelError(
                f"{name or 'the network'} is a {type(part).__name__} without running statistics: "
                f"its outputs depend on the rest of the batch, so no input has a score of its "
                f"own. Train with track_running_stats=True, or replace it by GroupNorm"
            )
        if ".quantized.dynamic" in type(part).__module__:
            raise ModelError(
                f"{name or 'the network'} is a dynamically quantised {type(part).__name__}: it "
                f"rounds by the largest value in the batch, so no input has a score of its own. "
                f"Use the network that it was made from, or one that is quantised statically"
            )
