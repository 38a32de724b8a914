"""The wheel and the sdist as a stranger gets them: in an empty environment, the demo must run.

    make evidence-release

Builds both, makes a virtual environment with nothing in it, installs the wheel with the extra
`demo` through constraints.txt, and runs `tulip demo` in a folder that does not know the repository.
"""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import machine

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run(*command: str, cwd: Path) -> str:
    """What a command prints; its environment does not know of this repository either."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=cwd, env=clean, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def build(out: Path) -> tuple[Path, Path]:
    run(sys.executable, "-m", "build", "--quiet", "--outdir", str(out), str(ROOT), cwd=out)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def about(file: Path, names: list[str]) -> dict[str, Any]:
    return {"file": file.name, "bytes": file.stat().st_size, "files": len(names)}


def main() -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "dist").mkdir()
        wheel, sdist = build(place / "dist")
        with zipfile.ZipFile(wheel) as packed, tarfile.open(sdist) as tar:
            in_wheel, in_sdist = packed.namelist(), tar.getnames()
        assert "tulip_ood/py.typed" in in_wheel
        assert not [
            n for n in in_wheel if n.startswith(("tests/", "docs/", "benchmarks/", "tools/"))
        ]
        files = about(wheel, in_wheel), about(sdist, in_sdist)
        venv.create(place / "env", with_pip=True)
        python = str(place / "env" / "bin" / "python")
        constraints = str(ROOT / "constraints.txt")
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        run(*pip, "--constraint", constraints, f"{wheel}[demo]", cwd=place)
        tulip = str(place / "env" / "bin" / "tulip")
        version = run(tulip, "--version", cwd=place).strip()
        run(tulip, "demo", "--out", "tulip-demo", cwd=place)
        made = sorted(p.name for p in (place / "tulip-demo").iterdir())
        assert "report.html" in made
        installed = run(python, "-m", "pip", "list", "--format=freeze", cwd=place).split()
    result = {
        "command": "make evidence-release",
        "version": version,
        "wheel": files[0],
        "sdist": files[1],
        "installed": installed,
        "written by tulip demo": made,
        "machine": machine(threads=1),
    }
    (HERE / "result.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(result, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
