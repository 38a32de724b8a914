"""A deployed classifier learns to say "I don't know": fit, promise, save; load, guard a folder.

The network reads digits 0 to 7. Into its inbox come such digits, but also 8s and 9s, scraps of
photographs, and a file that is no picture. What is accepted goes on with its answer; everything
else goes to a person, with the reason.

    python examples/guard_a_classifier.py
"""

import argparse
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn

import tulip_ood as tulip
from tulip_ood.demo.data import DigitData, load_data
from tulip_ood.models.digits import train_digit_net


def make_detector(model: nn.Module, data: DigitData, path: Path, quick: bool) -> None:
    """Once, where the validation data is: fit, ask for a promise, write a file."""
    detector = tulip.Tulip(model).fit([data.validation], recipe="balanced" if quick else "self")
    try:
        detector.set_threshold(max_error=0.05)  # of what is accepted, with 95 % confidence
    except tulip.TulipError as error:  # the data cannot promise that: it says what it can
        print(error)
        detector.set_threshold(false_alarm=0.05)
    print(detector.threshold.promise, end="\n\n")
    detector.save(path)


def guard(detector: tulip.Tulip, inbox: Path) -> dict[str, str]:
    """In the service: what happens to each file of the folder."""
    pictures: dict[str, Tensor] = {}
    decided: dict[str, str] = {}
    for path in sorted(inbox.iterdir()):
        try:
            grey = np.asarray(Image.open(path).convert("L"), dtype=np.float32) / 255
            pictures[path.name] = torch.from_numpy(grey)[None]
        except (UnidentifiedImageError, OSError):
            decided[path.name] = "to a person: not a picture"
    answers = detector.predict(torch.stack(list(pictures.values())))
    for i, name in enumerate(pictures):
        reason = answers.reason[i]
        label = int(answers.label[i])
        decided[name] = f"answered: {label}" if answers.accepted[i] else f"to a person: {reason}"
    return decided


def fill(inbox: Path, data: DigitData, each: int) -> None:
    """Some of everything, named after what it is."""
    images, labels = data.test
    sets = {"digit": images, **data.ood}
    for name, part in sets.items():
        for i, image in enumerate(part[:each]):
            what = f"digit {int(labels[i])}" if name == "digit" else name
            grey = (255 * image[0]).round().to(torch.uint8).numpy()
            Image.fromarray(grey).save(inbox / f"{what} #{i:03}.png")
    (inbox / "invoice #000.png").write_text("not a picture at all")


def main() -> None:
    """Make a network, then do what a user would do."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="tiny and poor: to see that it runs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", tulip.TulipWarning)  # findings stand in detector.report()
    data = load_data(seed=0)
    model = train_digit_net(*data.train, classes=8, epochs=3 if quick else 60)
    with tempfile.TemporaryDirectory() as folder:
        file, inbox = Path(folder, "detector.safetensors"), Path(folder, "inbox")
        inbox.mkdir()
        fill(inbox, data, each=20 if quick else 200)
        make_detector(model, data, file, quick)
        decided = guard(tulip.load(file, model), inbox)  # refuses any other network
    counts: Counter[tuple[str, str]] = Counter()
    for name, decision in decided.items():
        what, kind = name.split(" #")[0], decision.split(":")[0]
        if kind == "answered":
            kind = "answered, right" if decision.endswith(what[-2:]) else "answered, wrong"
        counts["digits 0 to 7" if what.startswith("digit ") else what, kind] += 1
    for (what, kind), n in sorted(counts.items()):
        print(f"{n:4} × {what:16} {kind}")
    print("\nfor instance")
    for name in list(decided)[:: len(decided) // 6]:
        print(f"  {name}: {decided[name]}")


if __name__ == "__main__":
    main()
