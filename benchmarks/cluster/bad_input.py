"""Files that are not what they seem, and very many of them: with `tulip score`, here and on Ray.

    make evidence-cluster            # writes bad_input.json beside this file, among others

A folder with one file of every kind between good images is scored by both engines; what each kind
comes to is recorded, and the most memory that any process held (a 30,000 × 30,000 image would be
2.7 GB). Then a folder of 100,000 files, of which every tenth is no image.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import setting
from PIL import Image

MANY, EVERY = 100_000, 10
BOMB = 30_000


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        setting.detector(folder, "free")
        found: dict[str, Any] = {"kinds": kinds(folder), "many": many(folder)}
    (setting.HERE / "bad_input.json").write_text(json.dumps(found, indent=1) + "\n")


def files() -> dict[str, bytes]:
    """One file of every kind."""
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 255, (48, 64, 3), dtype=np.uint8))
    jpeg, png = encoded(picture, "JPEG"), encoded(picture, "PNG")
    wide = Image.fromarray(rng.integers(0, 65535, (48, 64), dtype=np.uint16))
    turned = Image.Exif()
    turned[0x0112] = 6
    frames = [Image.fromarray(np.roll(np.asarray(picture), k, 0)) for k in (1, 2)]
    return {
        "good.jpg": jpeg,
        "truncated.jpg": jpeg[: len(jpeg) // 2],
        "header-only.jpg": jpeg[:30],
        "truncated.png": png[: len(png) // 2],
        "text.jpg": b"this is a text, whatever it is called\n",
        "html.png": b"<html><body>404</body></html>",
        "zero-bytes.jpg": b"",
        "cmyk.jpg": encoded(picture.convert("CMYK"), "JPEG"),
        "16-bit.png": encoded(wide, "PNG"),
        "palette.png": encoded(picture.convert("P"), "PNG"),
        "transparent.png": encoded(picture.convert("RGBA"), "PNG"),
        "animated.gif": encoded(picture, "GIF", save_all=True, append_images=frames),
        "exif-rotated.jpg": encoded(picture, "JPEG", exif=turned),
        "bomb.png": bomb(BOMB),
        "last-good.png": png,
    }


def encoded(image: Image.Image, kind: str, **how: Any) -> bytes:
    held = io.BytesIO()
    image.save(held, kind, **how)
    return held.getvalue()


def bomb(side: int) -> bytes:
    """A grey PNG of `side` × `side`, written row by row: it never is in memory here either."""

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return len(data).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    packer = zlib.compressobj(1)
    pixels = b"".join(packer.compress(bytes(side + 1)) for _ in range(side)) + packer.flush()
    head = side.to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def kinds(folder: Path) -> dict[str, Any]:
    place = folder / "kinds"
    place.mkdir()
    for name, content in files().items():
        (place / name).write_bytes(content)
    tables = {engine: run(folder, place, engine) for engine in ("local", "ray")}
    rows = pq.read_table(folder / "kinds-local.parquet").to_pylist()
    told = {Path(row["path"]).name: row["error"] or "scored" for row in rows}
    compared = setting.compare(folder / "kinds-ray.parquet", folder / "kinds-local.parquet")
    return {"told": told, **tables, "ray_against_local": compared}


def many(folder: Path) -> dict[str, Any]:
    place = folder / "many"
    place.mkdir()
    picture = files()["last-good.png"]
    for i in range(MANY):
        (place / f"{i:06d}.png").write_bytes(picture if i % EVERY else b"")
    tables = {engine: run(folder, place, engine) for engine in ("local", "ray")}
    compared = setting.compare(folder / "many-ray.parquet", folder / "many-local.parquet")
    return {"files": MANY, **tables, "ray_against_local": compared}


def run(folder: Path, inputs: Path, engine: str) -> dict[str, Any]:
    """`tulip score` in a process of its own, with an eye on its memory and its workers'."""
    out = folder / f"{inputs.name}-{engine}.parquet"
    command = [sys.executable, "-m", "tulip_ood", "score", str(folder / "free.safetensors")]
    command += [str(inputs), "--out", str(out), "--model", "setting:free", "--engine", engine]
    if engine == "ray":
        command += ["--actors", "2"]
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=setting.HERE)
    most = 0.0
    while process.poll() is None:
        # Our only descendants; Ray's daemon is left out: it maps the whole object store.
        below = setting.processes(os.getpid())
        most = max([most, *(mb for _, title, mb in below if "raylet" not in title)])
        time.sleep(0.2)
    seconds = time.perf_counter() - start
    if process.returncode:
        sys.exit(f"the command ended with {process.returncode}")
    load = round(os.getloadavg()[0], 1)
    return {"seconds": round(seconds, 1), "load": load, "most_mb_of_a_process": round(most)}


if __name__ == "__main__":
    main()
