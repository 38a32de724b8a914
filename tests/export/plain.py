"""An artefact where nothing of ours is, and what it promises."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tulip_ood.detectors.base import Detector

# What a server has: numpy and onnxruntime. Anything else of ours is refused.
PLAIN = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "tulip_ood", "onnx", "onnxscript"):
            raise ImportError("not on this machine: " + name)

sys.meta_path.insert(0, Refused())
import json
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
about = json.loads(session.get_modelmeta().custom_metadata_map["tulip"])
x = np.load(sys.argv[2])
parts = [session.run(None, {"input": part}) for part in np.array_split(x, 3)]
names = [output.name for output in session.get_outputs()]
np.savez(sys.argv[3], **{n: np.concatenate(c) for n, c in zip(names, zip(*parts))})
assert "torch" not in sys.modules
print(about["method"], about["threshold"]["value"])
"""


def close(found: Any, detector: Detector, x: Tensor) -> None:
    """All that the issue promises: 1e-4 of the validation scores' range."""
    expected = detector.predict(x)
    spread = detector.calibration.spread
    assert np.abs(found["score"] - expected.score.numpy()).max() <= 1e-4 * spread
    np.testing.assert_allclose(found["probs"], expected.probs, atol=1e-4)
    np.testing.assert_array_equal(found["label"], expected.label)
    assert detector.threshold is not None
    far = (expected.score - detector.threshold.value).abs() > 1e-4 * spread
    np.testing.assert_array_equal(found["accepted"][far], expected.accepted[far])
    # Scores that round otherwise may change places with one or two calibration scores.
    n = detector.calibration.n_inputs
    assert np.abs(found["p_value"] - expected.p_value.numpy()).max() <= 2.5 / n


def run_plainly(path: Path, x: Tensor, detector: Detector) -> Any:
    """The answers of plain onnxruntime, in a process that cannot import PyTorch."""
    given, answers = path.with_name("x.npy"), path.with_name("answers.npz")
    np.save(given, x.numpy())
    ran = subprocess.run(
        [sys.executable, "-c", PLAIN, str(path), str(given), str(answers)],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert detector.threshold is not None
    assert ran.stdout.split() == [detector.name, str(detector.threshold.value)]
    return np.load(answers)
