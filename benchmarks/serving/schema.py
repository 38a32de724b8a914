"""schemathesis over the OpenAPI schema: whatever it makes up, the server answers as it promises.

    .venv/bin/python benchmarks/serving/schema.py --schemathesis ENV/bin/schemathesis

Writes schema.json beside this file: which checks ran, how they ended, and how many answers of each
status the server itself has counted. No 5xx is allowed, nor a status, a type or a body that the
schema does not name. The check positive_data_acceptance is left out: a schema cannot say
which bytes are a picture.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from started import prepared, serving

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)
TOKEN = "a-token-for-the-test"
# Too many images are refused with 413, which schemathesis does not know as a refusal by itself.
CONFIG = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 405, 413, 415, 422]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schemathesis", default="schemathesis")
    parser.add_argument("--folder", type=Path, help="keep the network and pictures here")
    parser.add_argument("--examples", type=int, default=60, help="of every operation and phase")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("schema.json"))
    options = parser.parse_args()
    runs = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = prepared(options.folder or Path(temporary))
        for name, arguments in {
            "open": ["--admin-token", TOKEN],
            "guarded": ["--token", TOKEN],
        }.items():
            with serving(folder, *arguments) as (url, _):
                runs[name] = tried(options, url, Path(temporary, "schemathesis.toml"))
    held = all(run["exit"] == 0 and not run["server_errors"] for run in runs.values())
    version = subprocess.run([options.schemathesis, "--version"], capture_output=True, text=True)
    result = {
        "command": "make evidence-serving",
        "schemathesis": version.stdout.split()[-1],
        "checks": CHECKS,
        "examples": options.examples,
        "held": held,
        "runs": runs,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    sys.exit(0 if held else 1)


def tried(options: argparse.Namespace, url: str, config: Path) -> dict[str, object]:
    config.write_text(CONFIG)
    command = [
        options.schemathesis,
        "--config-file",
        str(config),
        "run",
        f"{url}openapi.json",
        "--checks",
        ",".join(CHECKS),
    ]
    command += ["--header", f"Authorization: Bearer {TOKEN}", "--seed", "1", "--no-color"]
    command += ["--max-examples", str(options.examples), "--continue-on-failure"]
    command += ["--suppress-health-check", "all"]
    # It leaves a folder with failures where it runs.
    done = subprocess.run(command, capture_output=True, text=True, cwd=config.parent)
    print(done.stdout[-6000:], done.stderr[-2000:])
    asked = urllib.request.Request(f"{url}metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(asked) as reply:
        metrics = reply.read().decode()
    pattern = r'tulip_requests_total\{path="([^"]+)",status="(\d+)"\} (\d+)'
    counts: dict[str, dict[str, int]] = {}
    for path, status, count in re.findall(pattern, metrics):
        counts.setdefault(path, {})[status] = int(count)
    errors = sum(
        count for by in counts.values() for status, count in by.items() if status[0] == "5"
    )
    return {"exit": done.returncode, "server_errors": errors, "answers": counts}


if __name__ == "__main__":
    main()
