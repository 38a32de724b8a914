"""Passes on disk, by content: a method that is added later makes no pass that was made before."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tulip_ood.benchmark.shared_passes import SharedPasses
from tulip_ood.detectors.base import Detector
from tulip_ood.errors import FileFormatError, InputError, warn
from tulip_ood.network.features import Head
from tulip_ood.network.inputs import Inputs, finite_rows
from tulip_ood.network.keys import noise_identity
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings
from tulip_ood.network.running import Forwarded
from tulip_ood.version import __version__

__all__ = ["CachedPasses", "PassCache"]

_VALID = "tulip:valid"  # beside the base pass: which inputs are finite themselves


class PassCache:
    """Records of passes in a folder, up to a number of bytes; what is beyond is made again.

    Features are kept in single precision (the design notes had half): a score must not depend on
    whether its passes came from here.

    Args:
        folder: Where; made when it is needed.
        limit: Bytes in all; 0 keeps nothing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cache = PassCache(Path(folder), limit=1 << 20)
        ...     cache.put("k", Passes(torch.zeros(3, 2), torch.zeros(0, 3, 2), None, None, None,
        ...                           PassSettings(1.0, n_samples=0)))
        ...     len(cache.get("k")), cache.get("other")
        (3, None)
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._used = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        self._damaged: set[Path] = set()

    def get(self, key: str) -> Passes | None:
        """The record, if it is there and whole."""
        path = self._path(key)
        if not path.is_file():
            return None
        try:
            return Passes.load(path)
        except FileFormatError:
            self._damaged.add(path)  # written anew when it is made
            return None

    def put(self, key: str, passes: Passes) -> None:
        """Keep a record, if there is room."""
        size, path = _bytes(passes), self._path(key)
        there = path.exists() and path not in self._damaged
        if self._used + size > self._limit or there:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            passes.save(path)
        except (OSError, InputError) as error:
            self._limit = 0  # a full disk must not end a run that can do without
            warn(f"passes are not kept any more: {error}")
            return
        self._damaged.discard(path)
        self._used += size

    def _path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"


def _bytes(passes: Passes) -> int:
    tensors = [passes.base, passes.noisy, *passes.extras.values()]
    optional = (passes.drift, passes.features, passes.noisy_features, passes.drift_features)
    tensors += [t for t in optional if t is not None]
    tensors += [t for head in passes.heads for t in head]
    return sum(t.numel() * t.element_size() for t in tensors)


class CachedPasses(SharedPasses):
    """The passes that several detectors need of pieces of a set, taken from a cache where possible.

    Example:
        >>> import tempfile, tulip_ood
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"msp": tulip_ood.detectors.make("msp", network).fit([(x, y)])}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shared = CachedPasses(
        ...         network, detectors, 64, PassCache(Path(folder), 1 << 20), "linear"
        ...     )
        ...     first, _ = shared.of_piece("piece 0", lambda: x)
        ...     again, _ = shared.of_piece("piece 0", lambda: 1 / 0)  # needs no inputs any more
        >>> torch.equal(first["msp"].base, again["msp"].base)
        True
    """

    def __init__(
        self,
        network: Network,
        detectors: Mapping[str, Detector],
        batch_size: int,
        cache: PassCache,
        owner: str,
    ) -> None:
        super().__init__(network, detectors, batch_size)
        self._cache, self._owner = cache, owner

    def of_piece(self, piece: str, load: Callable[[], Inputs]) -> tuple[dict[str, Passes], Tensor]:
        """The passes for each detector, and which inputs are finite themselves.

        Args:
            piece: Says which inputs these are, of which network: all that passes depend on but
                the noise.
            load: Gives them; called only where something has to be made.
        """
        held: list[Inputs] = []

        def inputs() -> Inputs:
            if not held:
                held.append(load())
                self._network.probe(held[0])
            return held[0]

        base, valid = self._cached_base(piece, inputs)
        forwarded = Forwarded(
            base.base, base.features, base.heads[0] if base.heads else None, dict(base.extras)
        )

        def make(name: str) -> Passes:
            needs, perturbation = self._needs[name], self._perturbations[name]
            if not needs.settings.n_samples:
                return replace(base, settings=needs.settings)
            identity = noise_identity(perturbation, needs.settings)
            key = _key(piece, {"noise": identity, "features": needs.noisy_features})
            found = self._cache.get(key)
            heads = self._heads(identity) if needs.noisy_features else base.heads
            if found is None or heads is None:
                found = self._run(name, inputs(), forwarded)
                # What the base record holds already is not written again.
                less = replace(found, base=found.base[:0], features=None, extras={}, heads=())
                self._cache.put(key, less)
                if needs.noisy_features:
                    heads = found.heads
                    self._keep_heads(identity, heads)
            assert heads is not None
            return replace(
                found, base=base.base, features=base.features, extras=base.extras, heads=heads
            )

        return self._each(make), valid

    def _cached_base(self, piece: str, inputs: Callable[[], Inputs]) -> tuple[Passes, Tensor]:
        """The base pass with every measure, each measure in a file of its own."""
        plain, heads = self._cache.get(_key(piece, {})), self._heads(None)
        plain = None if plain is None or heads is None else replace(plain, heads=heads)
        measured: dict[str, Tensor] = {}
        if plain is not None:
            for key in self._measures:
                kept = self._cache.get(_key(piece, {"measure": key}))
                if kept is not None:
                    measured[key] = kept.extras[key]
        missing = tuple(m for key, m in self._measures.items() if key not in measured)
        if plain is None or missing:
            made = self._base(inputs(), missing)
            if plain is None:
                plain = self._record(made, inputs())
                self._cache.put(_key(piece, {}), replace(plain, heads=()))
                self._keep_heads(None, plain.heads)
            for measure in missing:
                measured[measure.key] = made.extras[measure.key]
                extras = {measure.key: made.extras[measure.key]}
                alone = replace(plain, base=plain.base[:0], features=None, heads=(), extras=extras)
                self._cache.put(_key(piece, {"measure": measure.key}), alone)
        valid = plain.extras[_VALID].to(torch.bool)
        return replace(plain, extras=measured), valid

    def _heads(self, identity: Any) -> tuple[Head, ...] | None:
        """The last layer in the passes of some noise: kept once, not with each piece."""
        kept = self._cache.get(_key(self._owner, {"heads": identity}))
        return None if kept is None else kept.heads

    def _keep_heads(self, identity: Any, heads: tuple[Head, ...]) -> None:
        nothing = torch.zeros(0, 1)
        settings = PassSettings(1.0, n_samples=0)
        record = Passes(nothing, nothing[None], None, None, None, settings, heads=heads)
        self._cache.put(_key(self._owner, {"heads": identity}), record)

    def _record(self, made: Forwarded, inputs: Inputs) -> Passes:
        is_logits = self._network.known_probe.head_is_logits
        return Passes(
            base=made.logits,
            noisy=made.logits.new_empty((0, *made.logits.shape)),
            drift=None,
            features=made.features,
            labels=None,
            settings=PassSettings(1.0, n_samples=0),
            heads=(made.head,) if is_logits and made.head is not None else (),
            extras={_VALID: finite_rows(inputs).to(torch.uint8)},
        )


def _key(piece: str, what: dict[str, Any]) -> str:
    return json.dumps([__version__, piece, what], sort_keys=True)
