"""What a benchmark or comparison is asked to run: a method with its settings, in one word.

`knn`, `tulip+scale`, `tulip&knn`, `tulip[recipe=paper,tune=ood]`, `noise[gamma=2]`: what stands in
brackets goes to the detector's constructor, but `recipe` and `tune` go to its `fit`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tulip_ood.benchmark.ablations import ABLATIONS
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.registry import METHODS, class_of, make
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import InputError, TulipError
from tulip_ood.network.network import Network

__all__ = ["COMPOSITIONS", "Entry", "parse_entries"]

COMPOSITIONS = ("tulip+react", "tulip+scale", "tulip&knn")
"""What "all" tries beside the single methods."""
_FIT = ("recipe", "tune")
_TUNES = ("none", "ood", "pseudo")
_COMMA = re.compile(r",(?![^{]*\})")  # not those of a mapping: layer_scale={"fc.*":0.5,"bn*":0}
_WORD = re.compile(r"^(?P<method>[^\[\]]+)(?:\[(?P<settings>[^\[\]]*)\])?$")


@dataclass(frozen=True)
class Entry:
    """A method with its settings.

    Attributes:
        method: A method, composition, sum, or one of the ablations.
        settings: For the constructor.
        fitting: `recipe` and `tune`, where they were given.

    Example:
        >>> entry = Entry.parse("tulip[recipe=paper, lam=0]")
        >>> entry.settings, entry.fitting, str(entry)
        ({'lam': 0}, {'recipe': 'paper'}, 'tulip[lam=0,recipe=paper]')
    """

    method: str
    settings: Mapping[str, Any]
    fitting: Mapping[str, str]

    @staticmethod
    def parse(word: str) -> "Entry":
        """The entry that a word stands for."""
        match = _WORD.match(word.strip())
        if match is None:
            raise InputError(
                f"{word!r} is no method: expected NAME or NAME[setting=value,…], for instance "
                f"tulip[recipe=paper]"
            )
        method = match["method"].strip()
        if method not in ABLATIONS:
            class_of(method)  # refuses what is not known
        settings: dict[str, Any] = {}
        for part in filter(None, _COMMA.split(match["settings"] or "")):
            name, is_there, value = (piece.strip() for piece in part.partition("="))
            if not (is_there and name and value):
                raise InputError(f"{word}: {part!r} is no setting; expected name=value")
            if name in settings:
                raise InputError(f"{word}: {name} is given twice")
            settings[name] = _value(value)
        fitting = {name: str(settings.pop(name)) for name in _FIT if name in settings}
        if fitting.get("tune", "none") not in _TUNES:
            raise InputError(f"{word}: tune must be one of {', '.join(_TUNES)}")
        if "recipe" in fitting and not issubclass(_class_of(method), Tulip):
            raise InputError(f"{word}: only TULiP is fitted by a recipe")
        return Entry(method, settings, fitting)

    def __str__(self) -> str:
        given = {**self.settings, **self.fitting}
        inner = ",".join(f"{name}={_shown(given[name])}" for name in sorted(given))
        return f"{self.method}[{inner}]" if inner else self.method

    @property
    def detector(self) -> type[Detector]:
        """The class that it makes."""
        return _class_of(self.method)

    @property
    def is_tulip(self) -> bool:
        """Whether TULiP is in it: then nothing is chosen on OOD data unless that is asked for."""
        return any(part.partition("+")[0].startswith("tulip") for part in self.method.split("&"))

    @property
    def searches(self) -> bool:
        """Whether it has parameters that can be chosen on data."""
        if "&" in self.method:
            return False  # a sum takes its parts as they come
        kind, shaped = self.detector, "+" in self.method
        family = getattr(kind, "family", None)
        return bool(kind.search) or shaped or family is not None or issubclass(kind, Tulip)

    def tuned_on(self, default: str) -> str:
        """Which inputs parameters are chosen on: "none", "ood" or "pseudo"."""
        return self.fitting.get("tune", "none" if self.is_tulip else default)

    def make(self, network: Network, common: Mapping[str, Any]) -> Detector:
        """The detector, not fitted yet."""
        arguments = {**common, **self.settings}
        try:
            if self.method in ABLATIONS:
                made: Detector = ABLATIONS[self.method](network, **arguments)
            else:
                made = make(self.method, network, **arguments)
        except TypeError as error:
            if isinstance(error, TulipError):
                raise
            raise InputError(f"settings of {self}: {error}") from error
        # What was set is not searched, whatever the others are tuned on.
        fixed = {name: (value,) for name, value in self.settings.items() if name in made.search}
        if fixed:
            made.search = {**made.search, **fixed}
        return made

    def check_settings(self, network: Network) -> None:
        """Refuse settings that the method does not have, or not so, before anything is done."""
        if not self.settings:
            return
        try:
            self.make(network, {})
        except TulipError as error:
            told = str(error).startswith("settings of")
            try:
                Entry(self.method, {}, {}).make(network, {})
            except TulipError:
                if not told:
                    return  # what a method lacks here is noted when its turn comes
            raise InputError(str(error) if told else f"settings of {self}: {error}") from error


def parse_entries(words: str | Sequence[str]) -> list[Entry]:
    """The entries that `--methods` asks for: "all", or words with commas between them.

    Example:
        >>> [str(entry) for entry in parse_entries("msp,tulip[recipe=paper,lam=0],knn")]
        ['msp', 'tulip[lam=0,recipe=paper]', 'knn']
        >>> len(parse_entries("all")) > 30
        True
    """
    if isinstance(words, str):
        words = re.split(r",(?![^\[]*\])", words)  # not the commas inside brackets
    asked: list[str] = []
    for word in words:
        asked += [*METHODS, *COMPOSITIONS] if word.strip() == "all" else [word]
    entries = {str(entry): entry for entry in map(Entry.parse, filter(str.strip, asked))}
    if not entries:
        raise InputError("no methods were named: give 'all', or names with commas")
    return list(entries.values())


def _class_of(method: str) -> type[Detector]:
    return ABLATIONS[method] if method in ABLATIONS else class_of(method)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
