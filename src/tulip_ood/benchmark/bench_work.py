"""The work on one network: which cells lack which pieces, fitting them, scoring the pieces."""

import platform
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tulip_ood.benchmark.bench_folder import BenchFolder
from tulip_ood.benchmark.cell_fitting import CellFitter
from tulip_ood.benchmark.cells import BenchNetwork, Cell, plan
from tulip_ood.benchmark.collecting import columns_of, flat
from tulip_ood.benchmark.entries import Entry
from tulip_ood.benchmark.pass_cache import CachedPasses, PassCache
from tulip_ood.benchmark.pieces import Ahead, Piece, pieces_of, preprocess_for
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.protocol import protocol_of
from tulip_ood.data.root import Part
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.engine import mark_invalid
from tulip_ood.errors import kind_and_text
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.version import __version__

__all__ = ["NetworkWork"]


class NetworkWork:
    """All that is to be done for one network with one noise seed.

    Args:
        folder: The benchmark's.
        network: The network.
        shared: The same, behind glass.
        name: Its id.
        entries: The methods that are asked for.
        tracks: "val", "train" or both.
        seed: The detectors' seed.
        tune: What the rivals' parameters are chosen on.
        networks: All networks by id with their preparation of images, for ensembles.
        tests: What is scored, by role.
        digests: Of what is fitted on, by role.
        workers: How many decode images.

    Example:
        >>> NetworkWork.left.__doc__
        'Images × methods that are still to be scored.'
    """

    def __init__(
        self,
        folder: BenchFolder,
        network: BenchNetwork,
        shared: Network,
        name: str,
        entries: Sequence[Entry],
        tracks: Sequence[str],
        seed: int,
        tune: str,
        networks: Mapping[str, tuple[Network, Preprocess]],
        tests: Mapping[str, Part],
        digests: Mapping[str, str],
        workers: int | None = None,
    ) -> None:
        self._folder, self._network, self._shared, self._name = folder, network, shared, name
        self._workers = workers
        self._others = {other: one for other, one in networks.items() if other != name}
        self._cells = plan(
            entries,
            tracks,
            seed,
            network=name,
            others=list(self._others),
            tune=tune,
            digests=digests,
        )
        about = folder.about()
        protocol = protocol_of(about["identity"]["id_set"])
        self._groups = about["sets"]
        self._pieces: dict[str, list[Piece]] = {}
        for role, part in tests.items():
            how = network.preprocess
            if role != "test":
                how = preprocess_for(protocol, how, role)
            self._pieces[role] = pieces_of(part, how, self._groups[role]["digest"], workers)

    def _missing(self) -> dict[str, dict[int, list[Cell]]]:
        """For every set and piece, the cells that have not scored it."""
        possible = [c for c in self._cells if "skipped" not in (self._folder.cell(c.key) or {})]
        missing: dict[str, dict[int, list[Cell]]] = {}
        for role, pieces in self._pieces.items():
            there = self._folder.scored(self._name, role)
            for piece in pieces:
                left = [c for c in possible if c.key not in there.get(piece.first, set())]
                if left:
                    missing.setdefault(role, {})[piece.first] = left
        return missing

    def left(self) -> int:
        """Images × methods that are still to be scored."""
        lengths = {(r, p.first): len(p) for r, pieces in self._pieces.items() for p in pieces}
        return sum(
            lengths[role, first] * len(cells)
            for role, pieces in self._missing().items()
            for first, cells in pieces.items()
        )

    def run(
        self,
        parts: Mapping[str, Part],
        cache: PassCache,
        batch_size: int | None,
        say: Callable[..., None],
    ) -> dict[str, str]:
        """Fit and score what is missing; the methods that failed unexpectedly, with the reason."""
        missing = self._missing()
        wanted = {c.key: c for by in missing.values() for cells in by.values() for c in cells}
        # Scored, but another answer to the same question has taken its place since: as asked now.
        wanted |= {c.key: c for c in self._cells if self._folder.cell(c.key) is None}
        for cell in self._cells:
            if cell.key not in wanted:  # finished; a kill may have left its detector
                self._folder.detector_file(cell.key).unlink(missing_ok=True)
        if not wanted:
            return {}
        chosen = [c for c in self._cells if c.key in wanted]
        detectors, failed = self._fit(chosen, parts, batch_size, say)
        scorer = _Scorer(self._shared, self._name, detectors, cache, batch_size)
        failed |= self._score(missing, scorer, detectors, say)
        for key in set(detectors) - set(failed):
            self._folder.detector_file(key).unlink(missing_ok=True)
        for key, why in failed.items():  # for the tables; it will be tried again
            self._folder.note_failure(key, why)
        return {f"{wanted[key].entry} ({wanted[key].track})": why for key, why in failed.items()}

    def _fit(
        self,
        cells: Sequence[Cell],
        parts: Mapping[str, Part],
        batch_size: int | None,
        say: Callable[..., None],
    ) -> tuple[dict[str, Detector], dict[str, str]]:
        """Fitted detectors by cell, and the cells that failed with the reason."""
        fitter = CellFitter(  # it holds the validation images, and goes with them
            self._folder,
            self._shared,
            self._network.preprocess,
            parts,
            others=list(self._others.values()),
            batch_size=batch_size,
            workers=self._workers,
            about={
                "network": self._name,
                "training_seed": self._network.training_seed,
                "architecture": type(self._network.module).__name__,
                "versions": _versions(self._shared.device),
            },
            say=lambda what: say(f"{self._network.name}: {what}"),
        )
        return fitter.fit(cells), dict(fitter.failed)

    def _score(
        self,
        missing: Mapping[str, Mapping[int, Sequence[Cell]]],
        scorer: "_Scorer",
        detectors: Mapping[str, Detector],
        say: Callable[..., None],
    ) -> dict[str, str]:
        """Score the pieces that lack something; the cells that failed, with the reason."""
        failed: dict[str, str] = {}
        left = [
            (role, piece)
            for role, by_piece in missing.items()
            for piece in self._pieces[role]
            if piece.first in by_piece
        ]
        with Ahead([piece for _, piece in left], self._shared.device) as ahead:
            for role, piece in left:
                there = self._folder.scored(self._name, role).get(piece.first, set())
                keys = [c.key for c in missing[role][piece.first] if c.key not in there]
                able = [key for key in keys if key in detectors]
                is_id = self._groups[role]["group"] in ("id", "shifted")
                columns, broken = scorer.score(piece, able, is_id, ahead)
                failed |= broken
                self._folder.write_scores(self._name, role, piece.first, columns)
                say(f"{self._network.name}: scoring {piece.part.name}", len(piece) * len(keys))
        return failed


