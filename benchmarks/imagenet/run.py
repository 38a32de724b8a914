"""How fast does `tulip bench` feed a network with images as large as ImageNet's?

    make evidence-imagenet            # writes result.json beside this file; 4 GB in /tmp meanwhile

Synthetic JPEGs of 500 × 375 (random fields with the spectrum of photographs, some texture, quality
90) lie in OpenOOD's layout: 2 % are ID validation images, half are ID test images, the rest is
called iNaturalist. 500 are distinct; each is written under many names, as a file of its own. They
were just written, so they come from the page cache: no disk is measured. `bench` scores MSP,
entropy and energy, which share one pass, in a process of its own for each of three networks:

- `small`: three layers with 1,000 outputs, on all images: what is left is the runner's own rate;
- `waiting`: sleeps for as long as an image takes to be read, and takes no processor while it does:
  a stand-in for a network on a GPU, on which reading ahead shows and a CPU's own network hides it;
- `resnet18`: ours for 224 px, on a subset, as on a machine without a GPU.

`alone` is measured in processes of their own, right before and after, and the mean is used:
`decode` (decoding, resizing and cropping alone, as many threads), `feed` (`Piece.inputs`: the
same, normalised and stacked) and `network` (on tensors in memory), in images/s. A run that reads
ahead has the rate of the slower one (`of_slower` = 1); one that reads, then scores, has
1/(1/feed + 1/network) (`of_in_turns` = 1). On a CPU both use the same cores, so that `of_slower`
cannot reach 1 for `small` and `resnet18`, whatever the runner does.

`seconds` says where the run's time went, by the clock: reading (decoding, preparing and stacking
images), passes, both at the same time (0 if the runner does not read ahead), and the rest;
`longer_share` is the longer of reading and passes, of the whole. Unlike `of_slower` it does not
suffer from others' work on the machine that comes or goes between `alone` and the run.
`decode_share` is the time that decoding, resizing and cropping would take alone, of the whole;
`decode_share_of_cpu` the processor time within them, of that of the whole process. `rss_mb` is
sampled every second; for every tenth of the test images the last sample and the highest. Flat: the
highest of the second half is above that of the first half (less its first tenth) by less than one
piece of 256 inputs.
"""

import argparse
import contextlib
import importlib.metadata
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from tulip_ood.benchmark import cell_fitting, pieces, shared_passes
from tulip_ood.benchmark.bench import bench
from tulip_ood.benchmark.cells import BenchNetwork
from tulip_ood.data import batches as feeding
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.data.protocol import protocol_of
from tulip_ood.data.root import Root
from tulip_ood.models.resnet224 import ResNet18
from tulip_ood.network import running
from tulip_ood.network.network import Network
from tulip_ood.numerics.tasks import make_task

WIDTH, HEIGHT, DISTINCT, QUALITY = 500, 375, 500, 90
METHODS = "msp,ent,ebo"
BATCH = 64  # what the runner takes on a CPU
ALONE = 2000  # images that are read for `alone`
IN_MEMORY = {"small": 2048, "waiting": 512, "resnet18": 256}  # inputs that `alone` scores
MB = 2**20
PROTOCOL = protocol_of("imagenet")
Intervals = list[tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=50_000, help="in all; at least 600")
    parser.add_argument("--limit", type=int, default=500, help="of each test set for resnet18")
    parser.add_argument("--networks", default="small,waiting,resnet18")
    parser.add_argument("--temp", type=Path, help="where the images lie meanwhile")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result.json"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        order = json.loads(options.child)
        print(json.dumps({"alone": alone, "run": run}[order.pop("what")](**order)))
        return
    with tempfile.TemporaryDirectory(dir=options.temp, prefix="tulip-imagenet-") as place:
        images = make_root(Path(place), options.images)
        result = {"machine": machine(), "images": images, "methods": METHODS, "networks": {}}
        limits = {"small": None, "waiting": 2 * options.limit, "resnet18": options.limit}
        for name in options.networks.split(","):
            measured = result["networks"]
            measured[name] = measure(name, place, limits[name])
            result["held"] = all(one["rss_mb"].get("flat", True) for one in measured.values())
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if result["held"] else 1)


