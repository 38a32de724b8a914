"""Plain passes or fast ones: the one place that decides.

The fast ones need a graph of the network, which takes a second or more to make: it is made once the
plain passes over the same weights have computed as much as that is worth, for the parameters in
scope and the kind of input at hand, and forgotten when weights or devices change. Each holds
perturbed weights of its own: where inputs are of many kinds (texts of all lengths), the two that
were used last are kept, and another one has to earn its place first. Whatever stands in the way,
the plain passes do the work, and why is said once.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from tulip_ood.errors import TulipError, in_one_line
from tulip_ood.network import inputs as structures
from tulip_ood.network.captured import Acceleration, Round
from tulip_ood.network.exporting import PartitionError, kind_of
from tulip_ood.network.forking import fork_safe_lock
from tulip_ood.network.gathering import is_out_of_memory
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.measures import Look
from tulip_ood.network.network import Network
from tulip_ood.network.partition import Partition
from tulip_ood.network.partitioned import hold_round, run_partitioned
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import Perturbation
from tulip_ood.network.precision import SMALL
from tulip_ood.network.ready import Lowering
from tulip_ood.network.rows import Rows
from tulip_ood.network.running import Needs, run_passes

__all__ = ["FastOptions", "FastPasses"]

_VARIABLE = "TULIP_OOD_FAST"
# Operations of plain passes that a graph is worth: a few seconds on either.
_EARNED = {"cpu": 3e11, "cuda": 1e14}
_NONE: frozenset[str] = frozenset()
_WORTH_SHARING = 0.9  # of a pass, that every perturbed pass has to itself
_KEPT = 2  # kinds of input, whose graphs have all perturbed weights each


@dataclass(frozen=True)
class FastOptions:
    """Which parts of the fast engine are on; all may be switched off one by one.

    The variable TULIP_OOD_FAST in the environment changes them: "off", or "fold=0,compile=1".

    Attributes:
        on: Whether there are fast passes at all.
        fold: See `Lowering`.
        channels_last: See `Lowering`; in half precision on a GPU, in float32 on a CPU.
        fuse: See `Lowering`; where `channels_last` is.
        in_place: See `Lowering`.
        winograd: See `Lowering`; where `channels_last` is, on a CPU with MKL.
        capture: See `Acceleration`.
        compile: See `Acceleration`; takes the place of `fuse`.
        choose_kernels: See `Acceleration`.
        earned: Operations that plain passes make before a graph is worth its time; −1 for the
            device's default.

    Example:
        >>> FastOptions.from_text("compile=1,earned=0").compile
        True
    """

    on: bool = True
    fold: bool = True
    channels_last: bool = True
    fuse: bool = True
    in_place: bool = True
    winograd: bool = True
    capture: bool = True
    compile: bool = False
    choose_kernels: bool = True
    earned: float = -1.0

    @staticmethod
    def from_text(text: str) -> "FastOptions":
        """Options as the variable in the environment has them."""
        if text.strip().lower() in ("off", "0"):
            return FastOptions(on=False)
        kinds = {field.name: type(field.default) for field in fields(FastOptions)}
        changes: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.strip().partition("=")
            if name not in kinds:
                raise TulipError(f"{_VARIABLE} names {name!r}; there are {', '.join(kinds)}")
            changes[name] = _number(name, value) if name == "earned" else _switch(name, value)
        return replace(FastOptions(), **changes)

    def lowering(self, network: Network) -> Lowering:
        """What is done to the graph of a network, on its device and in its dtype."""
        on_gpu = network.device.type == "cuda"
        half = network.dtype == torch.float16
        wanted = half if on_gpu else network.dtype == torch.float32
        has_kernels = on_gpu or torch.backends.mkldnn.is_available()
        return Lowering(
            fold=self.fold,
            channels_last=self.channels_last and wanted,
            fuse=self.fuse and self.fold and wanted and has_kernels and not self.compile,
            in_place=self.in_place and not self.compile,
            winograd=self.winograd
            and self.channels_last
            and wanted
            and not (on_gpu or self.compile)
            and torch.backends.mkl.is_available(),
        )

    def acceleration(self) -> Acceleration:
        """What may be used on a GPU."""
        return Acceleration(self.capture, self.compile, self.choose_kernels)


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise TulipError(f"{_VARIABLE}: {name} takes a number; got {value!r}") from None


def _switch(name: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise TulipError(f"{_VARIABLE}: {name} takes 0 or 1; got {value!r}")
    return value == "1"


class FastPasses:
    """Runs passes over one network, fast where that pays.

    Args:
        network: The network.
        options: By default what the environment says.
        exact: Share the trunk and do nothing else, where outputs are those of the plain passes to
            the last bit: for a search, whose choice must not hang on rounding.

    Attributes:
        refused: Why passes run plainly although they could be fast, or None.

    Example:
        >>> from tulip_ood.network.initial_mean import InitialMean
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> settings = PassSettings(0.01, n_samples=2)
        >>> perturbation = Perturbation(network, {"weight": 1.0}, InitialMean({}, ()), settings)
        >>> fast = FastPasses(network)
        >>> passes = fast.run(perturbation, torch.zeros(5, 4), batch_size=2, needs=Needs(settings))
        >>> passes.noisy.shape, fast.made  # such a small network needs no graph
        (torch.Size([2, 5, 3]), 0)
    """

    def __init__(
        self, network: Network, options: FastOptions | None = None, *, exact: bool = False
    ) -> None:
        self.network = network
        self.exact = exact
        self.options = options or FastOptions.from_text(os.environ.get(_VARIABLE, ""))
        self.refused: str | None = None
        self._computed: defaultdict[Any, float] = defaultdict(float)  # by plain passes, of a kind
        self._small: bool | None = None
        self._partitions: dict[Any, Partition | None] = {}
        self._rounds: dict[Partition, tuple[Perturbation | None, Round]] = {}
        self._lock = fork_safe_lock()

    @property
    def made(self) -> int:
        """How many graphs are in use."""
        return sum(partition is not None for partition in self._partitions.values())

    def clear(self) -> None:
        """Forget all that rests on weights and device."""
        with self._lock:
            self._partitions.clear()
            self._rounds.clear()
            self._computed.clear()

    def run(
        self,
        perturbation: Perturbation,
        source: Rows | Inputs,
        *,
        batch_size: int,
        needs: Needs,
        on_device: bool = False,
        **more: Any,
    ) -> Passes:
        """What `run_passes` gives, with its arguments; left `on_device`, if that is a GPU."""
        device = self.network.device
        on_device = on_device and device.type == "cuda"  # others may lack float64

        def plainly() -> Passes:
            return run_passes(
                perturbation,
                source,
                batch_size=batch_size,
                needs=needs,
                device=device if on_device else None,
                **more,
            )

        partition = self._partition(perturbation, source, needs)
        if partition is None:
            return plainly()
        try:
            return run_partitioned(
                partition,
                perturbation,
                source,
                batch_size=batch_size,
                needs=needs,
                together=self._together(partition, perturbation),
                on_device=on_device,
                **more,
            )
        except RuntimeError as error:
            if isinstance(error, TulipError) or is_out_of_memory(error):
                raise
            key = self._key(perturbation, source, needs)
            self._refuse(key, in_one_line(error))
            return plainly()

    # ------------------------------------------------------------------------- the decision

    def _partition(
        self, perturbation: Perturbation, source: Rows | Inputs, needs: Needs
    ) -> Partition | None:
        """The cut network, if it pays; makes it where it has been earned."""
        if not self._pays(perturbation):
            return None
        n = len(source) if isinstance(source, Rows) else structures.count_rows(source)
        key = self._key(perturbation, source, needs)
        with self._lock:
            if key in self._partitions:
                self._partitions[key] = self._partitions.pop(key)  # the last one used stands last
                return self._partitions[key]
            earns = None if self.exact else key[1]  # exact ones hold no weights: all earn together
            flops = self.network.known_probe.compute.flops
            self._computed[earns] += n * flops * needs.passes
            if self._computed[earns] < self._price():
                return None
            try:
                self._partitions[key] = self._cut(key[0], _first(source), _looks(needs))
            except PartitionError as error:
                self._refuse(key, str(error))
            if not self.exact:
                self._let_go()
            return self._partitions[key]

    def _let_go(self) -> None:
        """Forget graphs for kinds of input not used for long; they have to be earned again."""
        made = {key: part for key, part in self._partitions.items() if part is not None}
        kinds = list(dict.fromkeys(kind for _, kind, _ in reversed(made)))  # the last used first
        for key, partition in made.items():
            if key[1] not in kinds[:_KEPT]:
                del self._partitions[key]
                self._rounds.pop(partition, None)
                self._computed.pop(key[1], None)

    def _cut(self, names: frozenset[str], first: Inputs, looks: Sequence[Look]) -> Partition:
        """With everything that is on; where that does not work, without fused kernels."""
        if self.exact:
            partition = Partition.of(self.network, names, first, looks=looks)
            if not partition.exact:
                raise PartitionError("the network's graph rounds in another way than the network")
            return partition
        lowering = self.options.lowering(self.network)
        try:
            return Partition.of(self.network, names, first, lowering, looks)
        except PartitionError:
            if not lowering.fuse:
                raise
        return Partition.of(self.network, names, first, replace(lowering, fuse=False), looks)

    def _key(
        self, perturbation: Perturbation, source: Rows | Inputs, needs: Needs
    ) -> tuple[frozenset[str], Any, tuple[str, ...]]:
        names = perturbation.names if perturbation.settings.n_samples else _NONE
        looks = tuple(look.key for look in _looks(needs))
        return names, kind_of(self.network, _first(source)), looks

    def _pays(self, perturbation: Perturbation) -> bool:
        network = self.network
        if not self.options.on or not network.probed or network.device.type not in _EARNED:
            return False
        if self._small is None:
            self._small = sum(p.numel() for p in network.parameters.values()) <= SMALL
        if self._small:
            return False
        if self.exact:
            left = network.known_probe.compute.left
            own = max((left.get(name, 1.0) for name in perturbation.scales), default=1.0)
            return perturbation.settings.n_samples > 0 and own <= _WORTH_SHARING
        # A base pass alone has nothing to share: it is worth it where half precision has kernels.
        return perturbation.settings.n_samples > 0 or network.dtype == torch.float16

    def _price(self) -> float:
        if self.options.earned >= 0:
            return self.options.earned
        return _EARNED[self.network.device.type]

    def _refuse(self, key: Any, reason: str) -> None:
        with self._lock:
            self._partitions[key] = None
            self._rounds.clear()
            self.refused = self.refused or reason

    # ------------------------------------------------------------------------------ weights

    def _together(self, partition: Partition, perturbation: Perturbation) -> Round | None:
        """All passes with held weights; the last ones are kept."""
        if self.exact or not perturbation.hold:
            return None
        moving = perturbation if perturbation.settings.n_samples else None
        with self._lock:
            known, made = self._rounds.get(partition, (None, None))
            # Another detector of this network may have taken up changed weights.
            current = made is not None and made.weights[0] is partition.weights()
            if made is None or known is not moving or not current:
                made = hold_round(partition, perturbation, self.options.acceleration())
                if partition in self._partitions.values():  # another thread may have let it go
                    self._rounds[partition] = moving, made
                perturbation.release()
            return made


def _first(source: Rows | Inputs) -> Inputs:
    return source.first(4) if isinstance(source, Rows) else source


def _looks(needs: Needs) -> list[Look]:
    return [measure for measure in needs.measures if isinstance(measure, Look)]