class _Scorer:
    """What fitted detectors say of a piece."""

    def __init__(
        self,
        network: Network,
        name: str,
        detectors: dict[str, Detector],
        cache: PassCache,
        batch_size: int | None,
    ) -> None:
        self._network, self._name, self._cache = network, name, cache
        self._detectors = detectors
        self._size = batch_size or (64 if network.device.type == "cpu" else 256)
        self._shared: tuple[tuple[str, ...], CachedPasses] | None = None
        self._labels: tuple[str, Tensor] | None = None  # of one set
        self._broken: set[str] = set()

    def _passes_of(self, keys: tuple[str, ...]) -> CachedPasses:
        if self._shared is None or self._shared[0] != keys:
            chosen = {key: self._detectors[key] for key in keys}
            made = CachedPasses(self._network, chosen, self._size, self._cache, self._name)
            self._shared = (keys, made)
        return self._shared[1]

    def _labels_of(self, piece: Piece) -> Tensor:
        if self._labels is None or self._labels[0] != piece.digest:
            self._labels = (piece.digest, torch.tensor(list(piece.part.source.labels())))
        return self._labels[1][piece.first : piece.stop]

    def score(
        self, piece: Piece, keys: Sequence[str], is_id: bool, ahead: Ahead
    ) -> tuple[dict[str, dict[str, Tensor]], dict[str, str]]:
        """Columns by cell, and the cells that failed with the reason."""
        broken: dict[str, str] = {}
        keys = [key for key in keys if key not in self._broken]
        prepared = piece.preprocess.fingerprint  # a set may be prepared in another way
        which = f"{self._name}/{prepared}/{piece.digest}/{piece.first}-{piece.stop}"
        if not keys:
            return {}, broken
        try:
            passes, valid = self._passes_of(tuple(keys)).of_piece(
                which, lambda: ahead.inputs(piece)
            )
        except Exception as error:
            broken = self._failing(which, piece, keys)
            self._broken |= set(broken)
            keys = [key for key in keys if key not in broken]
            if not keys:
                raise error
            passes, valid = self._passes_of(tuple(keys)).of_piece(which, piece.inputs)
        labels = self._labels_of(piece) if is_id else None
        columns: dict[str, dict[str, Tensor]] = {}
        for key in keys:
            try:
                columns[key] = _columns(self._detectors[key], passes[key], valid, labels)
            except Exception as error:
                broken[key] = kind_and_text(error)
        self._broken |= set(broken)
        return columns, broken

    def _failing(self, which: str, piece: Piece, keys: Sequence[str]) -> dict[str, str]:
        """The cells whose passes cannot be made, found by trying each alone."""
        found = {}
        inputs = piece.inputs()
        for key in keys:
            try:
                self._passes_of((key,)).of_piece(which, lambda: inputs)
            except Exception as error:
                found[key] = kind_and_text(error)
        return found


def _columns(
    detector: Detector, passes: Passes, valid: Tensor, labels: Tensor | None
) -> dict[str, Tensor]:
    """NaN marks an image that cannot be read; +inf one that the network has no score for."""
    if labels is None:
        found = {"score": flat(mark_invalid(detector.score(passes), valid))}
    else:
        said = detector.predict(passes)
        found = columns_of(detector, said, labels)
    return {name: torch.where(valid, column, torch.nan) for name, column in found.items()}


def _versions(device: torch.device) -> dict[str, str]:
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "tulip_ood": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device.type} ({named})",
    }
