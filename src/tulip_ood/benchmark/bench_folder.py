"""The folder of a benchmark: what was fitted, every score, cached passes.

    bench.json                    which sets, with digests of their rows
    cells/KEY.json                one fitted method on one network; KEY hashes all that decides it
    cells/KEY.safetensors         the detector itself, until all of its sets are scored
    scores/NETWORK/SET/*.safetensors   scores of a piece of a set, of several cells
    passes/                       passes by content

Every file appears whole or not at all and is never changed: a run that was killed goes on where it
stopped, and two runs into one folder at worst do the same work twice.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from tulip_ood.data.lock import locked
from tulip_ood.errors import DataError
from tulip_ood.network.files import appear, save_tensors
from tulip_ood.wording import from_json

__all__ = ["BenchFolder"]

FORMAT = "tulip-bench-1"
_PATIENCE = 30.0  # seconds


class BenchFolder:
    """Reads and writes the folder of one benchmark.

    Args:
        path: The folder; made when it is claimed.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as place:
        ...     folder = BenchFolder(Path(place))
        ...     folder.claim({"id_set": "cifar10", "limit": None}, {"svhn": {"digest": "d"}})
        ...     folder.write_scores("net", "svhn", 0, {"cell": {"score": torch.ones(2)}})
        ...     folder.scored("net", "svhn")
        {0: {'cell'}}
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[Path, frozenset[str]] = {}  # files never change

    # ------------------------------------------------------------------- identity

    def claim(
        self,
        identity: Mapping[str, Any],
        sets: Mapping[str, Mapping[str, Any]],
        fitted_on: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Take up the folder for a benchmark, or refuse if another one lives there.

        Args:
            identity: What must be the same for all that is in the folder.
            sets: The sets that are scored, with a `digest` of their rows; new ones may come.
            fitted_on: The same of those that are fitted on, for the tables.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with _waiting(self.path / "bench.json.lock", str(self.path)):
            self._claim(identity, sets, fitted_on or {})

    def _claim(
        self,
        identity: Mapping[str, Any],
        sets: Mapping[str, Mapping[str, Any]],
        fitted_on: Mapping[str, Mapping[str, Any]],
    ) -> None:
        known: dict[str, Any] = {}
        before: dict[str, Any] = {}
        if self._note.exists():
            there = self.about()
            mine = json.loads(json.dumps(identity))
            if there["identity"] != mine:
                differ = [k for k in mine if there["identity"].get(k) != mine[k]]
                raise DataError(
                    f"{self.path} holds another benchmark ({', '.join(differ)} differ): write to "
                    f"another folder"
                )
            known, before = there["sets"], there.get("fitted_on", {})
            gone = sorted(set(known) - set(sets))
            if gone:
                raise DataError(
                    f"{', '.join(gone)} is in {self.path} but not in the data any more: put it "
                    f"back, or write to another folder"
                )
            for name, each in sets.items():
                if name in known and known[name]["digest"] != each["digest"]:
                    raise DataError(
                        f"{self.path} was made with other images of {name}: write to another folder"
                    )
        elif any(self._foreign()):
            raise DataError(f"{self.path} is not empty and no benchmark: write to another folder")
        whole = {
            "format": FORMAT,
            "identity": dict(identity),
            "sets": {**known, **sets},
            "fitted_on": {**before, **fitted_on},
        }
        if not self._note.exists() or self.about() != json.loads(json.dumps(whole)):
            self._write_json(self._note, whole)

    def _foreign(self) -> Iterator[Path]:
        """What lies there, but for what runs write while they begin."""
        return (p for p in self.path.iterdir() if not p.name.endswith((".partial", ".lock")))

    def about(self) -> dict[str, Any]:
        """What `claim` wrote."""
        try:
            found = from_json(self._note.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            absent = isinstance(error, FileNotFoundError | NotADirectoryError)
            why = "there is none in it" if absent else str(error)
            raise DataError(
                f"{self.path} holds no benchmark: {self._note.name}: {why}. Expected a folder of "
                f"`tulip bench --out`"
            ) from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise DataError(f"{self._note} is not of this release's format ({FORMAT})")
        return found

    @property
    def _note(self) -> Path:
        return self.path / "bench.json"

    # ---------------------------------------------------------------------- cells

    def cell(self, key: str) -> dict[str, Any] | None:
        """What is known of a cell, or None."""
        try:
            found = from_json(self._cell(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def cells(self) -> dict[str, dict[str, Any]]:
        """All cells by key, sorted."""
        found = {}
        for path in sorted((self.path / "cells").glob("*.json")):
            cell = self.cell(path.stem)
            if cell is not None:
                found[path.stem] = cell
        return found

    def write_cell(self, key: str, cell: Mapping[str, Any]) -> None:
        """Note a cell; it takes the place of one that answers the same question.

        With other training data, another release or other ways to choose parameters a method has
        another key, and a table has one row for it: the last.
        """
        self._cell(key).parent.mkdir(exist_ok=True)
        self._write_json(self._cell(key), cell)
        for other, known in self.cells().items():
            if other != key and _question(known) == _question(cell):
                self._cell(other).unlink(missing_ok=True)
                self.detector_file(other).unlink(missing_ok=True)

    def note_failure(self, key: str, reason: str) -> None:
        """Remember why a cell could not be finished; it will be tried again."""
        known = self.cell(key)
        if known is not None:
            self._write_json(self._cell(key), {**known, "failed": reason})

    def detector_file(self, key: str) -> Path:
        """Where a cell's detector lies while it is needed."""
        (self.path / "cells").mkdir(exist_ok=True)
        return self.path / "cells" / f"{key}.safetensors"

    def _cell(self, key: str) -> Path:
        return self.path / "cells" / f"{key}.json"

    @staticmethod
    def _write_json(path: Path, value: Mapping[str, Any]) -> None:
        text = json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)
        appear(path, lambda partial: partial.write_text(text + "\n", encoding="utf-8"))

    # --------------------------------------------------------------------- scores

    def write_scores(
        self, network: str, name: str, first: int, columns: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        """Keep what several cells said of a piece of a set that begins at row `first`."""
        if not columns:
            return
        folder = self._place(network, name)
        folder.mkdir(parents=True, exist_ok=True)
        cells = sorted(columns)
        tag = hashlib.sha256(" ".join(cells).encode()).hexdigest()[:12]
        tensors = {f"{c}.{column}": t for c in cells for column, t in columns[c].items()}
        path = folder / f"{first:09d}-{tag}.safetensors"
        save_tensors(path, tensors, {"cells": json.dumps(cells)})

    def scored(self, network: str, name: str) -> dict[int, set[str]]:
        """Which cells have scored which pieces of a set; damaged files do not count."""
        found: dict[int, set[str]] = {}
        for path in self._pieces(network, name):
            cells = self._cells_in(path)
            found.setdefault(int(path.name[:9]), set()).update(cells)
        return found

    def scores(self, network: str, name: str, cells: Iterable[str]) -> dict[str, dict[int, Any]]:
        """Every column of some cells on a set: cell → first row of the piece → column → values."""
        wanted = set(cells)
        found: dict[str, dict[int, dict[str, Tensor]]] = {cell: {} for cell in wanted}
        for path in self._pieces(network, name):
            first = int(path.name[:9])
            here = {cell for cell in self._cells_in(path) & wanted if first not in found[cell]}
            if not here:
                continue
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118
                    cell, _, column = key.partition(".")
                    if cell in here:
                        found[cell].setdefault(first, {})[column] = file.get_tensor(key)
        return found

    def _place(self, network: str, name: str) -> Path:
        return self.path / "scores" / network / name

    def _pieces(self, network: str, name: str) -> list[Path]:
        return sorted(self._place(network, name).glob("*.safetensors"))

    def _cells_in(self, path: Path) -> frozenset[str]:
        if path not in self._known:
            try:
                with safe_open(path, framework="pt") as file:
                    cells = from_json((file.metadata() or {})["cells"])
                self._known[path] = frozenset(cells)
            except FileNotFoundError:
                return frozenset()
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error}") from error
            except (SafetensorError, ValueError, KeyError, TypeError):  # it will be made again
                return frozenset()
        return self._known[path]


def _question(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(cell.get(name) for name in ("network", "method", "track", "noise_seed"))


@contextmanager
def _waiting(path: Path, what: str) -> Iterator[None]:
    """Hold a lock for the moment that a claim takes; another run's moment is waited for."""
    ends = time.monotonic() + _PATIENCE
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(str(path), what))
                break
            except DataError:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.02)
        yield