# ------------------------------------------------------------------------------ images


def field(rng: np.random.Generator, slope: float) -> np.ndarray:
    """Noise of variance 1 whose amplitudes fall with the frequency to the power of the slope."""
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None])
    frequency[0, 0] = np.inf
    phases = rng.normal(size=frequency.shape) + 1j * rng.normal(size=frequency.shape)
    found = np.fft.irfft2(phases * frequency**-slope, s=(HEIGHT, WIDTH))
    return found / found.std()


def jpeg(number: int) -> bytes:
    """Light and two colours of low frequency; a texture that covers a part of the image."""
    rng = np.random.default_rng([0, number])
    texture = rng.uniform(14, 60) * field(rng, 0.8) * (field(rng, 2.0) > -0.4)
    light = 45 * field(rng, 2.0) + texture
    warm, green = 25 * field(rng, 2.2), 10 * field(rng, 2.2)
    rgb = np.stack([light + warm, light + green, light - warm], axis=-1) + rng.uniform(90, 150, 3)
    held = io.BytesIO()
    Image.fromarray(rgb.clip(0, 255).astype(np.uint8)).save(held, "JPEG", quality=QUALITY)
    return held.getvalue()


def make_root(place: Path, n: int) -> dict[str, Any]:
    """OpenOOD's folders and lists with n images."""
    n_val = max(200, n // 50)
    counts = {"val": n_val, "test": n // 2, "inaturalist": n - n // 2 - n_val}
    say(f"making {DISTINCT} images")
    distinct = [jpeg(i) for i in range(DISTINCT)]
    sizes = [len(data) for data in distinct]
    needed = n * sum(sizes) / DISTINCT
    free = shutil.disk_usage(place).free
    if free < 1.5 * needed + 2e9:  # the passes are kept there too
        sys.exit(f"{place} has {free / 1e9:.1f} GB free, {1.5 * needed / 1e9 + 2:.1f} are needed")
    say(f"writing {n:,} files, {needed / 1e9:.1f} GB")
    lists = place / "benchmark_imglist" / "imagenet"
    lists.mkdir(parents=True)
    number = 0
    for role, count in counts.items():
        outside = role == "inaturalist"
        folder = "inaturalist/images" if outside else "imagenet_1k/val"
        (place / "images_largescale" / folder).mkdir(parents=True, exist_ok=True)
        lines = []
        for i in range(count):
            file = f"{folder}/{number:08d}.JPEG"
            (place / "images_largescale" / file).write_bytes(distinct[number % DISTINCT])
            lines.append(f"{file} {-1 if outside else i % PROTOCOL.classes}\n")
            number += 1
        name = "test_inaturalist.txt" if outside else f"{role}_imagenet.txt"
        (lists / name).write_text("".join(lines))
    return {
        **counts,
        "size": f"{WIDTH} × {HEIGHT}",
        "quality": QUALITY,
        "distinct": DISTINCT,
        "kb_mean": round(sum(sizes) / DISTINCT / 1000, 1),
        "kb_range": [round(min(sizes) / 1000, 1), round(max(sizes) / 1000, 1)],
        "gb": round(needed / 1e9, 2),
        "read_from": "page cache (just written)",
    }


# ---------------------------------------------------------------------------- networks


class Waiting(nn.Module):
    """Takes a set time for an image, and no processor: as a network on another device does."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.fc = nn.Linear(3 * 14 * 14, PROTOCOL.classes)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds * len(x))
        logits: Tensor = self.fc(x[:, :, ::16, ::16].flatten(1))
        return logits


def network(name: str, seconds: float) -> BenchNetwork:
    torch.manual_seed(0)
    if name == "small":
        # Above 100,000 parameters: smaller networks make their passes in double precision.
        layers = [nn.Conv2d(3, 8, 7, stride=7), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten()]
        module: nn.Module = nn.Sequential(*layers, nn.Linear(128, PROTOCOL.classes))
    else:
        module = Waiting(seconds) if name == "waiting" else ResNet18(PROTOCOL.classes)
    return BenchNetwork(name, module.eval(), PROTOCOL.preprocess)


# --------------------------------------------------------------------------- measuring


def measure(name: str, place: str, limit: int | None) -> dict[str, Any]:
    load = os.getloadavg()[0]
    seconds = 1 / child("alone", "small", place, 0.0)["feed"] if name == "waiting" else 0.0
    say(f"{name}: reading and network alone")
    before = child("alone", name, place, seconds)
    say(f"{name}: the run")
    ran = child("run", name, place, seconds, limit=limit)
    say(f"{name}: reading and network alone, again")
    after = child("alone", name, place, seconds)
    rates = {key: (before[key] + after[key]) / 2 for key in before}
    slower = min(rates["feed"], rates["network"])
    in_turns = 1 / (1 / rates["feed"] + 1 / rates["network"])
    found = {
        "limit": limit,
        **ran,
        "decode_share": round(ran["images"] / rates["decode"] / ran["seconds"]["whole"], 3),
        "alone": {key: round(rate, 1) for key, rate in rates.items()},
        "alone_before_after": {key: [round(before[key], 1), round(after[key], 1)] for key in rates},
        "of_slower": round(ran["images_per_s"] / slower, 3),
        "of_in_turns": round(ran["images_per_s"] / in_turns, 3),
        "load_before": round(load, 2),
    }
    say(json.dumps(found))
    return found


def child(what: str, name: str, place: str, seconds: float, **more: Any) -> Any:
    order = {"what": what, "name": name, "place": place, "seconds": seconds, **more}
    command = [sys.executable, __file__, "--child", json.dumps(order)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def alone(name: str, place: str, seconds: float) -> dict[str, float]:
    """Images/s of reading and of the network, each without the other."""
    part = Root.open(place).part("imagenet", "test").limited(ALONE)
    one = network(name, seconds)
    paths = [row.path for row, _ in part.source.read()]
    cut = pieces.pieces_of(part, one.preprocess, "")
    inputs = cut[0].inputs()  # also what is first done of everything
    with ThreadPoolExecutor(workers()) as pool:
        decode = rate(len(paths), lambda: [len(p) for p in pool.map(one.preprocess.pixels, paths)])
    feed = rate(len(part), lambda: [len(piece.inputs()) for piece in cut])
    shared = Network(one.module, make_task("classification"))
    running.forward(shared, inputs[:BATCH], batch_size=BATCH, features=True)
    rounds = range(-(-IN_MEMORY[name] // len(inputs)))
    passes = rate(
        len(inputs) * len(rounds),
        lambda: [running.forward(shared, inputs, batch_size=BATCH, features=True) for _ in rounds],
    )
    return {"decode": decode, "feed": feed, "network": passes}


def rate(n: int, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return n / (time.perf_counter() - start)


def workers() -> int:
    return min(feeding._MOST_WORKERS, os.cpu_count() or 1)


def run(name: str, place: str, seconds: float, limit: int | None) -> dict[str, Any]:
    """The benchmark itself, in this process."""
    one = network(name, seconds)
    reading, passes, decoding = watch()
    memory = Memory()
    cpu = time.process_time()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=place) as out:
        memory.start()
        found = bench(
            "imagenet", Root.open(place), [one], out=f"{out}/bench", methods=METHODS,
            tune="none", limit=limit, progress=memory.note,
        )  # fmt: skip
        whole = time.perf_counter() - start
        memory.stop()
        cpu = time.process_time() - cpu
    n = len(Root.open(place).part("imagenet", "val")) + sum(s.n for s in found.sets.values())
    scored = [run.method for run in found.runs]
    notes = [each.stand_in for each in found.sets.values() if each.stand_in]
    if sorted(scored) != sorted(METHODS.split(",")) or found.skipped or notes:
        sys.exit(f"not everything was scored: {scored}, {found.skipped}, {notes}")
    spent = {"reading": length(reading), "passes": length(passes), "both": common(reading, passes)}
    other = whole - spent["reading"] - spent["passes"] + spent["both"]
    return {
        "images": n,
        "images_per_s": round(n / whole, 1),
        "seconds": {k: round(v, 1) for k, v in {"whole": whole, **spent, "other": other}.items()},
        "reading_share": round(spent["reading"] / whole, 3),
        "longer_share": round(max(spent["reading"], spent["passes"]) / whole, 3),
        "decode_share_of_cpu": round(length(decoding) / cpu, 3),
        "cores_used": round(cpu / whole, 2),
        "rss_mb": memory.summary(tenths=limit is None),
    }


def watch() -> tuple[Intervals, Intervals, Intervals]:
    """When images were read, passes made (by the clock), images decoded (by the thread's own)."""
    reading, passes, decoding = watched = ([], [], [])

    def clocked(work: Any, spent: Intervals, clock: Callable[[], float]) -> Any:
        def inner(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                return work(*args, **kwargs)
            finally:
                spent.append((start, clock()))

        return inner

    labelled = cell_fitting.labelled_batches

    def validation(*args: Any) -> Iterator[Any]:
        following = clocked(labelled(*args).__next__, reading, time.perf_counter)
        with contextlib.suppress(StopIteration):
            while True:
                yield following()

    cell_fitting.labelled_batches = validation
    pieces.Piece.inputs = clocked(pieces.Piece.inputs, reading, time.perf_counter)
    forward = clocked(running.forward, passes, time.perf_counter)
    running.forward = shared_passes.forward = forward
    Preprocess.pixels = clocked(Preprocess.pixels, decoding, time.thread_time)
    return watched


def length(intervals: Intervals) -> float:
    return sum(end - start for start, end in intervals)


def common(some: Intervals, others: Intervals) -> float:
    return sum(max(0.0, min(b, d) - max(a, c)) for a, b in some for c, d in others)


class Memory:
    """What this process holds, every second, beside how much is done."""

    def __init__(self) -> None:
        self._share = 0.0
        self._samples: list[tuple[float, float]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        self._before = resident()
        Path("/proc/self/clear_refs").write_text("5")  # the highest mark begins again here
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._samples.append((1.0, resident()))

    def note(self, what: str, done: int, of: int) -> None:
        self._share = done / of if of else 0.0

    def _watch(self) -> None:
        while not self._stopped.wait(1.0):
            self._samples.append((self._share, resident()))

    def summary(self, *, tenths: bool) -> dict[str, Any]:
        status = Path("/proc/self/status").read_text()
        peak = next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmHWM:"))
        found: dict[str, Any] = {"before": round(self._before), "peak": round(peak / 1024)}
        found["samples"] = len(self._samples)
        if not tenths:
            return found
        within: list[list[float]] = [[] for _ in range(10)]
        for share, rss in self._samples:
            within[min(9, int(10 * share))].append(rss)
        found["last_of_tenth"] = [round(tenth[-1]) if tenth else None for tenth in within]
        found["highest_of_tenth"] = [round(max(tenth)) if tenth else None for tenth in within]
        early, late = ([x for t in part for x in t] for part in (within[1:5], within[5:]))
        piece = 256 * 3 * PROTOCOL.crop**2 * 4 / MB
        grown = max(late) - max(early) if early else 0.0
        return {**found, "grown": round(grown), "piece": round(piece), "flat": grown < piece}


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "cpu": next((x.partition(": ")[2] for x in lines if x.startswith("model name")), ""),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "decoding_threads": workers(),
        "python": platform.python_version(),
        **{n: importlib.metadata.version(n) for n in ("tulip-ood", "torch", "numpy", "pillow")},
    }


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
