"""The tables of docs/performance.md, from the result files under benchmarks/speed/."""

from collections.abc import Callable
from statistics import mean
from typing import Any

from reading import read, table

__all__ = ["SPEED_TABLES"]

SPEED = {
    "rn50-all-10": "ResNet-50, all parameters, M 10",
    "rn50-all-4": "ResNet-50, all parameters, M 4",
    "rn50-last-stage-10": "ResNet-50, last stage, M 10",
    "vit-all-10": "ViT-B/16, all parameters, M 10",
    "rn50-last-stage-10-one": "ResNet-50, last stage, M 10, a batch of 1",
}


def speed() -> str:
    """What TULiP costs on a GPU, in passes of the same network."""
    rows = [
        [
            SPEED[row["name"]],
            f"{row['target']:g}",
            f"{row['passes_ratio']:.2f}",
            f"{row['score_ratio']:.2f}",
            f"{row['to_engine_energy']:.2f}",
            f"{row['ms']['eager']:.1f}",
            f"{row['ms']['passes']:.1f}",
            f"{row['ms']['score']:.1f}",
        ]
        for row in read("speed/result-cuda.json")["rows"]
    ]
    ratios = ["target", "passes", "`score`", "passes, of the engine's own"]
    return table(["", *ratios, "eager, ms", "passes, ms", "`score`, ms"], rows)


def speed_parts() -> str:
    """One pass with ever more of the engine."""
    found = read("speed/variants-cuda.json")["rows"]
    rows = [
        [
            row["variant"].replace("folded", "folded, in place"),
            f"{row['ms']['pass']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['seconds_to_prepare']:.2f}",
        ]
        for row in found
    ]
    eager = mean(row["ms"]["eager"] for row in found)
    rows.insert(0, ["eager, TF32", f"{eager:.1f}", "1", "–"])
    return table(["ResNet-50, 256 images", "one pass, ms", "of eager", "made ready in, s"], rows)


def speed_limit() -> str:
    """How far one pass of the engine is from what the GPU can multiply."""
    most = 989  # TFLOP/s in dense float16, by the H200's data sheet
    macs = {"resnet50": ("ResNet-50", 4.09), "vit_b_16": ("ViT-B/16", 17.56)}  # 10⁹ an image
    rows = []
    for row in read("speed/result-cuda.json")["rows"]:
        name, count = macs.get(row["network"], ("", 0.0))
        if row["scope"] == "all" and row["samples"] == 10:
            ms = row["ms"]["engine_energy"]
            rate = 2 * count * row["batch"] / ms
            rows.append([name, f"{ms:.1f}", f"{rate:.0f}", f"{100 * rate / most:.0f} %"])
    return table(["256 images", "one pass, ms", "TFLOP/s", "of 989"], rows)


def speed_quality() -> str:
    """Fast half-precision passes against plain ones in float32."""
    rows = [
        [
            f"{found['scope']}, M {found['samples']}",
            f"{mean(found['auroc_plain'].values()):.2f}",
            f"{mean(found['auroc_fast'].values()):.2f}",
            f"{found['largest_auroc_difference']:.4f}",
            f"{found['aurc_plain']:.3f} / {found['aurc_fast']:.3f}",
            f"{found['spearman']:.6f}",
        ]
        for found in read("speed/quality-cuda.json")["rows"][0]["scopes"]
    ]
    head = [
        "scope",
        "AUROC, plain",
        "fast",
        "most apart",
        "AURC ×10³, plain / fast",
        "Spearman ρ",
    ]
    return table(head, rows)


def speed_partition() -> str:
    """What sharing the trunk alone brings, on a CPU."""
    rows = [
        [
            row["scope"],
            f"{100 * row['trunk_share']:.0f} %",
            f"{row['expected']:.1f}",
            f"{row['speedup']:.1f} ({row['speedup_range'][0]:.1f}–{row['speedup_range'][1]:.1f})",
        ]
        for row in read("speed/partition-cpu.json")["rows"]
    ]
    return table(["scope", "computed once", "times as fast, by counting", "measured"], rows)


def _growth(section: str) -> list[dict[str, Any]]:
    rows = read("speed/growth-cuda.json")["rows"]
    return [row for row in rows if row["section"] == section and "error" not in row]


