"""The network as the passes see it: private, in evaluation mode, outputs in one layout.

This is the only place that calls the user's code. A `Network` belongs to one detector and has one
lock: two threads may use the detector, and the user's own module is free all the while.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tulip_ood.errors import ModelError, NotFittedError
from tulip_ood.network import inputs as structures
from tulip_ood.network.features import FeatureTap, Head
from tulip_ood.network.fingerprint import fingerprint, floating_kinds, perturbable_share
from tulip_ood.network.forking import fork_safe_lock, hook_of_this_process
from tulip_ood.network.full_precision import full_precision
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.logits import check_function, find_logits
from tulip_ood.network.marks import Marks, same_bits
from tulip_ood.network.precision import pass_dtype
from tulip_ood.network.probing import FirstLook, Probe
from tulip_ood.network.refusing import on_device
from tulip_ood.network.skeleton import make_skeleton
from tulip_ood.numerics.default_device import where_the_user_is
from tulip_ood.numerics.tasks import Task
from tulip_ood.wording import counted

__all__ = ["Network", "Output"]

Edit = Callable[[Any], Any]


@dataclass(frozen=True)
class Output:
    """What one pass gives, in the dtype of the pass.

    Attributes:
        logits: [N, …, o], outputs last.
        features: What the last linear layer was fed, [N, d], or None where there is none.
        head: That layer's weights in this pass, or None.

    Example:
        >>> import torch
        >>> Output(torch.zeros(1, 2), None, None).logits.shape
        torch.Size([1, 2])
    """

    logits: Tensor
    features: Tensor | None
    head: Head | None


class Network:
    """A user's module behind glass.

    Args:
        model: Any `nn.Module`; torch.compile and DataParallel wrappers are looked through.
        task: What its outputs mean.
        output: Picks the logits out of what the module returns, where that is not a tensor.
        device: Where passes run; by default where the parameters are.
        precision: "float32" (float64 networks stay float64), "half" on an accelerator, or "auto":
            float32 until `settle` says otherwise.
        head: The name of the last linear layer, where it cannot be found by itself.

    Example:
        >>> import torch
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> network.run(torch.zeros(2, 4)).logits.shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        *,
        output: Callable[[Any], Tensor] | None = None,
        device: torch.device | str | None = None,
        precision: str = "float32",
        head: str | None = None,
    ) -> None:
        self.task = task
        self.head_name = None if head is None else str(head)  # in nn.Sequential names are numbers
        self.output_function = check_function(output)
        self._skeleton = make_skeleton(model)
        self.lock = fork_safe_lock()  # a pass holds it: the copy has that pass's parameters
        self._tap: FeatureTap | None = None
        self._look = FirstLook(self._skeleton)
        self.precision = precision
        self._may_widen = True
        self._parameters: dict[str, Tensor] = {}
        self.refreshed = 0  # how often: what was made of weights and buffers is good until the next
        with on_device(device):
            theirs = next(iter(self._skeleton.parameters.values())).device
            self.device = torch.device(device) if device is not None else theirs
            self.dtype = self._pass_dtype()
            self.refresh()

    def _pass_dtype(self) -> torch.dtype:
        parameters = self._skeleton.parameters.values()
        return pass_dtype(self.precision, self.device, parameters, may_widen=self._may_widen)

    # ----------------------------------------------------------------- weights

    def refresh(self) -> None:
        """Copy the user's parameters and buffers as they are now.

        Copies: were they references, what is done to the user's model would reach some passes (the
        base pass) and not others (perturbed weights that are held). Where no parameter has changed,
        `parameters` stays the same object.
        """
        with self.lock, torch.inference_mode(False):  # else no gradient could pass through them
            self._marks = Marks(self._watched())
            taken = {
                name: p.detach().to(
                    self.device, self.dtype if p.is_floating_point() else p.dtype, copy=True
                )
                for name, p in self._skeleton.parameters.items()
            }
            held = self._parameters
            if not (held and all(same_bits(held[name], p) for name, p in taken.items())):
                self._parameters = taken
            self._skeleton.refresh_buffers(self.device, self.dtype)
            self.refreshed += 1

    def move(self, device: torch.device) -> None:
        """Run passes on another device from now on; the user's module stays where it is."""
        before, self.device = self.device, device
        try:
            self.dtype = self._pass_dtype()
            with on_device(device):
                self.refresh()
        except BaseException:
            self.device = before
            self.dtype = self._pass_dtype()
            self.refresh()
            raise

    def settle(self, precision: str) -> None:
        """Make passes in another precision from now on."""
        before, self.precision = self.precision, precision
        try:
            self.dtype = self._pass_dtype()
        except BaseException:
            self.precision = before
            raise
        self.refresh()

    def stay_narrow(self) -> None:
        """Make passes in float32 from now on, also where float64 ones would cost nothing."""
        self._may_widen = False
        self.dtype = self._pass_dtype()
        self.refresh()

    def _watched(self) -> list[Tensor]:
        return self._skeleton.follow()

    @property
    def stale(self) -> bool:
        """Whether the user has moved or changed the parameters or buffers since `refresh`.

        Writes through `.data` are seen by a sample of each tensor's values: whatever changes a
        whole tensor is noticed, a single value may not be.
        """
        return self._marks.changed(self._watched())

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """θ_T by canonical name, detached, on the device and in the dtype of the passes."""
        return self._parameters

    @property
    def has_output_function(self) -> bool:
        """Whether the user has said where the logits are."""
        return self.output_function is not None

    @property
    def noise_names(self) -> Mapping[str, str]:
        """The name by which each parameter's noise is drawn."""
        return self._skeleton.noise_names

    @property
    def module(self) -> nn.Module:
        """The copy (for looking at its structure, not for calling)."""
        return self._skeleton.module

    def fingerprint(self) -> dict[str, str]:
        """SHA-256 of the architecture (names, shapes, classes) and of the weights and buffers."""
        return fingerprint(self.module, {**self._skeleton.parameters, **self._skeleton.buffers})

    @property
    def kinds(self) -> list[str]:
        """Which floating-point numbers the user's weights and buffers are."""
        return floating_kinds({**self._skeleton.parameters, **self._skeleton.buffers})

    @property
    def perturbable_share(self) -> float:
        """The share of the weights that noise can be added to: below 1 for quantised networks."""
        return perturbable_share(self.module)

    @property
    def calls_user_hooks(self) -> bool:
        """Whether hooks of the user's are part of the passes because they change the output."""
        return self._skeleton.hooks_are_called

    # ------------------------------------------------------------------ passes

    def to_device(self, inputs: Inputs) -> Inputs:
        """Inputs on the device, floating ones in the dtype of the passes."""
        return structures.map_tensors(
            lambda t: t.to(self.device, self.dtype if t.is_floating_point() else t.dtype), inputs
        )

    def run(
        self,
        inputs: Inputs,
        parameters: Mapping[str, Tensor] | None = None,
        *,
        edits: Mapping[str, Edit] | None = None,
    ) -> Output:
        """One forward pass with the given parameters (default: the network's own).

        Thread-safe; no gradients, no autocast, no trace left in the user's module.

        Args:
            inputs: As the model takes them.
            parameters: θ of this pass.
            edits: Part of the network → what becomes of its output on the way (None: look only).
        """
        with torch.no_grad():
            return self.run_as_is(self.to_device(inputs), parameters, edits)

    def input_gradient(
        self, inputs: Inputs, objective: Callable[[Tensor], Tensor]
    ) -> tuple[Output, Tensor]:
        """A pass, and the gradient of Σ objective(logits) with respect to the main input.

        Args:
            inputs: As the model takes them; the first floating tensor in them is the main one.
            objective: From logits [N, …, o] to one number an input, [N].
        """
        with torch.inference_mode(False):
            normal = structures.map_tensors(lambda t: t.clone() if t.is_inference() else t, inputs)
            return self._input_gradient(self.to_device(normal), objective)

    def _input_gradient(
        self, moved: Inputs, objective: Callable[[Tensor], Tensor]
    ) -> tuple[Output, Tensor]:
        place, main = next(
            ((p, t) for p, t in structures.tensors(moved) if t.is_floating_point()), ("", None)
        )
        if main is None:
            raise ModelError("this method changes its inputs along a gradient: they must be real")
        leaf = main.detach().clone().requires_grad_(True)
        # The way back, too, is without autocast: it would multiply gradients in half precision.
        with torch.enable_grad(), torch.autocast(self.device.type, enabled=False):
            out = self.run_as_is(structures.replace(moved, place, leaf))
            (gradient,) = torch.autograd.grad(objective(out.logits).sum(), leaf)
        features = None if out.features is None else out.features.detach()
        return Output(out.logits.detach(), features, out.head), gradient

    def run_as_is(
        self,
        inputs: Inputs,
        parameters: Mapping[str, Tensor] | None = None,
        edits: Mapping[str, Edit] | None = None,
    ) -> Output:
        """`run` for inputs that are on the device, with gradients where the caller has them on."""
        chosen = dict(self._parameters if parameters is None else parameters)
        args, kwargs = structures.arguments(inputs)
        with self.lock, torch.autocast(self.device.type, enabled=False), full_precision():
            handles = [
                self.module.get_submodule(name).register_forward_hook(hook_of_this_process(edit))
                for name, edit in (edits or {}).items()
            ]
            try:
                with where_the_user_is():
                    returned = functional_call(self.module, chosen, args, kwargs)
            finally:
                for handle in handles:
                    handle.remove()
            logits = self.task.outputs(find_logits(returned, self.output_function))
            tapped = self._tap.pop(logits) if self._tap is not None else None
        rows = structures.count_rows(inputs)
        if logits.shape[0] != rows:
            raise ModelError(
                f"the network returned {counted(logits.shape[0], 'output')} for "
                f"{counted(rows, 'input')}: every input needs an output of its own"
            )
        if tapped is None or tapped[0].shape[0] != rows:
            return Output(logits, None, None)
        return Output(logits, *tapped)

    # ------------------------------------------------------------------- probe

    def probe(self, inputs: Inputs) -> Probe:
        """Look at the network once, with a few inputs; later calls return what was found.

        Refuses a network whose outputs are random, depend on the rest of the batch or do not
        depend on its parameters, and one that changes its buffers. Where the outputs are not
        finite, that is found out with the inputs of a later call.
        """
        with self.lock:
            seen = self._look.found is not None
            found = self._look.at(self, inputs)
            if not seen and found.head is not None:
                self._tap = FeatureTap(self.module.get_submodule(found.head))
            return found

    @property
    def probed(self) -> bool:
        """Whether the network has been looked at."""
        return self._look.found is not None

    @property
    def known_probe(self) -> Probe:
        """What `probe` has found."""
        if self._look.found is None:
            raise NotFittedError("the network has not been looked at yet: call fit first")
        return self._look.found
