"""`tulip compare` on folders of images, as a user calls it."""

import json
from pathlib import Path
from typing import Any

from .conftest import PREPARED, Tulip

ARGUMENTS = ["compare", "tulip_tiny:make", "--id-val", "val", "--id-test", "test"]


def test_a_table_a_verdict_and_json(tulip: Tulip, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    result = tulip(
        *ARGUMENTS, "--far", "odd=ood", "--methods", "msp,knn,mcd,msp&knn", *PREPARED,
        "--train", "val", "--json", str(out),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Fitted on the same 150 validation inputs, judged on 60 ID inputs" in result.stdout
    assert "Fitted on 150 training inputs" in result.stdout
    assert "Use " in result.stdout
    assert "mcd: MC-Dropout needs dropout layers" in result.stdout
    found: dict[str, Any] = json.loads(out.read_text())
    assert set(found["tracks"]["val"]["methods"]) == {"msp", "ent", "knn", "msp&knn"}
    assert found["tracks"]["val"]["groups"] == {"odd": "far"}


def test_wrong_use_is_said_in_one_line(tulip: Tulip) -> None:
    for more, words in (
        ([], "--ood"),
        (["--ood", "ood", "--near", "ood"], "two OOD sets"),
        (["--ood", "ood", "--methods", "nonsense"], "unknown method"),
        (["--ood", "nowhere"], "nowhere"),
    ):
        result = tulip(*ARGUMENTS, *PREPARED, *more)
        assert result.exit_code == 2, result.output
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
