"""Can this network's answer be trusted on this input?

import tulip_ood as tulip

detector = tulip.Tulip(model)            # any nn.Module that returns logits
detector.fit(val_loader)                 # labelled in-distribution data, not training data
result = detector.predict(x)             # .label .probs .score .p_value .accepted .reason
"""

import importlib
from typing import TYPE_CHECKING, Any

from tulip_ood.errors import TulipError, TulipWarning
from tulip_ood.version import __version__

if TYPE_CHECKING:
    from tulip_ood import detectors, export
    from tulip_ood.benchmark.comparing import compare
    from tulip_ood.detectors.auto import Auto
    from tulip_ood.detectors.saving import load
    from tulip_ood.detectors.tulip import Tulip
    from tulip_ood.serving.gate import Gate

__all__ = [
    "Auto",
    "Gate",
    "Tulip",
    "TulipError",
    "TulipWarning",
    "__version__",
    "compare",
    "detectors",
    "export",
    "load",
]

# Imported when first asked for: PyTorch takes a second to load, `tulip --help` needs none of it.
_LAZY = {
    "compare": "tulip_ood.benchmark.comparing",
    "Auto": "tulip_ood.detectors.auto",
    "Gate": "tulip_ood.serving.gate",
    "Tulip": "tulip_ood.detectors.tulip",
    "load": "tulip_ood.detectors.saving",
    "detectors": "tulip_ood.detectors",
    "export": "tulip_ood.export",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    return module if _LAZY[name].endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
