"""Are noise and scores the same on the CPU and on a GPU?

    make evidence-devices DATA=sets.npz CHECKPOINT=cifar10.safetensors

Writes benchmarks/devices/result.json: whether Philox words and normal numbers agree bit for bit,
and how far scores, p-values and decisions of one detector differ between the devices, in float32
and in half precision. The contract: Spearman ρ ≥ .999 and 1e-2 of the score range.
"""

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from data.cifar import load_network, load_sets

import tulip_ood
from tulip_ood.numerics.random import normal, uniform


def spearman(a: torch.Tensor, b: torch.Tensor) -> float:
    ranks = torch.stack([a.argsort().argsort().double(), b.argsort().argsort().double()])
    return float(torch.corrcoef(ranks)[0, 1])


def noise() -> dict[str, object]:
    n = 10_000_000
    cpu, gpu = (normal((n,), seed=0, name="w", device=d).cpu() for d in ("cpu", "cuda"))
    torch.cuda.synchronize()
    start = time.perf_counter()
    normal((n,), seed=0, name="w", index=1, device="cuda")
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    same = uniform((n,), seed=0, name="u").equal(
        uniform((n,), seed=0, name="u", device="cuda").cpu()
    )
    return {
        "normals": n,
        "normals_that_differ": int((cpu != gpu).sum()),
        "largest_difference": float((cpu - gpu).abs().max()),
        "uniforms_bit_equal": same,
        "seconds_for_ten_million_on_the_gpu": round(seconds, 4),
    }


def scores(data: Path, checkpoint: Path) -> list[dict[str, object]]:
    model, mean, std = load_network(checkpoint)
    sets = load_sets(data, mean, std)
    fit = [(sets["id_val"], sets["id_val_labels"])]
    x = torch.cat([sets["id_test"][:500], sets["near_tin"][:250], sets["far_svhn"][:250]])
    rows = []
    on_cpu = tulip_ood.Tulip(model, j=1.5, batch_size=100).fit(fit, recipe="balanced")
    start = time.perf_counter()
    reference = on_cpu.predict(x)
    cpu_seconds = time.perf_counter() - start
    spread = on_cpu.calibration.spread
    model.cuda()
    on_cpu.to("cuda")  # the same fitted detector, moved
    fitted = {
        "moved, float32": on_cpu,
        "fitted there, float32": tulip_ood.Tulip(model, j=1.5).fit(fit, recipe="balanced"),
        "fitted there, half": tulip_ood.Tulip(model, j=1.5, precision="half").fit(
            fit, recipe="balanced"
        ),
    }
    for name, detector in fitted.items():
        detector.predict(x)
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = detector.predict(x)
        rows.append(
            {
                "detector": name,
                "spearman": spearman(result.score, reference.score),
                "largest_difference_of_the_range": float(
                    (result.score - reference.score).abs().max() / spread
                ),
                "decisions_that_differ": int((result.accepted != reference.accepted).sum()),
                "seconds_for_1000_images": round(time.perf_counter() - start, 3),
                "cpu_seconds": round(cpu_seconds, 3),
                "tf32_convolutions": torch.backends.cudnn.allow_tf32,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "result.json")
    arguments = parser.parse_args()
    result = {
        "machine": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "noise": noise(),
        "scores": scores(arguments.data, arguments.checkpoint),
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
