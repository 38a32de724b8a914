"""Time against EBO, which makes one pass: the paper's last table, on this machine.

Where the network runs on a GPU, wall-clock time. Where it runs on a CPU, the processor's time,
which is the same on an idle machine and does not count what others do on a busy one; wall-clock
time stands in the parquet file, too.
"""

import math
import platform
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.registry import make
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import InputError, TulipWarning
from tulip_ood.figures.canvas import COLOURS, Drawn, canvas, need_matplotlib, save
from tulip_ood.figures.columns import below
from tulip_ood.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PAPERS", "Timed", "contenders", "draw", "time_detectors"]

# TULiP by EBO, each on a whole benchmark, reading included: the paper's last table.
PAPERS = {"CIFAR-10": 96.30 / 44.32, "ImageNet-200": 190.41 / 112.37, "ImageNet-1K": 659.24 / 192.6}
_ALONE = "the network alone"
_EBO = "EBO"
Timed = dict[str, Any]


def contenders(module: nn.Module, val: tuple[Tensor, Tensor], **common: Any) -> dict[str, Detector]:
    """Fitted detectors by what they are called in the figure, EBO first.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(120, 4), torch.randint(3, (120,))
        >>> list(contenders(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), (x, y)))[:2]
        ['EBO', 'noise averaging, M = 10']
    """
    made: dict[str, Detector] = {
        _EBO: make("ebo", module, **common),
        "noise averaging, M = 10": make("noise", module, **common),
    }
    for words, settings in (
        ("TULiP, M = 10", {}),
        ("TULiP, M = 4", {"n_samples": 4}),
        ("TULiP, M = 10, head only", {"scope": "head"}),
    ):
        # A J of its own: calibrated to 0, one pass would do, and nothing would be timed.
        made[words] = Tulip(module, j=1.0, **settings, **common)
    with warnings.catch_warnings():  # how well they are fitted does not matter here
        warnings.simplefilter("ignore", TulipWarning)
        for detector in made.values():
            if isinstance(detector, Tulip):
                detector.fit([val], recipe="balanced")
            else:
                detector.fit([val])
    return made


def time_detectors(
    detectors: Mapping[str, Detector],
    read: Callable[[], Tensor],
    *,
    repeats: int = 3,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Timed]:
    """The least time of each detector for some inputs, in turns, so that a busy hour hits all.

    Args:
        detectors: Fitted, EBO among them.
        read: Reads and prepares the inputs; timed, too.
        repeats: Turns.
        progress: Called with (what, done, of how many).

    Example:
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(120, 4), torch.randint(3, (120,))
        >>> found = contenders(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), (x, y))
        >>> rows = time_detectors(found, lambda: x, repeats=1)
        >>> rows[0]["method"], rows[0]["passes"], rows[0]["times_ebo"]
        ('EBO', 1, 1.0)
    """
    if _EBO not in detectors or repeats < 1:
        raise InputError(f"time EBO among others, at least once; got {', '.join(detectors)}")
    wall, cpu = (dict.fromkeys(detectors, math.inf) for _ in range(2))
    reading, inputs, done = (math.inf, math.inf), read(), 0
    for detector in detectors.values():  # perturbed weights are made once, not timed
        detector.score(inputs[:1])
    for _ in range(repeats):
        reading = _least(reading, _time(read, None))
        for name, detector in detectors.items():
            if progress is not None:
                progress(name, done, repeats * len(detectors))
            took = _time(lambda d=detector: d.score(inputs), detector)  # type: ignore[misc]
            wall[name], cpu[name] = _least((wall[name], cpu[name]), took)
            done += 1
    on_gpu = detectors[_EBO].network.device.type == "cuda"
    least, read_in = (wall, reading[0]) if on_gpu else (cpu, reading[1])
    return [
        {
            "method": name,
            "passes": detector.needs.passes,
            "images": len(inputs),
            "clock": "wall" if on_gpu else "processor",
            "seconds": least[name],
            "wall_seconds": wall[name],
            "seconds_reading": read_in,
            "times_ebo": least[name] / least[_EBO],
            "times_ebo_with_reading": (least[name] + read_in) / (least[_EBO] + read_in),
        }
        for name, detector in detectors.items()
    ]


