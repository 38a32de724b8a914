"""The plain M + 2 passes of Alg. 1, and the record they leave.

This is the reference: one pass after another, each a forward of the whole network. Faster ways are
tested against it. Everything that tunes, compares or benchmarks works on `Passes` records.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tulip_ood.errors import FileFormatError, InputError
from tulip_ood.network import inputs as structures
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.rows import Rows
from tulip_ood.numerics import random
from tulip_ood.numerics.tasks import Task
from tulip_ood.version import __version__

__all__ = ["Passes", "forward", "run_passes"]

Progress = Callable[[int], None]  # called with the number of inputs that went through a pass
_POSITIONS = 256  # positions kept of each dense output while fitting


@dataclass(frozen=True)
class Passes:
    """What the passes gave for N inputs, on the CPU, float32 (float64 for float64 networks).

    Attributes:
        base: f, [N, …, o].
        noisy: f_i, [M, N, …, o]; M = 0 where only the base pass was made.
        drift: f at the drifted parameters, [N, …, o], or None.
        features: Penultimate features [N, d], or None.
        labels: [N, …], or None.
        settings: What made them.
        key: A hash of everything that they depend on, or "" if it was not asked for.
        ids: A fingerprint of each input's content, or None.

    Example:
        >>> import torch
        >>> p = Passes(torch.zeros(3, 2), torch.zeros(4, 3, 2), None, None, None, PassSettings(.01))
        >>> len(p), p.take(torch.tensor([0, 2])).base.shape
        (3, torch.Size([2, 2]))
    """

    base: Tensor
    noisy: Tensor
    drift: Tensor | None
    features: Tensor | None
    labels: Tensor | None
    settings: PassSettings
    key: str = ""
    ids: tuple[bytes, ...] | None = None

    def __len__(self) -> int:
        return self.base.shape[0]

    def take(self, index: Tensor | slice) -> "Passes":
        """Some of the inputs."""

        def rows(t: Tensor | None) -> Tensor | None:
            return None if t is None else t[index]

        return Passes(
            self.base[index],
            self.noisy[:, index],
            rows(self.drift),
            rows(self.features),
            rows(self.labels),
            self.settings,
            ids=None if self.ids is None else _pick(self.ids, index),
        )

    @property
    def finite(self) -> Tensor:
        """Which inputs have only finite logits in every pass, [N]."""
        good = self.base.isfinite().flatten(1).all(dim=1)
        if self.drift is not None:
            good &= self.drift.isfinite().flatten(1).all(dim=1)
        return good & self.noisy.isfinite().flatten(2).all(dim=2).all(dim=0)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file (whole, or not at all)."""
        tensors = {
            name: value.contiguous()
            for name in ("base", "noisy", "drift", "features", "labels")
            if (value := getattr(self, name)) is not None
        }
        if self.ids is not None:
            tensors["ids"] = torch.frombuffer(bytearray(b"".join(self.ids)), dtype=torch.uint8)
        header = {"format": "tulip-passes-1", "key": self.key, "settings": self.settings.to_dict()}
        target = Path(path)
        partial = target.with_name(target.name + ".partial")
        save_file(tensors, partial, metadata={"tulip": json.dumps(header)})
        partial.replace(target)

    @staticmethod
    def load(path: str | Path) -> "Passes":
        """Read what `save` wrote."""
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {}).get("tulip", "{}"))
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, json.JSONDecodeError) as error:
            raise FileFormatError(f"{path} cannot be read as passes: {error}") from error
        if header.get("format") != "tulip-passes-1":
            raise FileFormatError(f"{path} holds no passes (format {header.get('format')!r})")
        return Passes(
            found["base"],
            found["noisy"],
            found.get("drift"),
            found.get("features"),
            found.get("labels"),
            PassSettings(**header["settings"]),
            header["key"],
            _unpack(found["ids"], len(found["base"])) if "ids" in found else None,
        )


