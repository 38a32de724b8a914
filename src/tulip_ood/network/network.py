"""The network as the passes see it: private, in evaluation mode, outputs in one layout.

This is the only place that calls the user's code. A `Network` belongs to one detector and has one
lock: two threads may use the detector, and the user's own module is free all the while.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tulip_ood.errors import InputError, ModelError, NotFittedError
from tulip_ood.network import inputs as structures
from tulip_ood.network.features import Calls, FeatureTap, Head, find_head, record_calls
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.skeleton import make_skeleton
from tulip_ood.numerics.tasks import Task

__all__ = ["Network", "Output", "Probe"]

PRECISIONS = ("float32", "half")
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


@dataclass(frozen=True)
class Probe:
    """What a first look at the network with a few inputs has found.

    Attributes:
        n_outputs: o.
        outputs_per_input: o times the number of positions.
        calls: Which part ran when.
        head: The name of the last linear layer, or None.
        head_is_logits: Whether that layer's output are the logits, with nothing done to them.

    Example:
        >>> Probe(10, 10, Calls({}), "fc", True).n_outputs
        10
    """

    n_outputs: int
    outputs_per_input: int
    calls: Calls
    head: str | None
    head_is_logits: bool


class Network:
    """A user's module behind glass.

    Args:
        model: Any `nn.Module`; torch.compile and DataParallel wrappers are looked through.
        task: What its outputs mean.
        output: Picks the logits out of what the module returns, where that is not a tensor.
        device: Where passes run; by default where the parameters are.
        precision: "float32" (float64 networks stay float64), or "half" on an accelerator.
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
        self.head_name = head
        self._output = output
        self._skeleton = make_skeleton(model)
        self._lock = threading.RLock()
        self._tap: FeatureTap | None = None
        self._probe: Probe | None = None
        theirs = next(iter(self._skeleton.parameters.values())).device
        self.device = torch.device(device) if device is not None else theirs
        self.precision = precision
        self.dtype = self._pass_dtype()
        self._marks: tuple[Any, ...] = ()
        self._parameters: dict[str, Tensor] = {}
        self.refresh()

    def _pass_dtype(self) -> torch.dtype:
        if self.precision not in PRECISIONS:
            raise InputError(
                f"precision must be one of {', '.join(PRECISIONS)}; got {self.precision!r}"
            )
        if self.precision == "half":
            if self.device.type == "cpu":
                raise InputError(
                    "precision='half' is for accelerators: on a CPU it is slower, and on some "
                    "machines it kills the process. Use precision='float32'"
                )
            return torch.float16
        wide = any(p.dtype == torch.float64 for p in self._skeleton.parameters.values())
        return torch.float64 if wide else torch.float32

    # ----------------------------------------------------------------- weights

    def refresh(self) -> None:
        """Take the user's parameters and buffers as they are now."""
        self._marks = self._current_marks()
        self._parameters = {
            name: p.detach().to(self.device, self.dtype if p.is_floating_point() else p.dtype)
            for name, p in self._skeleton.parameters.items()
        }
        self._skeleton.refresh_buffers(self.device, self.dtype)

    def move(self, device: torch.device) -> None:
        """Run passes on another device from now on; the user's module stays where it is."""
        before, self.device = self.device, device
        try:
            self.dtype = self._pass_dtype()
            self.refresh()
        except BaseException:
            self.device = before
            self.dtype = self._pass_dtype()
            self.refresh()
            raise

    def _current_marks(self) -> tuple[Any, ...]:
        # A tensor made in inference mode has no version; its address must do.
        held = (*self._skeleton.parameters.values(), *self._skeleton.buffers.values())
        return tuple(
            (t.data_ptr(), 0 if t.is_inference() else t._version, t.device, t.dtype) for t in held
        )

    @property
    def stale(self) -> bool:
        """Whether the user has moved or changed the parameters or buffers since `refresh`."""
        return self._current_marks() != self._marks

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """θ_T by canonical name, detached, on the device and in the dtype of the passes."""
        return self._parameters

    @property
    def has_output_function(self) -> bool:
        """Whether the user has said where the logits are."""
        return self._output is not None

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
        shape, content = hashlib.sha256(), hashlib.sha256()
        for name, part in self.module.named_modules():
            shape.update(f"{name}:{type(part).__qualname__};".encode())
        state = {**self._skeleton.parameters, **self._skeleton.buffers}
        for name in sorted(state):
            tensor = state[name].detach()
            kind = f"{name}:{tuple(tensor.shape)}"
            shape.update(kind.encode())
            content.update(f"{kind}:{tensor.dtype};".encode())
            flat = tensor.cpu().contiguous().reshape(-1)
            content.update(flat.view(torch.uint8).numpy().data)
        return {"architecture_sha256": shape.hexdigest(), "weights_sha256": content.hexdigest()}

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
            return self._run(self.to_device(inputs), parameters, edits)

    def input_gradient(
        self, inputs: Inputs, objective: Callable[[Tensor], Tensor]
    ) -> tuple[Output, Tensor]:
        """A pass, and the gradient of Σ objective(logits) with respect to the main input.

        Args:
            inputs: As the model takes them; the first floating tensor in them is the main one.
            objective: From logits [N, …, o] to one number an input, [N].
        """
        moved = self.to_device(inputs)
        place, main = next(
            ((p, t) for p, t in structures.tensors(moved) if t.is_floating_point()), ("", None)
        )
        if main is None:
            raise ModelError("this method changes its inputs along a gradient: they must be real")
        leaf = main.detach().clone().requires_grad_(True)
        with torch.enable_grad():
            out = self._run(structures.replace(moved, place, leaf), None, None)
            (gradient,) = torch.autograd.grad(objective(out.logits).sum(), leaf)
        features = None if out.features is None else out.features.detach()
        return Output(out.logits.detach(), features, out.head), gradient

    def _run(
        self,
        inputs: Inputs,
        parameters: Mapping[str, Tensor] | None,
        edits: Mapping[str, Edit] | None,
    ) -> Output:
        chosen = dict(self._parameters if parameters is None else parameters)
        args, kwargs = _arguments(inputs)
        with self._lock, torch.autocast(self.device.type, enabled=False):
            handles = [
                self.module.get_submodule(name).register_forward_hook(_editing(edit))
                for name, edit in (edits or {}).items()
            ]
            try:
                returned = functional_call(self.module, chosen, args, kwargs)
            finally:
                for handle in handles:
                    handle.remove()
            tapped = self._tap.pop() if self._tap is not None else None
            logits = self.task.outputs(self._logits(returned))
        rows = structures.count_rows(inputs)
        if logits.shape[0] != rows:
            raise ModelError(
                f"the network returned {logits.shape[0]} outputs for {rows} inputs: every input "
                f"needs an output of its own"
            )
        if tapped is None or tapped[0].shape[0] != rows:
            return Output(logits, None, None)
        return Output(logits, *tapped)

    def _logits(self, returned: Any) -> Tensor:
        if self._output is not None:
            picked = self._output(returned)
            if not isinstance(picked, Tensor):
                raise ModelError(f"output=… must return a tensor, it gave {type(picked).__name__}")
            return picked
        if isinstance(returned, Tensor):
            return returned
        if isinstance(returned, Mapping) and isinstance(returned.get("logits"), Tensor):
            found: Tensor = returned["logits"]
            return found
        if isinstance(getattr(returned, "logits", None), Tensor):
            attribute: Tensor = returned.logits
            return attribute
        keys = (
            f" with keys {', '.join(map(str, returned))}" if isinstance(returned, Mapping) else ""
        )
        raise ModelError(
            f"the network returns a {type(returned).__name__}{keys}, not logits: say where they "
            f"are, for instance output=lambda out: out[0]"
        )

    # ------------------------------------------------------------------- probe

    def probe(self, inputs: Inputs) -> Probe:
        """Look at the network once, with a few inputs; later calls return what was found.

        Refuses a network whose outputs are random or depend on the rest of the batch.
        """
        with self._lock:
            if self._probe is None:
                self._probe = self._look(structures.take(inputs, slice(0, 4)))
            return self._probe

    @property
    def probed(self) -> bool:
        """Whether the network has been looked at."""
        return self._probe is not None

    @property
    def known_probe(self) -> Probe:
        """What `probe` has found."""
        if self._probe is None:
            raise NotFittedError("the network has not been looked at yet: call fit first")
        return self._probe

    def _look(self, inputs: Inputs) -> Probe:
        calls, first = record_calls(self.module, lambda: self.run(inputs).logits)
        if self._skeleton.has_user_hooks:
            # Hooks that only watch must not hear of passes that the user never made.
            self._skeleton.call_user_hooks(True)
            if torch.equal(self.run(inputs).logits, first):
                self._skeleton.call_user_hooks(False)
            else:
                calls, first = record_calls(self.module, lambda: self.run(inputs).logits)
        self._check_repeatable(inputs, first)
        head, is_logits = find_head(self.module, calls, first, self.head_name)
        if head is not None:
            self._tap = FeatureTap(self.module.get_submodule(head))
        return Probe(first.shape[-1], first[0].numel(), Calls(calls.spans), head, is_logits)

    def _check_repeatable(self, inputs: Inputs, first: Tensor) -> None:
        if not bool(first.isfinite().all()):
            return  # bad inputs are told apart later, row by row
        scale = float(first.abs().max()) + 1e-12
        again = self.run(inputs).logits
        if float((again - first).abs().max()) > 1e-3 * scale:
            raise ModelError(
                "the network gives different outputs for the same inputs although it is in "
                "evaluation mode: something random is always on (F.dropout without "
                "training=self.training?). Make it deterministic in eval()"
            )
        if first.shape[0] < 2:
            return
        alone = self.run(structures.take(inputs, slice(0, 1))).logits
        if alone.shape[1:] == first.shape[1:] and (
            float((alone[0] - first[0]).abs().max()) > 1e-2 * scale
        ):
            raise ModelError(
                "the network's output for an input changes with the rest of its batch, so no "
                "input has a score of its own: replace what computes statistics over the batch"
            )


def _editing(edit: Edit) -> Callable[..., Any]:
    def hook(part: nn.Module, args: Any, out: Any) -> Any:
        return edit(out)

    return hook


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}
