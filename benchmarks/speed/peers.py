"""Time against quality beside other packages, in one run and on one network.

    python3.11 -m venv /tmp/parity      # as benchmarks/parity/run.py says
    PYTHONPATH=src /tmp/parity/bin/python benchmarks/speed/peers.py --data sets.npz \\
        --checkpoint cifar10_dropout_s0.safetensors --device cpu
    python benchmarks/speed/peers.py --draw                 # the picture from the result file

A CIFAR-10 ResNet-18 with dropout before its last layer. pytorch-ood's energy, ODIN and MC-Dropout,
and laplace-torch's last layer (Kronecker factors, probit) against our energy and TULiP through the
fast engine. Everybody scores the same batches, on the device already, and takes turns; a time is
the median of all turns, in eager passes of the network. Packages run as they come; TULiP makes its
passes in half precision on a GPU. AUROC is the mean over the near and over the far sets. Nothing
is tuned on OOD data; TULiP's ε, λ and J are chosen on validation images alone, and
laplace-torch sees those, not training data.
"""

import argparse
import contextlib
import io
import json
import os
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import machine

OUT = Path(__file__).with_name("peers.json")
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images"
DROPOUT = 0.5
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
PASSES = 10
TULIPS = {
    "TULiP, all parameters, M 10": {"scope": "all", "n_samples": 10},
    "TULiP, all parameters, M 4": {"scope": "all", "n_samples": 4},
    "TULiP, last block, M 10": {"scope": "last-block", "n_samples": 10},
    "TULiP, head, M 10": {"scope": "head", "n_samples": 10},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="draw what was measured")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--inputs", type=int, default=500, help="of each set")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--recipe", default="self", help="how TULiP's settings are chosen")
    parser.add_argument("--threads", type=int, default=2, help="on a CPU")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.draw:
        draw(json.loads(options.out.read_text()))
        return
    import torch

    if options.device == "cpu":
        torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    options.out.write_text(json.dumps(compare(options), indent=1) + "\n")
    print(f"wrote {options.out}")


# ---------------------------------------------------------------------------------- measuring


def compare(options: argparse.Namespace) -> dict[str, Any]:
    import torch
    from data.cifar import groups, load_network, load_sets, some
    from run import eager, taking_turns

    model, mean_, std = load_network(options.checkpoint)
    model.dropout = torch.nn.Dropout(DROPOUT)
    model = model.to(options.device).eval()
    every = load_sets(options.data, mean_, std)
    sets = {name: some(part, options.inputs).to(options.device) for name, part in every.items()}
    labels = sets["id_val_labels"].cpu()
    val = sets["id_val"].cpu(), labels
    methods = {**theirs(model, val, std, options), **ours(model, val, options)}
    x = sets["id_test"][: options.batch]
    runs = {"eager": eager(model, x, tf32=True)}
    runs |= {name: (lambda score=score: score(x)) for name, score in methods.items()}
    times = taking_turns(runs, options.rounds, warm_up=3)
    rows = []
    for name, score in methods.items():
        row = {"method": name, "ms": times[name], "passes": times[name] / times["eager"]}
        row["passes"] = round(row["passes"], 3)
        inside = scored(score, sets["id_test"], options.batch)
        for group, names in groups(sets).items():
            found = {n: auroc_of(inside, scored(score, sets[n], options.batch)) for n in names}
            row[group] = round(mean(found.values()), 2)
            row |= found
        rows.append(row)
        print(json.dumps(row), flush=True)
    return {
        "machine": machine(threads=torch.get_num_threads())
        | ({"device": torch.cuda.get_device_name()} if options.device != "cpu" else {}),
        "versions": {name: installed(name) for name in ("pytorch-ood", "laplace-torch")},
        "command": " ".join(["benchmarks/speed/peers.py", *sys.argv[1:]]),
        "checkpoint": options.checkpoint.name,
        "images": {name: len(part) for name, part in sets.items() if "labels" not in name},
        "recipe": options.recipe,
        "batch": options.batch,
        "rounds": options.rounds,
        "eager_ms": times["eager"],
        "rows": rows,
    }


