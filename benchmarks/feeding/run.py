"""Images per second from JPEG files, and what TULiP costs beside EBO when files are scored.

    make evidence-feeding                                   # decoding alone, 0, 1 and 2 workers
    python benchmarks/feeding/run.py --score --workers 0 4 16 --images 20480     # with a GPU

Needs torch, numpy, safetensors and Pillow alone. 500 × 375 JPEGs are synthesised into a temporary
folder (or --folder, which is kept) and read again and again, so that they come from memory, not
from a disk. Decoding alone is timed for threads and processes. With --score, a ResNet-50 with
random weights (times do not depend on them) is scored at 224 px in one program, by turns: EBO,
TULiP in the last stage, TULiP with all parameters, M 10; from files, and with the inputs in place.
Writes benchmarks/feeding/result.json, or --out.
"""

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor

import tulip_ood
from tulip_ood.data.batches import batches
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.source import ImageFiles
from tulip_ood.data.workers import default_workers
from tulip_ood.models.resnet224 import ResNet50

SIZE = (500, 375)
PREPROCESS = Preprocess(256, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
DIFFERENT = 512  # pictures; more rows read them again
FITTED_ON = 64


def synthesise(folder: Path) -> list[str]:
    """Pictures with coarse shapes and fine grain, some 65 kB each as photographs have."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:05d}.jpg" for i in range(DIFFERENT)]
    draw = np.random.default_rng(0)
    grain = draw.integers(-12, 12, (SIZE[1], SIZE[0], 3))
    for path in paths:
        if path.exists():
            continue
        coarse = Image.fromarray(draw.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(SIZE, Image.Resampling.BICUBIC)).astype(int)
        shifted = np.roll(grain, draw.integers(0, 300, 2), axis=(0, 1))
        image = Image.fromarray((smooth + shifted).clip(0, 255).astype(np.uint8))
        image.save(path, quality=90)
    return [str(path) for path in paths]


def source_of(paths: list[str], n: int) -> ImageFiles:
    return ImageFiles("jpegs", list(itertools.islice(itertools.cycle(paths), n)), [None] * n)


def feed(
    source: ImageFiles, options: Any, workers: int, processes: bool | None, device: torch.device
) -> Iterator[Tensor]:
    for batch in batches(
        source,
        PREPROCESS,
        batch_size=options.batch_size,
        workers=workers,
        processes=processes,
        device=device,
    ):
        assert batch.inputs is not None
        assert not batch.errors
        yield batch.inputs


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def processor_seconds() -> float:
    """Of this process and of those that it has ended: what a busy machine does not change."""
    return sum(os.times()[:4])


def decoding(options: Any, paths: list[str], device: torch.device) -> list[dict[str, Any]]:
    """Images per second without any network."""
    rows = []
    for workers in options.workers:
        for processes in (False, True) if workers else (False,):
            # As many as a few seconds take, whoever decodes.
            n = max(256, options.images * max(workers, 1) // max(options.workers))
            times = []
            before = processor_seconds()
            for _ in range(options.repeats):
                start = time.perf_counter()
                seen = sum(
                    len(x) for x in feed(source_of(paths, n), options, workers, processes, device)
                )
                wait(device)
                times.append(time.perf_counter() - start)
                assert seen == n
            rows.append(
                {
                    "workers": workers,
                    "kind": "processes" if processes else "threads" if workers else "none",
                    "images": n,
                    "images_per_second": round(n / statistics.median(times), 1),
                    "best_images_per_second": round(n / min(times), 1),
                    "processor_ms_an_image": round(
                        1000 * (processor_seconds() - before) / (n * options.repeats), 2
                    ),
                }
            )
            print(rows[-1], flush=True)
    return rows


def fitted(model: torch.nn.Module, x: Tensor, precision: str, batch_size: int) -> dict[str, Any]:
    """Detectors with fixed settings, labelled by the network itself."""
    with torch.no_grad():
        y = torch.cat([model(part).argmax(1) for part in x.split(64)]).cpu()
    data = [(x.cpu(), y)]
    common = {"precision": precision, "batch_size": batch_size}
    fixed = {"epsilon": 0.002, "j": 1.0, "n_samples": 10, **common}
    found = {"ebo": tulip_ood.detectors.Energy(model, **common).fit(data)}
    for scope in ("last-stage", "all"):
        detector = tulip_ood.Tulip(model, scope=scope, **fixed)
        found[f"tulip, {scope}"] = detector.fit(data, recipe="balanced")
    return found


def scoring(options: Any, paths: list[str], device: torch.device) -> list[dict[str, Any]]:
    """Wall-clock of every detector, by turns: from files, and with the inputs in place."""
    torch.manual_seed(0)
    model = ResNet50(1000).eval().to(device)
    few = source_of(paths, max(FITTED_ON, options.batch_size))
    some = torch.cat(list(feed(few, options, 0, None, device)))
    first = some[: options.batch_size]
    rows = []
    for precision in options.precisions:
        detectors = fitted(model, some[:FITTED_ON], precision, options.batch_size)
        times: dict[str, dict[str, list[float]]] = {
            name: {"files": [], "in_place": []} for name in detectors
        }
        count = max(1, options.images // options.batch_size)
        for turn in range(options.repeats + 1):
            for name, detector in detectors.items():
                start = time.perf_counter()
                for x in feed(source_of(paths, options.images), options, max(options.workers),
                              None, device):  # fmt: skip
                    detector.score(x)
                wait(device)
                from_files = time.perf_counter() - start
                start = time.perf_counter()
                for _ in range(count):
                    detector.score(first)
                wait(device)
                if turn:  # the first warms everything up
                    times[name]["files"].append(from_files)
                    times[name]["in_place"].append(time.perf_counter() - start)
        reference = statistics.median(times["ebo"]["files"])
        for name, taken in times.items():
            seconds = statistics.median(taken["files"])
            each = statistics.median(taken["in_place"]) / count
            rows.append(
                {
                    "detector": name,
                    "precision": precision,
                    "images": options.images,
                    "seconds_from_files": round(seconds, 3),
                    "images_per_second_from_files": round(options.images / seconds, 1),
                    "ratio_to_ebo_from_files": round(seconds / reference, 3),
                    "ms_a_batch_in_place": round(1000 * each, 2),
                    "all_seconds_from_files": [round(t, 3) for t in taken["files"]],
                }
            )
            print(rows[-1], flush=True)
    return rows


def same_bits(paths: list[str], options: Any, device: torch.device) -> bool:
    """Whether images prepared on the device are those prepared on the CPU, to the last bit."""
    few = source_of(paths, 64)
    here = torch.cat(list(feed(few, options, 0, None, torch.device("cpu"))))
    there = torch.cat([x.cpu() for x in feed(few, options, 2, None, device)])
    return torch.equal(here, there)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=2048, help="rows for the most workers")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--score", action="store_true", help="time detectors, too")
    parser.add_argument("--precisions", nargs="+", help="default: float32, and half on a GPU")
    parser.add_argument("--folder", type=Path, help="where the pictures are, or will be kept")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "result.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore", tulip_ood.TulipWarning)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    options.precisions = options.precisions or (["float32", "half"] if on_gpu else ["float32"])
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        paths = synthesise(folder)
        result = {
            "machine": {
                "device": torch.cuda.get_device_name() if on_gpu else platform.processor(),
                "processors": os.cpu_count(),
                "default_workers": default_workers(),
                "load_before": [round(load, 2) for load in os.getloadavg()],
                "python": platform.python_version(),
                "torch": torch.__version__,
                "pillow": PIL.__version__,
            },
            "picture_bytes": round(statistics.mean(os.path.getsize(path) for path in paths)),
            "batch_size": options.batch_size,
            "same_bits_on_device": same_bits(paths, options, device),
            "decoding": decoding(options, paths, device),
        }
        if options.score:
            result["scoring"] = scoring(options, paths, device)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
