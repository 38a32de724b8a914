"""Are images prepared for networks by name as the networks' own libraries do it?

    make evidence-networks PYTHON=…   # a Python with torch, torchvision, timm and transformers

Each network is opened by its spec, with random weights; a photograph is prepared by what the spec
says and by the library's own transform, and goes through the network. Then the same comparison,
without the networks, for every weights of torchvision's classifiers and every pretrained
configuration of timm's. `gap` is the mean difference in normalised units, `largest` the largest.

transformers rounds half of the margin around a centre crop down, torchvision and timm to the
nearest even number. So that this shows whatever the sizes are, every network is given the
photograph in four widths, each about one column less when resized; `gap` is the largest of four.

The photograph is one of those that come with scikit-learn; --photo names another. Writes
result.json beside this file; `held` is false, and the exit status 1, if any gap is above the
tolerance, or a network is refused (or is not) against expectation.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from candidates import (
    Candidate,
    hf_candidates,
    timm_candidates,
    torchvision_candidates,
)
from libraries import check_installed, import_torchvision
from PIL import Image

from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import ModelError
from tulip_ood.models.networks import NETWORKS
from tulip_ood.models.spec import load_model
from tulip_ood.models.timm_zoo import data_preprocess
from tulip_ood.models.torchvision_zoo import weights_preprocess

TOLERANCE = 1e-2
GOOD = ("same", "rightly refused")
WIDTHS = 4
LIBRARIES = ("torchvision", "timm", "transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photo", type=Path, help="a photograph; default: scikit-learn's")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result.json"))
    options = parser.parse_args()
    check_installed(LIBRARIES, "evidence-networks")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    import_torchvision()  # timm and transformers import it, too
    path = options.photo or sample_photo()
    photo = Image.open(path).convert("RGB")
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        for candidates in (
            torchvision_candidates(),
            timm_candidates(),
            hf_candidates(Path(folder)),
        ):
            for candidate in candidates:
                entries.append(examine(candidate, photo, folder))
                print(json.dumps(entries[-1], ensure_ascii=False), flush=True)
    everywhere = {
        "torchvision weights": every_torchvision(photo),
        "timm configurations": every_timm(photo),
    }
    table = {name: paper_network(spec, photo) for name, spec in NETWORKS.items()}
    held = (
        all(e["outcome"] in GOOD for e in entries)
        and all(e["largest_gap"] <= TOLERANCE for e in everywhere.values())
        and all(e["gap"] <= TOLERANCE for e in table.values())
    )
    result = {
        "versions": versions(),
        "photo": f"{Path(path).name}, {photo.width} × {photo.height}",
        "tolerance": TOLERANCE,
        "held": held,
        "within_tolerance": f"{sum('gap' in e and e['gap'] <= TOLERANCE for e in entries)} of "
        f"{sum('gap' in e for e in entries)} that are opened",
        "outcomes": dict(Counter(e["outcome"] for e in entries)),
        "seconds": round(time.perf_counter() - start),
        "everywhere": everywhere,
        "paper": table,
        "networks": entries,
    }
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(
        json.dumps(
            {
                k: result[k]
                for k in (
                    "held",
                    "within_tolerance",
                    "outcomes",
                    "seconds",
                    "everywhere",
                    "paper",
                )
            },
            indent=1,
        )
    )
    sys.exit(0 if held else 1)


def sample_photo() -> Path:
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        sys.exit("scikit-learn is not installed: name a photograph with --photo")
    return Path(found.origin).parent / "datasets" / "images" / "china.jpg"


def examine(candidate: Candidate, photo: Image.Image, folder: str) -> dict[str, Any]:
    """One network: is it opened, is the photograph the same, does it go through?"""
    shown = candidate.spec.replace(f"{folder}/", "")
    try:
        loaded = load_model(candidate.spec)
    except ModelError as error:
        right = bool(candidate.refused) and "cannot be repeated here" in str(error)
        said = str(error).replace(f"{folder}/", "")
        outcome = "rightly refused" if right else "REFUSED"
        return {"spec": shown, "outcome": outcome, "expected": candidate.refused, "said": said}
    assert loaded.preprocess is not None
    ours = prepared(loaded.preprocess, photo)
    gaps = [
        difference(prepared(loaded.preprocess, p), candidate.theirs(p)) for p in narrowed(photo)
    ]
    worst = {name: max(gap[name] for gap in gaps) for name in ("gap", "largest")}
    with torch.no_grad():
        returned = loaded.module(ours[None])
    logits = getattr(returned, "logits", returned)
    fine = bool(logits.isfinite().all()) and not candidate.refused
    outcome = "same" if fine and worst["gap"] <= TOLERANCE else "DIFFERENT"
    return {
        "spec": shown,
        "outcome": outcome,
        **worst,
        "outputs": logits.shape[1],
        "classes": None if loaded.classes is None else list(loaded.classes[:2]),
        "preprocess": loaded.preprocess.to_json(),
    }


def prepared(preprocess: Preprocess, photo: Image.Image) -> torch.Tensor:
    return preprocess.normalise(preprocess.pixels(np.asarray(photo))[None])[0]


def narrowed(photo: Image.Image) -> list[Image.Image]:
    """The photograph so that, resized, it is as wide as before and a few columns less."""
    steps = [round(i * photo.height / 256) for i in range(WIDTHS)]
    return [photo.crop((0, 0, photo.width - step, photo.height)) for step in steps]


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> dict[str, float]:
    if ours.shape != theirs.shape:
        return {"gap": float("inf"), "largest": float("inf")}
    gap = (ours - theirs.float()).abs()
    return {"gap": float(f"{gap.mean():.2g}"), "largest": float(f"{gap.max():.2g}")}


def every_torchvision(photo: Image.Image) -> dict[str, Any]:
    import torchvision.models as models

    weights = [w for name in models.list_models(module=models) for w in each(models, name)]
    return summary(
        [lambda w=w: (weights_preprocess(w, str(w)), w.transforms()) for w in weights], photo
    )


def each(models: Any, name: str) -> list[Any]:
    return list(models.get_model_weights(name))


def every_timm(photo: Image.Image) -> dict[str, Any]:
    import timm

    configs = {}
    for name in timm.list_pretrained():
        config = timm.data.resolve_data_config(
            pretrained_cfg=timm.get_pretrained_cfg(name).to_dict()
        )
        configs.setdefault(json.dumps(config, sort_keys=True), []).append(name)
    pairs = []
    for text, names in configs.items():
        config = json.loads(text)
        pair = lambda c=config, n=names[0]: (  # noqa: E731
            data_preprocess(c, n),
            timm.data.create_transform(**c),
        )
        pairs += [(pair, len(names))]
    return summary([p for p, _ in pairs], photo, [n for _, n in pairs])


def summary(
    pairs: list[Callable[[], tuple[Preprocess, Any]]],
    photo: Image.Image,
    times: list[int] | None = None,
) -> dict[str, Any]:
    """How many are repeated, how well, and why the others are refused."""
    same, gaps, refused = 0, [0.0], Counter[str]()
    for pair, n in zip(pairs, times or [1] * len(pairs), strict=True):
        try:
            preprocess, theirs = pair()
        except ModelError as error:
            refused[str(error).partition("here: ")[2].partition(". Prepare")[0]] += n
            continue
        gaps.append(difference(prepared(preprocess, photo), theirs(photo))["gap"])
        same += n
    return {"prepared": same, "largest_gap": max(gaps), "refused": dict(refused)}


def paper_network(spec: str, photo: Image.Image) -> dict[str, Any]:
    """A column of the paper's table: the weights' own transform, without the weights."""
    import torchvision.models as models

    name, _, wanted = spec.removeprefix("torchvision:").partition("@")
    weights = models.get_model_weights(name)[wanted]
    preprocess = weights_preprocess(weights, spec)
    gaps = difference(prepared(preprocess, photo), weights.transforms()(photo))
    top = next(iter(weights.meta["_metrics"].values()))["acc@1"]
    sizes = f"{preprocess.resize} / {preprocess.crop} {preprocess.interpolation}"
    return {"spec": spec, "accuracy": top, "sizes": sizes, **gaps}


def versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in ("torch", "pillow", *LIBRARIES)}
    return {"python": platform.python_version(), **found}


if __name__ == "__main__":
    main()