def _pick(ids: tuple[bytes, ...], index: Tensor | slice) -> tuple[bytes, ...]:
    if isinstance(index, slice):
        return ids[index]
    where = index.nonzero().squeeze(1) if index.dtype == torch.bool else index
    return tuple(ids[i] for i in where.tolist())


def _unpack(packed: Tensor, n: int) -> tuple[bytes, ...]:
    raw = packed.numpy().tobytes()
    width = len(raw) // max(n, 1)
    return tuple(raw[i * width : (i + 1) * width] for i in range(n))


def forward(
    network: Network,
    source: Rows | Inputs,
    parameters: Mapping[str, Tensor] | None = None,
    *,
    batch_size: int,
    positions: Tensor | None = None,
    features: bool = False,
    progress: Progress | None = None,
) -> tuple[Tensor, Tensor | None]:
    """One pass over all inputs: logits [N, …, o] and (if asked for) features, on the CPU.

    Args:
        network: The network.
        source: Held rows, or inputs as the model takes them.
        parameters: θ of this pass; the network's own by default.
        batch_size: How many at a time; out of memory halves it for the batch in question.
        positions: For dense outputs, which positions to keep: uniform numbers [N, P] in [0, 1).
        features: Whether to return penultimate features.
        progress: Called with the number of inputs done.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> logits, _ = forward(network, torch.zeros(5, 4), batch_size=2)
        >>> logits.shape
        torch.Size([5, 3])
    """
    n = len(source) if isinstance(source, Rows) else structures.count_rows(source)
    logits: Tensor | None = None
    kept: Tensor | None = None
    for index, batch in _batches(source, batch_size):
        out, taps = _run_or_halve(network, batch, parameters)
        if positions is not None:
            out = _at_positions(out, positions[index])
        out = out.cpu()
        if logits is None:
            logits = torch.empty((n, *out.shape[1:]), dtype=out.dtype)
        if out.shape[1:] != logits.shape[1:]:
            raise InputError(
                f"the network's outputs differ in shape between inputs: {list(out.shape[1:])} and "
                f"{list(logits.shape[1:])}; score inputs of one size at a time"
            )
        logits[index] = out
        if features and taps is not None:
            taps = taps.cpu()
            if kept is None:
                kept = torch.empty((n, taps.shape[1]), dtype=taps.dtype)
            if taps.shape[1] == kept.shape[1]:
                kept[index] = taps
        if progress is not None:
            progress(len(index))
    if logits is None:
        raise InputError("there are no inputs")
    return _storable(logits), None if kept is None else _storable(kept)


def _storable(t: Tensor) -> Tensor:
    return t.to(torch.float32) if t.dtype in (torch.float16, torch.bfloat16) else t


def _batches(source: Rows | Inputs, size: int) -> Iterator[tuple[Tensor, Inputs]]:
    if isinstance(source, Rows):
        yield from source.batches(size)
        return
    first = 0
    for piece in structures.chunks(source, size):
        n = structures.count_rows(piece)
        yield torch.arange(first, first + n), piece
        first += n


