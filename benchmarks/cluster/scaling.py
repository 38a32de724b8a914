"""Images/s against workers on this machine, and what the driver itself can do.

    make evidence-cluster      # writes scaling.json, docs/images/cluster-scaling.png and others

Small images are scored by TULiP (four passes) with ever more workers:

- `waiting`: a network that takes 4 ms an image and no processor, as one on a GPU does: what is left
  is what Ray, decoding and the driver cost;
- `computing`: one that computes for about a millisecond on one core: a machine has only so many.

A rate counts from the first part of the table to the last, so that starting workers (a few seconds
each: importing torch, making the network, drawing the noise) is not in it.

`driver` is the processor time that the one process which hands out shards and lets parts appear
spends on a million rows, and what it holds and writes for them. Divided into a second, it is the
rate beyond which more workers do not help.
"""

import argparse
import json
import os
import pickle
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow as pa
import pyarrow.parquet as pq
import setting

from tulip_ood import cluster
from tulip_ood.data.opening import open_sources
from tulip_ood.data.parts import Parts
from tulip_ood.data.scores import score_schema
from tulip_ood.data.source import ImageFiles, Source

mpl.use("Agg")
import matplotlib.pyplot as plt

ROWS = 1500  # images for each worker
ACTORS = {"waiting": (1, 2, 4, 8), "computing": (1, 2, 4)}
SHARD = 100
DRIVEN = 200_000  # rows of the driver's own measurement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["MILLISECONDS"] = "4"  # workers look at it
        found: dict[str, Any] = {"cores": os.cpu_count(), "driver": driver(folder)}
        for name, counts in ACTORS.items():
            file = setting.detector(folder, name)
            found[name] = [measure(folder, file, name, actors) for actors in counts]
            say(json.dumps(found[name]))
    (setting.HERE / "scaling.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(found, setting.HERE.resolve().parents[1] / "docs/images/cluster-scaling.png")


def measure(folder: Path, file: str, name: str, actors: int) -> dict[str, Any]:
    """The rate of one number of workers."""
    n = ROWS * actors
    inputs = folder / f"images-{n}"
    if not inputs.exists():
        setting.images(folder, n)
    times: list[tuple[float, int]] = []
    out = folder / f"{name}-{actors}.parquet"
    load = os.getloadavg()[0]
    cluster.score(
        file, [str(inputs)], out, model=f"setting:{name}", part_rows=SHARD, actors=actors,
        done=lambda rows: times.append((time.perf_counter(), rows)),
    )  # fmt: skip
    # All workers are at work from the moment when the last one has given its first part.
    middle = times[actors : -actors or None]
    seconds = middle[-1][0] - middle[0][0]
    rate = sum(rows for _, rows in middle[1:]) / seconds
    return {"actors": actors, "images": n, "images_per_s": round(rate, 1), "load": round(load, 1)}


def driver(folder: Path) -> dict[str, Any]:
    """Processor seconds and bytes of the driver for a million rows."""
    names = [f"/lake/images/shard-{i // 10_000:05d}/image-{i:09d}.jpg" for i in range(DRIVEN)]
    source = ImageFiles("/lake", names, [None] * DRIVEN)
    held = sum(map(sys.getsizeof, names)) + 16 * DRIVEN  # two pointers: a path and a label
    schema = score_schema("classification")
    parts = Parts(folder / "driven.parquet", schema, {"seed": 0}, DRIVEN, 1024, True)
    parts.prepare()
    content = [parts.encode(i, rows(parts.range_of(i))) for i in range(len(parts))]
    hand_out = cpu(lambda: send_all(source))
    put = cpu(lambda: [parts.put(i, each) for i, each in enumerate(content)])
    check = cpu(parts.merge)
    table = folder / "lake"
    table.mkdir()
    image = setting.images(folder, 1) / "000000.png"
    encoded = pa.table({"image": [image.read_bytes()] * 10_000})
    for i in range(20):
        pq.write_table(encoded, table / f"{i:03d}.parquet", row_group_size=1000)
    lake = open_sources([str(table)])
    handed = cpu(lambda: send_all(lake))
    million = 1e6 / DRIVEN
    size = sum(map(len, content)) / DRIVEN
    return {
        "rows": DRIVEN,
        "cpu_seconds_per_million": {
            "hand_out_paths": round(hand_out * million, 2),
            "hand_out_parquet": round(handed * 1e6 / len(lake), 2),
            "let_parts_appear": round(put * million, 2),
            "check_at_the_end": round(check * million, 2),
        },
        "bytes_held_per_path": round(held / DRIVEN),
        "bytes_written_per_row": round(size, 1),
    }


def send_all(source: Source) -> None:
    """Every shard as it leaves for a worker."""
    for first in range(0, len(source), 1024):
        pickle.dumps(source.shard(first, first + 1024))


def rows(numbers: range) -> list[dict[str, Any]]:
    """Rows as long as real ones."""
    return [
        {
            "row": i, "path": f"/lake/images/shard-{i // 10_000:05d}/image-{i:09d}.jpg",
            "label": None, "prediction": i * 7919 % 1000, "score": (i * 0.6180339887) % 1,
            "p_value": (i * 0.754877666) % 1, "accepted": i % 20 > 0,
            "top_labels": [(i * k) % 1000 for k in range(1, 6)],
            "top_probs": [((i * k) * 0.5698402909) % 1 for k in range(1, 6)], "error": None,
        }
        for i in numbers
    ]  # fmt: skip


def cpu(work: Any) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def draw(found: dict[str, Any], file: Path) -> None:
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    colours = {"waiting": "#1f5fa8", "computing": "#c2452d"}
    words = {
        "waiting": "waits 4 ms an image, as for a GPU",
        "computing": f"computes; this machine has {found['cores']} cores",
    }
    for name, colour in colours.items():
        x = [row["actors"] for row in found[name]]
        y = [row["images_per_s"] for row in found[name]]
        axis.plot(x, y, "o-", color=colour, label=f"network {words[name]}")
        axis.plot(x, [y[0] * n / x[0] for n in x], ":", color=colour, linewidth=1)
    axis.plot([], [], ":", color="grey", label="the first point times the workers")
    axis.set(xlabel="workers", ylabel="images/s", xlim=(0, None), ylim=(0, None))
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=130)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
