"""Fitting the cells of one network: on validation data, and on training data read once for all."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tulip_ood.benchmark.bench_folder import BenchFolder
from tulip_ood.benchmark.cells import Cell, parameters_of
from tulip_ood.benchmark.pieces import labelled_batches, unlabelled_batches
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.root import Part
from tulip_ood.detectors.base import FIT_MEMORY, OOD_INPUTS, Detector
from tulip_ood.detectors.engine import Engine, Held
from tulip_ood.detectors.learning import Learned
from tulip_ood.detectors.lessons import Lessons
from tulip_ood.detectors.msp import MSP
from tulip_ood.detectors.saving import load
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import FileFormatError, InputError, TulipError, TulipWarning, kind_and_text
from tulip_ood.network.network import Network
from tulip_ood.network.rows import Rows, collect_rows
from tulip_ood.network.running import Needs

__all__ = ["CellFitter"]

Say = Callable[[str], None]
_MEMORY = 3 * FIT_MEMORY  # ImageNet's 5,000 validation images and their logits


class CellFitter:
    """Fits cells, and remembers in the benchmark's folder what was fitted.

    A method that cannot be run here is noted with the reason, and the others go on.

    Args:
        folder: The benchmark's.
        network: The network that all share.
        preprocess: How its images are prepared.
        parts: "val", and where they are there "train" and "ood_val".
        others: Further networks with their preparation of images, for ensembles.
        batch_size: Inputs in one forward pass.
        workers: How many decode images.
        about: What is noted of every cell: the network, versions.
        say: Told what is being done.

    Example:
        >>> CellFitter.__init__.__annotations__["network"].__name__
        'Network'
    """

    def __init__(
        self,
        folder: BenchFolder,
        network: Network,
        preprocess: Preprocess,
        parts: Mapping[str, Part],
        *,
        others: Sequence[tuple[Network, Preprocess]],
        batch_size: int | None,
        workers: int | None = None,
        about: Mapping[str, Any],
        say: Say,
    ) -> None:
        self._folder, self._network, self._preprocess = folder, network, preprocess
        self._parts, self._others, self._batch_size = parts, others, batch_size
        self._workers, self._about, self._say = workers, about, say
        self._held: Held | None = None
        self._ood: Rows | None = None
        self.failed: dict[str, str] = {}  # by cell: what went wrong, and may go right next time

    def fit(self, cells: Sequence[Cell]) -> dict[str, Detector]:
        """The fitted detectors of the cells, by key; loaded where they were fitted before."""
        found: dict[str, Detector] = {}
        fresh: list[Cell] = []
        for cell in cells:
            kept = self._load(cell)
            if kept is None:
                fresh.append(cell)
            else:
                found[cell.key] = kept
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TulipWarning)  # findings are noted with the cell
            for cell in fresh:
                if cell.track == "val":
                    with self._guarded(cell):
                        self._say(f"fitting {cell.entry}")
                        detector = self._make(cell)
                        self._fit(cell, detector, None)
                        found[cell.key] = self._keep(cell, detector)
            found |= self._fit_on_training_data([c for c in fresh if c.track == "train"])
        return found

    # ------------------------------------------------------------------------ one

    def _make(self, cell: Cell) -> Detector:
        common: dict[str, Any] = {"seed": cell.noise_seed, "batch_size": self._batch_size}
        if "ensemble" in cell.entry.method.split("&"):
            if not self._others:
                raise InputError("an ensemble needs several networks: give further checkpoints")
            if any(other != self._preprocess for _, other in self._others):
                raise InputError(
                    "the networks prepare images in different ways (size, mean, std): an ensemble "
                    "shows all of them the same inputs"
                )
            common["others"] = [network for network, _ in self._others]
        if cell.entry.method == "odin":
            common["std"] = self._preprocess.std  # its noise is meant for pixels
        return cell.entry.make(self._network, common)

    def _fit(self, cell: Cell, detector: Detector, learned: Learned | None) -> None:
        arguments: dict[str, Any] = {"tune": self._tune(cell, detector)}
        if learned is not None:
            arguments["train"] = learned
        if isinstance(detector, Tulip) and "recipe" in cell.entry.fitting:
            arguments["recipe"] = cell.entry.fitting["recipe"]
        detector.fit(self._validation(), **arguments)

    def _tune(self, cell: Cell, detector: Detector) -> Any:
        if not (detector.search or isinstance(detector, Tulip)):
            return None  # nothing to choose
        if cell.tune != "ood":
            return "pseudo" if cell.tune == "pseudo" else None
        if "ood_val" not in self._parts:
            raise InputError(
                "parameters are to be chosen on OOD validation images, which are not there: add "
                "them, or choose on images made from the validation data (--tune pseudo)"
            )
        if self._ood is None:
            images = unlabelled_batches(self._parts["ood_val"], self._preprocess, self._workers)
            self._ood = collect_rows(images, labelled=False, limit=OOD_INPUTS)
        return self._ood

    def _validation(self) -> Held:
        """Validation inputs with their base pass, which most methods need and nothing else."""
        if self._held is None:
            self._say("reading validation data")
            data = labelled_batches(self._parts["val"], self._preprocess, self._workers)
            engine = MSP(self._network, batch_size=self._batch_size).engine
            rows = engine.collect(data, Needs.base_pass(), seed=0, memory=_MEMORY)
            self._held = engine.hold(rows, seed=0)
        return self._held

    def _keep(self, cell: Cell, detector: Detector) -> Detector:
        """Note what was fitted; a kill from here on does not lose it."""
        assert detector.threshold is not None
        report = detector.report()
        with contextlib.suppress(InputError, TypeError):
            detector.save(self._folder.detector_file(cell.key))
        self._folder.write_cell(
            cell.key,
            {
                **self._about,
                "method": str(cell.entry),
                "track": cell.track,
                "noise_seed": cell.noise_seed,
                "tune": cell.tune,
                "parameters": parameters_of(detector),
                "n_val": report.facts["n_validation"],
                "n_train": report.facts.get("n_train", 0) if cell.track == "train" else 0,
                "threshold": asdict(detector.threshold),
                "findings": [str(finding) for finding in report.findings],
            },
        )
        return detector

    def _load(self, cell: Cell) -> Detector | None:
        path = self._folder.detector_file(cell.key)
        noted = self._folder.cell(cell.key)
        if noted is None or "threshold" not in noted or not path.is_file():
            return None
        try:
            return load(path, self._network, batch_size=self._batch_size)  # type: ignore[arg-type]
        except (TulipError, FileFormatError):  # another machine, an ablation: fit it again
            return None

    @contextlib.contextmanager
    def _guarded(self, cell: Cell) -> Iterator[None]:
        try:
            yield
        except TulipError as error:  # it will be refused next time too
            reason = " ".join(str(error).split())
            self._folder.write_cell(
                cell.key,
                {
                    **self._about,
                    "method": str(cell.entry),
                    "track": cell.track,
                    "noise_seed": cell.noise_seed,
                    "skipped": reason,
                },
            )
        except Exception as error:
            self.failed[cell.key] = kind_and_text(error)

    # ----------------------------------------------------------------------- train

    def _fit_on_training_data(self, cells: Sequence[Cell]) -> dict[str, Detector]:
        """One reading of the training data for all cells that learn from it."""
        by_key = {cell.key: cell for cell in cells}
        engine = MSP(self._network, batch_size=self._batch_size).engine
        lessons = Lessons(engine, lambda key: self._guarded(by_key[key]))
        detectors: dict[str, Detector] = {}
        for cell in cells:
            with self._guarded(cell):
                if "train" not in self._parts:
                    raise InputError("there are no training images in the data folder")
                detectors[cell.key] = self._make(cell)
                lessons.enrol(cell.key, detectors[cell.key])
        if lessons.measure_more:
            lessons.try_measures(self._validation().rows.first(4))
        if not lessons:
            return {}
        self._read_training_data(lessons, engine)
        found: dict[str, Detector] = {}
        for cell in cells:
            if cell.key in lessons:
                with self._guarded(cell):
                    self._say(f"fitting {cell.entry} on {lessons.n:,} training images")
                    self._fit(cell, detectors[cell.key], lessons.learned(cell.key))
                    found[cell.key] = self._keep(cell, detectors[cell.key])
        return found

    def _read_training_data(self, lessons: Lessons, engine: Engine) -> None:
        engine.take_model()
        train = self._parts["train"]
        for n in lessons.read(labelled_batches(train, self._preprocess, self._workers)):
            self._say(f"reading training data: {n:,} of {len(train):,}")
