"""From inputs to passes: the machinery between a detector and its network.

Holds the private network and its perturbed weights, notices when the user's model has changed,
collects validation data, and runs passes over any number of inputs in bounded memory.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tulip_ood.detectors.findings import check_validation
from tulip_ood.errors import InputError, ModelError, TulipError, in_one_line, warn
from tulip_ood.network import inputs as structures
from tulip_ood.network import loaders
from tulip_ood.network.fast import FastPasses
from tulip_ood.network.forking import fork_safe_lock
from tulip_ood.network.golden import check_alike, describe_inputs, synthetic_inputs, unlike
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.readable import readable
from tulip_ood.network.rows import Rows, collect_rows
from tulip_ood.network.running import Needs, dense_labels, dense_positions
from tulip_ood.network.trying import in_our_words
from tulip_ood.numerics.given import whole

__all__ = ["Engine", "Held", "PassCount", "mark_invalid"]

_CHUNK_BYTES = 128 << 20  # logits and features of all passes, in memory at once while scoring


@dataclasses.dataclass(frozen=True)
class Held:
    """Validation inputs that are in memory already, so that several detectors share them.

    Attributes:
        rows: The inputs, with their labels.
        passes: Their base pass, or None.

    Example:
        >>> from tulip_ood.network.rows import collect_rows
        >>> held = Held(collect_rows([(torch.zeros(3, 2), torch.zeros(3))]))
        >>> len(held.rows)
        3
    """

    rows: Rows
    passes: Passes | None = None

    def serving(self, needs: Needs) -> Passes | None:
        """The passes, if they are all that is needed."""
        if self.passes is None or needs.settings.n_samples:
            return None
        lacking = any(measure.key not in self.passes.extras for measure in needs.measures)
        return None if lacking else self.passes


class Engine:
    """Runs the passes of one detector.

    Args:
        network: The user's network behind glass.
        make_perturbation: What is done to it, for given settings; called after the first look.
        batch_size: Inputs in one forward pass; by default 64 on a CPU, 256 elsewhere.

    Attributes:
        inputs: The structure and ranges of the inputs that were fitted on, or None.
        fingerprint: The network's, when it was fitted.
        fast: What decides between plain passes and fast ones.

    Example:
        >>> import torch, tulip_ood
        >>> tulip_ood.detectors.MSP(torch.nn.Linear(2, 2)).engine.batch_size
        64
    """

    def __init__(
        self,
        network: Network,
        make_perturbation: Callable[[PassSettings], Perturbation],
        batch_size: int | None,
    ) -> None:
        self.network = network
        self.inputs: dict[str, Any] | None = None
        self.fingerprint: dict[str, str] = {}
        self.fast = FastPasses(network)
        self._told = False  # why passes are plain
        self._make_perturbation = make_perturbation
        self._batch_size = None if batch_size is None else whole("batch_size", batch_size)
        self._perturbation: Perturbation | None = None
        self._taken: Mapping[str, Tensor] | None = None  # the weights that were fitted on
        self._lock = fork_safe_lock()

    @property
    def batch_size(self) -> int:
        """Inputs in one forward pass."""
        if self._batch_size is not None:
            return self._batch_size
        return 64 if self.network.device.type == "cpu" else 256

    def renewed(self, make_perturbation: Callable[[PassSettings], Perturbation]) -> "Engine":
        """Another engine for the same network, with nothing held yet."""
        other = Engine(self.network, make_perturbation, self._batch_size)
        other._told = self._told
        return other

    def serve(self, make_perturbation: Callable[[PassSettings], Perturbation]) -> None:
        """Ask another detector for perturbations from now on."""
        self._make_perturbation = make_perturbation

    # -------------------------------------------------------------------- model

    def take_model(self) -> None:
        """Take the user's weights as they are now: the beginning of a fit."""
        with self._lock:
            self.network.refresh()
            self._taken = self.network.parameters
            self.fingerprint = self.network.fingerprint()
            self._forget()

    def check_model(self) -> None:
        """Refuse if the weights have changed since; a model that only moved is taken up again."""
        with self._lock:
            # Another detector of this network may have taken up changed weights.
            if not self.network.stale and self.network.parameters is self._taken:
                return
            now = self.network.fingerprint()
            if now["weights_sha256"] != self.fingerprint["weights_sha256"]:
                raise ModelError(
                    "the model's weights have changed since this detector was fitted: fit it "
                    "again, or put the old weights back"
                )
            if self.network.stale:
                self.network.refresh()
            self._taken = self.network.parameters
            self._forget()

    def move(self, device: torch.device) -> None:
        """Run passes on another device from now on."""
        with self._lock:
            if device != self.network.device:
                self.network.move(device)
                self._taken = self.network.parameters
                self._forget()

    def settle(self, precision: str) -> None:
        """Make passes in another precision from now on."""
        with self._lock:
            self.network.settle(precision)
            self._taken = self.network.parameters
            self._forget()

    def _forget(self) -> None:
        """All that was made of weights that are no more."""
        self._perturbation = None
        self.fast.clear()

    def perturbation(self, settings: PassSettings) -> Perturbation:
        """The perturbed weights for some settings; the last ones are kept."""
        with self._lock:
            if self._perturbation is not None and self._perturbation.settings == settings:
                return self._perturbation
            made = self._make_perturbation(settings)
            if settings.n_samples:  # a base pass alone must not push out what is held
                self._perturbation = made
            return made

    def memory(self, settings: PassSettings, inputs: Inputs | None = None) -> int:
        """Bytes that holding the perturbed weights takes; 0 if there are none, or not held."""
        if inputs is not None:
            self.network.probe(inputs)
        if not settings.n_samples:
            return 0
        perturbation = self.perturbation(settings)
        return perturbation.held_bytes if perturbation.hold else 0

    def check_origin(self, passes: Passes) -> None:
        """Refuse passes whose last layer is not one of this network's."""
        if not passes.heads:
            return
        theirs = passes.heads[0].weight
        for mine in self.network.parameters.values():
            if mine.numel() == theirs.numel() and mine.shape[0] == theirs.shape[0]:
                flat = mine.reshape(theirs.shape).cpu().to(theirs.dtype)
                if torch.allclose(flat, theirs, rtol=1e-3, atol=1e-6):
                    return
        raise InputError("these passes were made with another network, or with other weights")

    # ----------------------------------------------------------------- fit data

    def collect(self, data: Iterable[Any], needs: Needs, *, seed: int, memory: int) -> Rows:
        """Hold labelled validation inputs, and look at the network with the first of them."""

        def bytes_of_logits(inputs: Inputs) -> int:
            with in_our_words(self.network, structures.take(inputs, slice(0, 1))):
                outputs = self.network.probe(inputs).outputs_per_input
            return 4 * outputs * needs.settings.n_passes

        rows = collect_rows(data, seed=seed, memory=memory, row_cost=bytes_of_logits)
        self.look_at(rows)
        return rows

    def look_at(self, rows: Rows) -> None:
        """See what inputs look like, and what the network makes of the first of them."""
        with in_our_words(self.network, rows.inputs[0]):
            self.network.probe(rows.first(4))
            outputs = self.network.run(rows.first(1)).logits.shape[1:]
        self.inputs = describe_inputs(rows.first(16))
        if self.network.task.name == "dense" and rows.labels is not None:
            self._check_positions(outputs[:-1], rows.labels.shape[1:])
        check_validation(self.network.task, rows, outputs)

    def _check_positions(self, answered: torch.Size, labelled: torch.Size) -> None:
        """Labels of another size would be read at other places than the answers."""
        if answered != labelled:
            raise InputError(
                f"labels have the positions {list(labelled)}, but the network answers at "
                f"{list(answered)}: give labels of that size, or output=… that resizes the logits"
            )

    def passes_of(
        self,
        rows: Rows,
        needs: Needs,
        *,
        seed: int,
        batch_size: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Passes:
        """All passes over held rows, with their labels (at some positions, for dense outputs)."""
        positions = dense_positions(self.network.task, len(rows), seed)
        return self._run(
            rows,
            needs,
            batch_size=batch_size,
            positions=positions,
            labels=None if rows.labels is None else dense_labels(rows.labels, positions),
            progress=progress,
        )

    def hold(self, rows: Rows, *, seed: int) -> Held:
        """Rows with their base pass, which most methods need and nothing else."""
        return Held(rows, self.passes_of(rows, Needs.base_pass(seed=seed), seed=seed))

    def _run(
        self, source: Rows | Inputs, needs: Needs, *, batch_size: int | None = None, **more: Any
    ) -> Passes:
        """All passes over some inputs, plain or fast; says once why they cannot be fast."""
        perturbation = self.perturbation(needs.settings)
        size = batch_size or self.batch_size
        made = self.fast.run(perturbation, source, batch_size=size, needs=needs, **more)
        if self.fast.refused is not None and not self._told:
            self._told = True
            warn(f"{self.plain_because} [plain-passes]")
        return made

    @property
    def plain_because(self) -> str | None:
        """Why passes are plain although the network is large enough for fast ones, or None."""
        if self.fast.refused is None:
            return None
        return f"passes run plainly, each through the whole network: {self.fast.refused}"

    def stream(self, loader: Iterable[Any], needs: Needs) -> Iterator[Passes]:
        """Passes over a loader of labelled batches, a batch at a time: nothing is held."""
        for batch in loaders.batches(loader):
            inputs, labels = structures.split_batch(batch)
            inputs = readable(inputs)
            if structures.count_rows(inputs) == 0:
                continue
            with in_our_words(self.network, structures.take(inputs, slice(0, 1))):
                self.network.probe(inputs)
                if self.inputs is None:
                    self.inputs = describe_inputs(structures.take(inputs, slice(0, 16)))
                made = self._run(inputs, needs)
            checked = self.network.task.check_labels(labels.detach().cpu(), made.base)
            good = made.finite & structures.finite_rows(inputs)
            yield dataclasses.replace(made, labels=checked).take(good)

    # ------------------------------------------------------------------- scoring

    def over(
        self,
        x: Inputs | Passes,
        needs: Needs,
        function: Callable[[Passes], tuple[Tensor, ...]],
        *,
        on_device: bool = False,
    ) -> tuple[Tensor, ...]:
        """Apply a function of passes to any number of inputs, a bounded number at a time.

        The first tensor of its result is the score: it becomes +inf for inputs that are not
        finite themselves, or whose logits are not. With `on_device` it may be given passes that
        are where they were made.
        """
        if isinstance(x, Passes):
            needs.check(x)
            self.check_origin(x)
            return _mark_first(function(x.serving(needs.settings)), x.finite)
        inputs = readable(x)
        rows = structures.count_rows(inputs)
        if not rows:  # one input shows what an answer looks like that holds nothing
            inputs = structures.map_tensors(lambda t: t.new_zeros((1, *t.shape[1:])), inputs)
        if self.inputs is not None:
            if isinstance(inputs, dict) and set(inputs) != set(self.inputs.get("items", ())):
                inputs = structures.inputs_only(inputs)  # a labelled batch, as a loader gives it
            check_alike(inputs, self.inputs, given=x)
        self.network.probe(inputs)
        parts = []
        for chunk in structures.chunks(inputs, self._chunk_rows(needs)):
            try:
                passes = self._run(chunk, needs, on_device=on_device)
            except (RuntimeError, IndexError, TypeError, ValueError) as error:
                self._explain(error, chunk)
                raise
            valid = passes.finite & structures.finite_rows(chunk, passes.base.device)
            columns = _mark_first(function(passes), valid)
            parts.append(tuple(column.cpu() for column in columns))
        return tuple(torch.cat(column)[:rows] for column in zip(*parts, strict=True))

    def _explain(self, error: Exception, inputs: Inputs) -> None:
        """Inputs unlike those that were fitted on are the likely reason for a failure."""
        if self.inputs is None or isinstance(error, TulipError):
            return
        if words := unlike(inputs, self.inputs):
            raise InputError(f"the network cannot run on {words}: {in_one_line(error)}") from error

    def _chunk_rows(self, needs: Needs) -> int:
        """A whole number of batches, so that chunks do not change which inputs go together."""
        probe = self.network.known_probe
        numbers = probe.outputs_per_input * needs.passes
        if needs.noisy_features and probe.head is not None:
            layer: Any = self.network.module.get_submodule(probe.head)
            numbers += math.prod(layer.weight.shape[1:]) * needs.settings.n_passes
        fitting = _CHUNK_BYTES // (4 * numbers)
        return max(1, fitting // self.batch_size) * self.batch_size

    # --------------------------------------------------------------------- files

    def golden_inputs(self, n: int) -> Inputs | None:
        """Synthetic inputs like those that were fitted on; None if those were never seen."""
        return None if self.inputs is None else synthetic_inputs(self.inputs, n)

    def noise_checksum(self, settings: PassSettings) -> str | None:
        """A hash of the noise of these settings, or None if there is none."""
        if self.inputs is None or not settings.n_samples:
            return None
        self.network.probe(self.golden_inputs(4))
        return self.perturbation(settings).checksum()


class PassCount:
    """Counts inputs that went through a pass, for a progress bar.

    A search does not know beforehand how many passes it will need: it says what it expects from
    here on, and may think better of it later.

    Example:
        >>> count = PassCount(lambda done, total: print(f"{done} of {total}"))
        >>> count.expect(10)
        >>> count.add(4)
        4 of 10
    """

    def __init__(self, progress: Callable[[int, int], None] | None) -> None:
        self._progress = progress
        self.done = self.total = 0

    def expect(self, n: int) -> None:
        """So many more are to come."""
        self.total = self.done + n

    def add(self, n: int) -> None:
        """So many more are done."""
        self.done += n
        if self._progress is not None:
            self._progress(self.done, max(self.done, self.total))


def mark_invalid(score: Tensor, valid: Tensor) -> Tensor:
    """+inf for scores of invalid inputs, and for scores that came out as NaN.

    Example:
        >>> mark_invalid(torch.tensor([1.0, math.nan, 3.0]), torch.tensor([True, True, False]))
        tensor([1., inf, inf])
    """
    good = valid.reshape(-1, *[1] * (score.ndim - 1)) & ~score.isnan()
    return torch.where(good, score, math.inf)


def _mark_first(columns: tuple[Tensor, ...], valid: Tensor) -> tuple[Tensor, ...]:
    return (mark_invalid(columns[0], valid), *columns[1:])