def theirs(model: Any, val: Any, std: Any, options: argparse.Namespace) -> dict[str, Callable]:
    """The other packages' detectors, as functions of a batch; high = unsure."""
    import torch

    load_pytorch_ood()
    from pytorch_ood.detector import MCD, ODIN, EnergyBased

    energy = EnergyBased(model)
    odin = ODIN(model, norm_std=std.tolist())
    dropout = MCD(model, samples=PASSES, mode="mean")
    fitted = laplace(model, val, options)

    def entropy(x: Any) -> Any:
        probs = fitted(x, link_approx="probit").detach()
        return -torch.special.xlogy(probs, probs).sum(1)

    def without_gradients(score: Callable) -> Callable:
        def run(x: Any) -> Any:
            with torch.no_grad():
                return score(x)

        return run

    return {
        "pytorch-ood, EBO": without_gradients(energy.predict),
        "pytorch-ood, ODIN": odin.predict,
        f"pytorch-ood, MC-Dropout, {PASSES} passes": without_gradients(dropout.predict),
        "laplace-torch, last layer": without_gradients(entropy),
    }


def load_pytorch_ood() -> None:
    """Import it, also where its torchvision belongs to another build of torch."""
    try:
        import pytorch_ood.detector  # noqa: F401
    except RuntimeError:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))
        from reference_pytorch_ood import load

        for name in [name for name in sys.modules if name.startswith(("torchvision", "pytorch_"))]:
            del sys.modules[name]
        load()


def laplace(model: Any, val: Any, options: argparse.Namespace) -> Any:
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    with contextlib.redirect_stdout(io.StringIO()):
        found = Laplace(
            model,
            "classification",
            subset_of_weights="last_layer",
            hessian_structure="kron",
            last_layer_name="fc",
        )
        moved = TensorDataset(*(part.to(options.device) for part in val))
        found.fit(DataLoader(moved, batch_size=options.batch))
        found.optimize_prior_precision(method="marglik")
    return found


def ours(model: Any, val: Any, options: argparse.Namespace) -> dict[str, Callable]:
    """Our detectors through the fast engine."""
    import tulip_ood

    os.environ["TULIP_OOD_FAST"] = "earned=0"
    common = {
        "precision": "float32" if options.device == "cpu" else "half",
        "batch_size": options.batch,
    }
    found = {"ours, EBO": tulip_ood.detectors.Energy(model, **common).fit([val])}
    for name, settings in TULIPS.items():
        found[name] = tulip_ood.Tulip(model, **settings, **common).fit([val], recipe=options.recipe)
        refused = found[name].engine.fast.refused
        assert refused is None, refused
    return {name: detector.score for name, detector in found.items()}


def scored(score: Callable, x: Any, batch: int) -> Any:
    import torch

    return torch.cat([score(part).detach().double().cpu() for part in x.split(batch)])


def auroc_of(inside: Any, outside: Any) -> float:
    from tulip_ood.numerics.metrics import auroc

    return round(100 * auroc(inside, outside), 2)


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # carried as a folder, without its metadata
        return "unknown"


# ------------------------------------------------------------------------------------ drawing


def draw(found: dict[str, Any], folder: Path = PICTURE) -> None:
    """AUROC over time, the near sets on the left and the far ones on the right."""
    from tulip_ood.figures.canvas import COLOURS, DPI, canvas
    from tulip_ood.figures.columns import below

    with canvas(11.5, 6.2) as figure:
        for axes, group in zip(figure.subplots(1, 2), ("near", "far"), strict=True):
            for number, row in enumerate(found["rows"]):
                mine = not row["method"].startswith(("pytorch", "laplace"))
                colour = COLOURS["blue" if mine else "vermilion"]
                hollow = row["method"].endswith("EBO")  # what comes near it stays visible
                axes.plot(
                    row["passes"], row[group], "osD^vPX<h"[number], ms=13, ls="", mew=2,
                    mfc="none" if hollow else colour, mec=colour if hollow else "white",
                    label=f"{row['method']}  ({row['passes']:.2g})",
                )  # fmt: skip
            axes.set_xscale("log")
            axes.set_xlabel("time, in eager passes of the network")
            axes.set_title(f"{group} OOD")
            axes.margins(0.12)
            axes.grid(alpha=0.3)
            low, high = axes.get_xlim()
            axes.set_xticks([tick for tick in TICKS if low <= tick <= high])
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_formatter(lambda value, _: "")
        figure.axes[0].set_ylabel("mean AUROC, %")
        figure.legend(
            *figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3
        )
        device = found["machine"].get("device", found["machine"]["cpu"])
        images = found["images"]["id_test"]
        below(
            figure,
            f"CIFAR-10 ResNet-18 with dropout on {device}: batches of {found['batch']}, medians of "
            f"{found['rounds']} turns, times in brackets; {images} images of each set. Blue: this "
            f"package; orange: others.",
        )
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("png", "svg"):
            metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
            figure.savefig(folder / f"speed-peers.{kind}", dpi=DPI, metadata=metadata)


if __name__ == "__main__":
    main()
