"""A fitted detector in one file that runs without this library: `tulip_ood.export(detector, path)`.

`tulip_ood.export` is this room and, called, what it is for; `tulip_ood.export.load` opens such a
file again.
"""

import sys
from types import ModuleType
from typing import Any

from tulip_ood.export.artefact import Artefact, load
from tulip_ood.export.exportable import EXPORTABLE
from tulip_ood.export.parity import Parity, ParityError
from tulip_ood.export.plan import Plan
from tulip_ood.export.writing import Written, export_detector

__all__ = [
    "EXPORTABLE",
    "Artefact",
    "Parity",
    "ParityError",
    "Plan",
    "Written",
    "export_detector",
    "load",
]


class _Room(ModuleType):
    """A module that can be called, as Python's data model allows."""

    def __call__(self, *args: Any, **kwargs: Any) -> Written:
        """See `export_detector`."""
        return export_detector(*args, **kwargs)


sys.modules[__name__].__class__ = _Room
