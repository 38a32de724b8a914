"""Other libraries that evidence is made with: are they there, and can they be imported?"""

import importlib.util
import sys
from collections.abc import Iterable
from typing import Any

import torch

_SCHEMAS: torch.library.Library | None = None  # must live as long as the operators


def check_installed(names: Iterable[str], target: str) -> None:
    """Stop with what to do if one is missing; `target` is the one of the Makefile."""
    lacking = [name for name in names if importlib.util.find_spec(name) is None]
    if lacking:
        sys.exit(
            f"{', '.join(lacking)}: not installed. Install with\n"
            f"    {sys.executable} -m pip install {' '.join(lacking)}\n"
            f"or name a Python that has them: make {target} PYTHON=…"
        )


def import_torchvision() -> Any:
    """Also where its compiled operators do not fit this torch: no classifier needs them."""
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        global _SCHEMAS
        _SCHEMAS = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            _SCHEMAS.define(
                f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        import torchvision
    return torchvision