def _run_or_halve(
    network: Network, batch: Inputs, parameters: Mapping[str, Tensor] | None
) -> tuple[Tensor, Tensor | None]:
    """The network's output; a batch that does not fit in memory is cut in two."""
    try:
        out = network.run(batch, parameters)
        return out.logits, out.features
    except RuntimeError as error:  # torch.OutOfMemoryError is one, the CPU allocator's is plain
        n = structures.count_rows(batch)
        if n < 2 or not _is_out_of_memory(error):
            raise
    if network.device.type == "cuda":
        torch.cuda.empty_cache()
    halves = [
        _run_or_halve(network, structures.take(batch, part), parameters)
        for part in (slice(0, n // 2), slice(n // 2, n))
    ]
    taps = [tap for _, tap in halves if tap is not None]
    return torch.cat([out for out, _ in halves]), torch.cat(taps) if len(taps) == 2 else None


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _at_positions(dense: Tensor, where: Tensor) -> Tensor:
    """[n, positions…, o] → [n, P, o] at the given places of the flattened positions."""
    flat = dense.flatten(1, -2)
    index = (where.to(flat.device) * flat.shape[1]).long().clamp_max(flat.shape[1] - 1)
    return flat.gather(1, index.unsqueeze(-1).expand(-1, -1, flat.shape[-1]))


def dense_positions(task: Task, rows: int, seed: int) -> Tensor | None:
    """Which positions to keep of each dense output while fitting; None for other tasks."""
    if task.name != "dense":
        return None
    return random.uniform((rows, _POSITIONS), seed=seed, name="positions")


def dense_labels(labels: Tensor, positions: Tensor | None) -> Tensor:
    """Labels at the kept positions."""
    if positions is None:
        return labels
    return _at_positions(labels.unsqueeze(-1), positions).squeeze(-1)


def run_passes(
    perturbation: Perturbation,
    source: Rows | Inputs,
    *,
    batch_size: int,
    positions: Tensor | None = None,
    labels: Tensor | None = None,
    base: tuple[Tensor, Tensor | None] | None = None,
    epsilon: float | None = None,
    keyed: bool = False,
    progress: Progress | None = None,
) -> Passes:
    """Base, M noisy and drift passes over all inputs (Alg. 1, lines 2–7).

    Args:
        perturbation: The network and what is done to it; M = 0 makes the base pass alone.
        source: Held rows, or inputs as the model takes them.
        batch_size: How many at a time.
        positions: See `forward`.
        labels: Go along in the record.
        base: Base logits and features, if they are there already.
        epsilon: Another ε than the perturbation's (never held in memory).
        keyed: Whether to compute the content key (hashes weights and inputs).
        progress: Called with the number of inputs that went through a pass.

    Example:
        >>> from tulip_ood.network.initial_mean import InitialMean
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> settings = PassSettings(0.01, n_samples=2)
        >>> perturbation = Perturbation(network, {"weight": 1.0}, InitialMean({}, ()), settings)
        >>> run_passes(perturbation, torch.zeros(5, 4), batch_size=2).noisy.shape
        torch.Size([2, 5, 3])
    """
    network, settings = perturbation.network, perturbation.settings
    if epsilon is not None:
        settings = settings.with_(epsilon=epsilon)

    def run(parameters: Mapping[str, Tensor]) -> Tensor:
        return forward(
            network,
            source,
            parameters,
            batch_size=batch_size,
            positions=positions,
            progress=progress,
        )[0]

    if base is None:
        base = forward(
            network,
            source,
            batch_size=batch_size,
            positions=positions,
            features=True,
            progress=progress,
        )
    logits, features = base
    drift = None
    noisy = logits.new_empty((settings.n_samples, *logits.shape))
    if settings.n_samples:
        for i, parameters in enumerate(perturbation.noisy(epsilon)):
            noisy[i] = run(parameters)
        drift = run(perturbation.drifted(epsilon))
    key = passes_key(perturbation, settings, source) if keyed else ""
    ids = source.digests if isinstance(source, Rows) else None
    return Passes(logits, noisy, drift, features, labels, settings, key, ids)


def passes_key(perturbation: Perturbation, settings: PassSettings, source: Rows | Inputs) -> str:
    """A hash of all that passes depend on: weights, inputs, ε, δ, seed, M, scope, precision."""
    network = perturbation.network
    digests: Iterable[bytes]
    digests = source.digests if isinstance(source, Rows) else structures.row_digests(source, seed=0)
    parts: dict[str, Any] = {
        "version": __version__,
        "network": network.fingerprint(),
        "settings": settings.to_dict(),
        "scales": sorted(perturbation.scales.items()),
        "precision": network.precision,
        "rows": hashlib.sha256(b"".join(digests)).hexdigest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
