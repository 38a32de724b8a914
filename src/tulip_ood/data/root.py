"""A benchmark root: a folder that holds the protocol's sets, in one of two layouts or in both.

OpenOOD's own: `benchmark_imglist/<id set>/*.txt` with `images_classic/` and `images_largescale/`,
there or in `data/`. Or `sets.json`, which names parquet and npz files; what it names goes first.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from tulip_ood.data.benchmark_part import Part
from tulip_ood.data.imagelist import ImageList, open_list
from tulip_ood.data.opening import open_sources
from tulip_ood.data.protocol import PROTOCOLS, Protocol, protocol_of
from tulip_ood.data.row_names import row_names
from tulip_ood.data.selection import Selected
from tulip_ood.data.sets_json import SETS_FILE, SetFile, read_sets
from tulip_ood.data.source import Label, Source
from tulip_ood.data.splitting import balanced_tenth
from tulip_ood.errors import DataError
from tulip_ood.wording import counted

__all__ = ["NotThereError", "Part", "Root"]

_LISTS = "benchmark_imglist"
_TRIED = 32  # of the files that a list names, before it is believed that there are any


class NotThereError(DataError):
    """A part of the benchmark is not in the root: neither damaged nor wrong, just absent.

    Example:
        >>> issubclass(NotThereError, DataError)
        True
    """


@dataclass(frozen=True)
class _Asked:
    """What a role means: a split of a set, and the list that OpenOOD has for it."""

    protocol: Protocol
    role: str
    name: str
    split: str
    list_name: str
    images: str
    labelled: bool
    expected: int | None

    @property
    def is_id(self) -> bool:
        return self.name == self.protocol.id_set

    @property
    def list_file(self) -> str:
        return f"{self.split}_{self.list_name}.txt"


def _asked(id_set: str, role: str) -> _Asked:
    protocol = protocol_of(id_set)
    if role in ("train", "val", "test"):
        count = {"train": protocol.train, "val": protocol.val, "test": protocol.test}[role]
        return _Asked(protocol, role, id_set, role, id_set, protocol.images, True, count)
    held, split = (
        (protocol.ood_val, "val") if role == "ood_val" else (protocol.set_of(role), "test")
    )
    return _Asked(
        protocol, role, held.name, split, held.list_name, held.images,
        labelled=role != "ood_val" and held.group == "shifted", expected=held.count,
    )  # fmt: skip


class Root:
    """A folder that holds the protocol's sets; made by `Root.open`.

    Attributes:
        path: The folder.
        sets: What `sets.json` says.
        listed: The folder with OpenOOD's own layout; None if there is none.

    Example:
        >>> import json, pathlib, tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     x, y = np.zeros((20, 32, 32, 3), np.uint8), np.arange(20) % 2
        ...     np.savez(pathlib.Path(folder, "ten.npz"), x=x, y=y)
        ...     sets = {"cifar10": {"test": {"file": "ten.npz", "list": "none"}}}
        ...     _ = pathlib.Path(folder, "sets.json").write_text(json.dumps(sets))
        ...     root = Root.open(folder)
        ...     len(root.part("cifar10", "val")), len(root.part("cifar10", "test"))
        (2, 18)
    """

    def __init__(
        self, path: Path, sets: dict[str, dict[str, SetFile]], listed: Path | None
    ) -> None:
        self.path, self.sets, self.listed = path, sets, listed
        # Several roles come from one file, and an npz file is large.
        self._opened: WeakValueDictionary[str, Source] = WeakValueDictionary()

    @staticmethod
    def open(path: str | os.PathLike[str]) -> "Root":
        """Look at a folder; refuses one that has neither layout.

        Example:
            >>> Root.open("/no/such/folder")
            Traceback (most recent call last):
            ...
            tulip_ood.errors.DataError: there is no folder /no/such/folder
        """
        folder = Path(path)
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder}")
        listed = next((p for p in (folder, folder / "data") if (p / _LISTS).is_dir()), None)
        sets = read_sets(folder / SETS_FILE) if (folder / SETS_FILE).exists() else {}
        if listed is None and not (folder / SETS_FILE).exists():
            raise DataError(
                f"{folder} is no benchmark root: it has neither {SETS_FILE} nor {_LISTS}/ (nor "
                f"data/{_LISTS}/)"
            )
        return Root(folder, sets, listed)

    def part(self, id_set: str, role: str) -> Part:
        """The rows that play a role for an ID set.

        Args:
            id_set: "cifar10", "cifar100", "imagenet200" or "imagenet".
            role: "train", "val", "test", "ood_val", or the name of one of the protocol's sets.

        Raises:
            NotThereError: It is not in the root; says what was looked for.
            DataError: It cannot be used as it is.
        """
        asked = _asked(id_set, role)
        entry, own = self._entry(asked)
        if entry is not None:
            return self._from_file(asked, entry, own=own)
        if self.listed is not None:
            return self._from_list(asked, self.listed)
        raise NotThereError(
            f"{self._what(asked)} is not there: {self.path / SETS_FILE} has no {asked.split} split"
        )

    def has(self, id_set: str, role: str) -> bool:
        """Whether `part` would give it."""
        try:
            self.part(id_set, role)
        except DataError:
            return False
        return True

    def parts(self, id_set: str) -> Iterator[Part]:
        """All that is there for an ID set, in the protocol's order."""
        for role in protocol_of(id_set).roles:
            try:
                yield self.part(id_set, role)
            except DataError:
                continue

    def id_sets(self) -> tuple[str, ...]:
        """The ID sets with validation and test data and something OOD to judge on."""
        return tuple(name for name in PROTOCOLS if self._judges(name))

    def _judges(self, id_set: str) -> bool:
        protocol = protocol_of(id_set)
        outside = [each.name for each in protocol.sets if each.group != "shifted"]
        return all(self.has(id_set, role) for role in ("val", "test")) and any(
            self.has(id_set, name) for name in outside
        )

    @staticmethod
    def _what(asked: _Asked) -> str:
        for_id = "" if asked.is_id else f" for {asked.protocol.id_set}"
        return f"{asked.name} ({asked.split}){for_id}"

    # --------------------------------------------------------- OpenOOD's own layout

    def _from_list(self, asked: _Asked, base: Path) -> Part:
        file = base / _LISTS / asked.protocol.id_set / asked.list_file
        if not file.is_file():
            raise NotThereError(f"{self._what(asked)} is not there: there is no list {file}")
        found = open_list(str(file), str(base / asked.images))
        paths = [row.path for row, _ in found.read()]
        step = max(1, len(paths) // _TRIED)
        if not any(os.path.exists(path) for path in paths[::step]):
            raise NotThereError(
                f"{self._what(asked)} is not there: {file} names {counted(len(paths), 'image')}, "
                f"but there is no {paths[0]}"
            )
        source: Source = found
        if asked.labelled:
            _check_labels(asked, list(found.labels()), str(file))
        else:
            source = ImageList(found.name, paths, [None] * len(paths))
        return Part(asked.name, asked.role, source, asked.expected)

    # ----------------------------------------------------------------- sets.json

    def _entry(self, asked: _Asked) -> tuple[SetFile | None, bool]:
        """The file that a role comes from, and whether it holds this split alone."""
        splits = self.sets.get(asked.name, {})
        if asked.split in splits:
            shared = asked.role == "test" and "val" not in splits
            return splits[asked.split], not shared
        # Validation rows may be chosen from the file of the test split.
        test = splits.get("test")
        if asked.split == "val" and test is not None and (asked.is_id or test.listed):
            return test, False
        return None, False

    def _from_file(self, asked: _Asked, entry: SetFile, *, own: bool) -> Part:
        file = str(self.path / entry.file)
        if not os.path.isfile(file):
            raise NotThereError(f"{self._what(asked)} is not there: there is no file {file}")
        source = self._open_file(file)
        labels: list[Label] = list(source.labels()) if asked.labelled else [None] * len(source)
        notes: tuple[str, ...] = ()
        if entry.listed:
            rows, labels, notes = self._listed_rows(asked, entry, file, labels)
        else:
            rows = list(range(len(source)))
            if asked.is_id and not own:
                _check_labels(asked, labels, file)
                val, test = balanced_tenth([int(label) for label in labels])  # type: ignore[arg-type]
                rows = val if asked.split == "val" else test
                labels = [labels[row] for row in rows]
                notes = ("split here: a seeded tenth of every class is validation data",)
        if asked.labelled:
            _check_labels(asked, labels, file)
        if not rows:
            raise DataError(f"{self._what(asked)}: no row of {file} is left for it")
        chosen = Selected(source, rows, labels)
        return Part(asked.name, asked.role, chosen, asked.expected, entry.stand_in, notes)

    def _open_file(self, file: str) -> Source:
        found = self._opened.get(file)
        if found is None:
            found = self._opened[file] = open_sources([file])
        return found

    def _listed_rows(
        self, asked: _Asked, entry: SetFile, file: str, labels: list[Label]
    ) -> tuple[list[int], list[Label], tuple[str, ...]]:
        """The rows that a list names, in the file's order, with the list's labels."""
        lines = open_list(self._list_of(asked, entry), root="")
        wanted = {row.path: row.label for row, _ in lines.read()}
        names = row_names(file)
        if len(names) != len(labels):
            raise DataError(
                f"{file} has {len(labels):,} rows but {len(names):,} paths: every row needs one"
            )
        found: dict[str, int] = {}
        for row, name in enumerate(names):
            if name in wanted:
                found.setdefault(name, row)
        if not found:
            first = next((name for name in names if name is not None), None)
            raise DataError(
                f"{self._what(asked)}: {lines.name} names {counted(len(wanted), 'image')}, but "
                f"none is in {file}; it names for instance {next(iter(wanted))}, the file {first}"
            )
        notes = []
        lost = len(wanted) - len(found)
        if lost:
            notes.append(f"{lost:,} of {len(wanted):,} images in the list are not in the file")
        if not asked.labelled:
            return sorted(found.values()), [None] * len(found), tuple(notes)
        by_list = {row: wanted[name] for name, row in found.items()}
        rows = sorted(by_list)
        chosen = [labels[row] if by_list[row] is None else by_list[row] for row in rows]
        others = sum(
            labels[row] is not None and labels[row] != label
            for row, label in zip(rows, chosen, strict=True)
        )
        if others:
            notes.append(f"list and file differ in {counted(others, 'label')}; the list is used")
        return rows, chosen, tuple(notes)

    def _list_of(self, asked: _Asked, entry: SetFile) -> str:
        id_set = asked.protocol.id_set
        # A set's own folder of lists is meant for its use as the ID set.
        own = entry.lists if asked.is_id and entry.lists is not None else f"imglist/{id_set}"
        places = [self.path / own]
        if self.listed is not None:
            places.append(self.listed / _LISTS / id_set)
        for place in places:
            if (place / asked.list_file).is_file():
                return str(place / asked.list_file)
        raise NotThereError(
            f"{self._what(asked)} is not there: there is no list {places[0] / asked.list_file}; "
            f'get OpenOOD\'s lists, or set "list": "none" in {SETS_FILE} to take all rows'
        )


def _check_labels(asked: _Asked, labels: list[Label], file: str) -> None:
    """ID images need a class of the protocol."""
    classes = asked.protocol.classes
    wrong = [label for label in labels if not isinstance(label, int) or not 0 <= label < classes]
    if wrong:
        raise DataError(
            f"{asked.name} ({asked.split}) has {counted(len(wrong), 'row')} in {file} without a "
            f"class from 0 to {classes - 1} (for instance {wrong[0]}): ID images need their labels"
        )
