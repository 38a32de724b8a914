"""`Auto` without noise, two passes instead of thirteen, beside `Auto` and entropy.

    python benchmarks/auto/quiet.py birds --data FOLDER --network birds_1.safetensors \
        --study birds_1.npz

Fits and scores `Auto(model, n_samples=0)` on a CPU and compares it with what `study.py` has stored
of the same network: entropy's and `Auto`'s scores. Adds the network to result-quiet.json:
differences to entropy as in judge.py.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
from studied import Studied
from study import task_of

from tulip_ood import Auto

RESULT = Path(__file__).with_name("result-quiet.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--network", required=True)
    parser.add_argument("--study", required=True, help="what study.py has stored of it")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=250)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    one = Studied.of(given.study)
    task = task_of(given.task, given.data, given.network, given.limit)
    detector = Auto(task.model, n_samples=0, batch_size=given.batch).fit([task.val])
    sources = {"test": task.test[0], "shifted": task.shifted[0], **task.sets}
    scores = {name: detector.score(x).double().numpy() for name, x in sources.items()}
    found = {
        "auto": one.differences(one.method("auto")),
        "without noise": one.differences(scores),
    }
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    own = {name: np.round(values, 2).tolist() for name, values in found.items()}
    known.setdefault(given.task, {})[one.name] = {**own, "report": detector._report_lines()}
    RESULT.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    print(one.name, own, flush=True)


if __name__ == "__main__":
    main()
