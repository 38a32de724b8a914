"""The tables of docs/performance.md, from the result files under benchmarks/speed/."""

from collections.abc import Callable
from statistics import mean

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


SPEED_TABLES: dict[str, Callable[[], str]] = {
    "speed": speed,
    "speed-parts": speed_parts,
    "speed-limit": speed_limit,
    "speed-quality": speed_quality,
    "speed-partition": speed_partition,
}
