"""What says that it scores where the passes are, does: on an accelerator that is pretended."""

import json
import subprocess
import sys
from pathlib import Path


def test_scores_of_passes_on_an_accelerator() -> None:
    program = Path(__file__).with_name("pretended.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) >= {"auto", "knn", "nci", "react", "tulip", "tulip+scale", "tulip&knn"}
    assert set(found.values()) == {"pretended"}
