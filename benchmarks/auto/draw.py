"""Finding OOD inputs and ordering one's own errors, in one picture: docs/images/auto.png.

    python benchmarks/auto/draw.py

From result-judge.json: every method's mean over the tasks on which all were judged.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from auto_tables import QUIET, over_tasks, with_rivals

from tulip_ood.figures.canvas import COLOURS, canvas, note, save

HERE = Path(__file__).parent
IMAGES = HERE.parent.parent / "docs" / "images"
NAMES = {
    "ent": "entropy", "gen": "GEN", "ebo": "EBO", "nci": "NCI", "react": "ReAct",
    "noise": "noise averaging",
    "tulip[recipe=balanced]": "TULiP, balanced", QUIET: "Auto, no noise", "auto": "Auto",
}  # fmt: skip
BELOW = {"knn": "KNN", "scale": "SCALE", "adascale-a": "AdaSCALE-A"}
SIZES = {"Auto": 170, "Auto, no noise": 110}
PLACES = {
    "entropy": (8, -16), "TULiP, balanced": (-30, 10), "noise averaging": (-112, -5),
    "EBO": (10, 6), "NCI": (10, -5), "ReAct": (10, -5), "Auto": (10, 4),
    "Auto, no noise": (-58, -19),
    "GEN": (10, -5),
}  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    tasks = with_rivals(json.loads((HERE / "result-judge.json").read_text())["tasks"])
    rows = []
    with canvas(8.4, 5.2) as figure:
        axes = figure.subplots()
        axes.axhline(0, color=COLOURS["grey"], lw=0.8, zorder=0)
        axes.axvline(0, color=COLOURS["grey"], lw=0.8, zorder=0)
        for name, title in NAMES.items():
            near, far, errors, _ = over_tasks(tasks, name)
            found = (near + far) / 2
            ours = title.startswith("Auto")
            tulip = "TULiP" in title
            colour = COLOURS["vermilion" if ours else "blue" if tulip else "grey"]
            axes.scatter(
                errors, found, s=SIZES.get(title, 65), marker="*" if ours else "o", color=colour,
                zorder=3,
            )  # fmt: skip
            axes.annotate(
                title, (errors, found), xytext=PLACES[title], color=colour,
                textcoords="offset points", fontweight="bold" if title == "Auto" else "normal",
            )  # fmt: skip
            rows.append({"method": title, "aurc_per_cent": errors, "auroc_points": found})
        axes.set_xscale("symlog", linthresh=10)
        ticks = [-5, 0, 5, 10, 30, 100, 300]
        axes.set_xticks(
            ticks, [f"{tick:+d} %".replace("-", "−") if tick else "0" for tick in ticks]
        )
        axes.set_xlim(-9.9, 420)
        axes.set_ylim(-0.8, 5.8)
        axes.set_xlabel("worse order of the network's own errors (AURC, beside entropy's)  →")
        axes.set_ylabel("finds more OOD (AUROC, points)  →")
        lost = {title: sum(over_tasks(tasks, name)[:2]) / 2 for name, title in BELOW.items()}
        lower = ", ".join(f"{title} −{abs(points):.0f}" for title, points in lost.items())
        note(axes, f"below: {lower} points", x=0.02, y=0.03, color=COLOURS["grey"])
        axes.set_title(f"Means of near and far over {len(tasks)} tasks, beside plain entropy")
        with tempfile.TemporaryDirectory() as folder:
            drawn = save(figure, "auto", folder, rows, {"tasks": len(tasks)})
            shutil.copy(drawn.files[0], IMAGES / "auto.png")


if __name__ == "__main__":
    main()