def _least(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return min(one[0], other[0]), min(one[1], other[1])


def _time(do: Callable[[], object], detector: Detector | None) -> tuple[float, float]:
    """Wall-clock and processor time."""
    begun = time.perf_counter(), time.process_time()
    do()
    if detector is not None and detector.network.device.type == "cuda":
        torch.cuda.synchronize(detector.network.device)
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


def draw(rows: list[Timed], out: str | Path = "figures", *, title: str = "") -> Drawn:
    """Draw `timing` into a folder.

    Args:
        rows: What `time_detectors` found.
        out: The folder.
        title: What the network is called.

    Example:
        >>> import tempfile
        >>> one = {"method": "EBO", "passes": 1, "images": 8, "seconds": 0.1}
        >>> one |= {"seconds_reading": 0.1, "times_ebo": 1.0, "times_ebo_with_reading": 1.0}
        >>> one |= {"clock": "wall"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     draw([one], folder).facts["images"]
        8
    """
    need_matplotlib()
    facts = {
        "network": title,
        "images": rows[0]["images"],
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **{f"paper: {name}": value for name, value in PAPERS.items()},
    }
    with canvas(11.0, 2.2 + 0.62 * (len(rows) + 1)) as figure:
        axes = figure.subplots()
        _draw_bars(axes, rows)
        handles, labels = axes.get_legend_handles_labels()
        order = sorted(range(len(labels)), key=lambda i: labels[i] != _ALONE)  # bars first
        figure.legend(
            [handles[i] for i in order], [labels[i] for i in order], loc="outside upper center",
            ncols=3,
        )  # fmt: skip
        below(
            figure,
            f"{title + ': ' if title else ''}{rows[0]['images']} images, least {rows[0]['clock']} "
            f"time of several turns, CPU threads: {facts['threads']}, torch {facts['torch']}. The "
            f"paper's numbers: whole benchmarks on a GPU, with reading.",
        )
        return save(figure, "timing", out, rows, facts, _lines(rows))


def _draw_bars(axes: "Axes", rows: list[Timed]) -> None:
    for place, row in enumerate(rows):
        axes.barh(
            place, row["times_ebo"], 0.56, color=COLOURS["blue"], alpha=0.75,
            label=_ALONE if not place else None,
        )  # fmt: skip
        axes.plot(
            row["times_ebo_with_reading"], place, "D", color=COLOURS["orange"], ms=10, mec="white",
            label="with reading the images" if not place else None,
        )  # fmt: skip
        end = max(row["times_ebo"], row["times_ebo_with_reading"])
        axes.text(end + 0.25, place, f"{row['times_ebo']:.1f} ×", va="center", fontsize=11.5)
    last = len(rows)
    for number, (name, value) in enumerate(PAPERS.items()):
        axes.plot(value, last, "^v>"[number], color=COLOURS["purple"], ms=11, mec="white",
                  label=f"paper, {name}: {value:.2f} ×")  # fmt: skip
    labels = [f"{row['method']}\n{_passes(row['passes'])}" for row in rows]
    axes.set_yticks(range(last + 1), [*labels, "TULiP, in the paper\n12 passes"])
    most = max(row["times_ebo"] for row in rows)
    axes.set(xlim=(0, max(1.12 * most, 4.5)), ylim=(last + 0.6, -0.6))
    axes.set_xlabel("time, in multiples of EBO's")


def _passes(n: int) -> str:
    return counted(n, "pass")


def _lines(rows: list[Timed]) -> list[str]:
    return [
        f"{row['method']}: {1000 * row['seconds'] / row['images']:.1f} ms an image, "
        f"{row['times_ebo']:.2f} × EBO, {row['times_ebo_with_reading']:.2f} × with reading"
        for row in rows
    ]
