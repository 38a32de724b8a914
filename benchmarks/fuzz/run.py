"""The long run of tests/fuzz: many files of every kind, by chance instead of always the same.

    make evidence-fuzz FILES=2000

What is found here goes into tests/fuzz as a case of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import machine

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000, help="of each kind")
    files = parser.parse_args().files
    begin = time.perf_counter()
    with TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = ["-m", "pytest", "tests/fuzz", "-n", "0", "-q", f"--junitxml={report}"]
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=os.environ | {"TULIP_FUZZ": str(files)},
            check=False,
        )
        cases = list(ElementTree.parse(report).iter("testcase"))
    result = {
        "command": f"make evidence-fuzz FILES={files}",
        "files for a test of weight 1": files,
        "tests": {
            f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}": "failed"
            if case.find("failure") is not None or case.find("error") is not None
            else "passed"
            for case in cases
        },
        "kept": done.returncode == 0,
        "minutes": round((time.perf_counter() - begin) / 60, 1),
        "machine": machine(threads=1),
    }
    (HERE / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