def _grown(section: str, head: str, name: Callable[[dict[str, Any]], str]) -> str:
    rows = [
        [
            name(row),
            *(f"{row['ms'][part]:.1f}" for part in ("eager", "passes", "score")),
            *(f"{row[part]:.2f}" for part in ("passes_ratio", "score_ratio")),
        ]
        for row in _growth(section)
    ]
    times = ["eager, ms", "passes, ms", "`score`, ms", "passes", "`score`"]
    return table([head, *times], rows)


def speed_samples() -> str:
    """With M."""
    return _grown("samples", "ResNet-50, all parameters", lambda row: f"M {row['samples']}")


def speed_parameters() -> str:
    """With the network."""

    def name(row: dict[str, Any]) -> str:
        title = row["network"].replace("resnet", "ResNet-")
        return f"{title}, {row['parameters'] / 1e6:.1f} M parameters"

    return _grown("parameters", "all parameters, M 10", name)


def speed_classes() -> str:
    """With the number of classes."""
    return _grown("classes", "ResNet-50, last stage, M 10", lambda r: f"{r['classes']:,} classes")


def speed_images() -> str:
    """With the number of images."""

    def name(row: dict[str, Any]) -> str:
        return f"{row['images']:,} image{'s' if row['images'] > 1 else ''}"

    return _grown("images", "ResNet-50, last stage, M 10", name)


def speed_kernels() -> str:
    """Where the time of a call goes."""
    found = _growth("kernels")
    kinds = list(dict.fromkeys(kind for row in found for kind in row["kinds_ms"]))
    rows = [
        [kind, *(_share(row["kinds_ms"].get(kind, 0.0), row["score_ms"]) for row in found)]
        for kind in kinds
    ]
    rows.append(["no kernel runs", *(_share(row["idle_ms"], row["score_ms"]) for row in found)])
    scopes = [f"{row['scope']}, {row['score_ms']:.1f} ms" for row in found]
    return table(["ResNet-50, 256 images, M 10", *scopes], rows)


def _share(part: float, whole: float) -> str:
    return f"{part:.2f} ms ({100 * part / whole:.0f} %)"


def speed_memory() -> str:
    """What is allocated at most."""
    rows = [
        [
            SPEED[row["name"]],
            *(
                f"{row[part] / 2**30:.2f}"
                for part in ("peak_single", "copies_bytes", "peak_passes", "peak_limit")
            ),
        ]
        for row in read("speed/result-cuda.json")["rows"]
    ]
    return table(["GiB", "one eager pass", "M + 1 half copies", "the passes", "limit"], rows)


def speed_feeding() -> str:
    """From JPEG files."""
    rows = [
        [
            row["detector"].replace("ebo", "EBO").replace("tulip", "TULiP"),
            f"{row['images_per_second_from_files']:,.0f}",
            f"{row['ratio_to_ebo_from_files']:.3f}",
            f"{row['ms_a_batch_in_place']:.1f}",
        ]
        for row in read("feeding/result-cuda.json")["scoring"]
    ]
    return table(["half precision", "images/s", "of EBO's time", "256 in place, ms"], rows)


def speed_decoding() -> str:
    """Decoding alone."""
    found: dict[int, dict[str, str]] = {}
    for row in read("feeding/result-cuda.json")["decoding"]:
        found.setdefault(row["workers"], {})[row["kind"]] = f"{row['images_per_second']:,.0f}"
    rows = [
        [str(workers), kinds.get("threads", kinds.get("none", "–")), kinds.get("processes", "–")]
        for workers, kinds in found.items()
    ]
    return table(["workers", "threads, images/s", "processes, images/s"], rows)


def speed_peers() -> str:
    """Beside other packages."""
    rows = [
        [row["method"], f"{row['passes']:.2f}", f"{row['near']:.1f}", f"{row['far']:.1f}"]
        for row in read("speed/peers.json")["rows"]
    ]
    return table(["CIFAR-10 ResNet-18", "eager passes", "near AUROC", "far AUROC"], rows)


SPEED_TABLES: dict[str, Callable[[], str]] = {
    "speed": speed,
    "speed-parts": speed_parts,
    "speed-limit": speed_limit,
    "speed-quality": speed_quality,
    "speed-partition": speed_partition,
    "speed-samples": speed_samples,
    "speed-parameters": speed_parameters,
    "speed-classes": speed_classes,
    "speed-images": speed_images,
    "speed-kernels": speed_kernels,
    "speed-memory": speed_memory,
    "speed-feeding": speed_feeding,
    "speed-decoding": speed_decoding,
    "speed-peers": speed_peers,
}
