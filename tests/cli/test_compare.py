"""`tulip compare` on folders of images, as a user calls it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

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


def test_methods_carry_their_settings_in_brackets(tulip: Tulip, tmp_path: Path) -> None:
    """Written as for `calibrate` and `bench`; the scores are those of a detector fitted so."""
    out = tmp_path / "found.json"
    methods = "knn,knn[k=9000],tulip[recipe=balanced, n_samples=4]"
    result = tulip(
        *ARGUMENTS, "--far", "odd=ood", "--methods", methods, *PREPARED, "--json", str(out)
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["tracks"]["val"]["methods"]
    assert set(rows) == {"ent", "knn", "knn[k=9000]", "tulip[n_samples=4,recipe=balanced]"}
    assert rows["knn"]["sets"] != rows["knn[k=9000]"]["sets"]
    assert "tulip[n_samples=4,recipe=balanced]" in result.stdout


def test_wrong_use_is_said_in_one_line(tulip: Tulip) -> None:
    for more, words in (
        ([], "--ood"),
        (["--ood", "ood", "--near", "ood"], "two OOD sets"),
        (["--ood", "ood", "--methods", "nonsense"], "unknown method"),
        (["--ood", "ood", "--methods", "msp,knn[k=5"], "'knn[k=5' is no method: expected NAME"),
        (["--ood", "ood", "--methods", "msp[colour=red]"], "settings of msp[colour=red]"),
        (["--ood", "ood", "--methods", "auto[strength=-2]"], "must be finite and not negative"),
        (["--ood", "ood", "--methods", "knn[tune=ood]"], "the OOD inputs to tune on with --tune"),
        (["--ood", "ood", "--methods", "msp[recipe=paper]"], "only TULiP is fitted by a recipe"),
        (["--ood", "nowhere"], "nowhere"),
        (["--ood", "a="], "as NAME=SRC or SRC, got 'a='"),
        (["--ood", "=ood"], "as NAME=SRC or SRC, got '=ood'"),
        (["--ood", "ood", "--id-test", "ood"], "--id-test: 30 of 90 inputs of test, ood have no"),
        (["--ood", "ood", "--id-test", "ood"], "errors, by which methods are judged"),
        (["--ood", "ood", "--train", "ood"], "fitting needs the label of every input. Use class"),
    ):
        result = tulip(*ARGUMENTS, *PREPARED, *more)
        assert result.exit_code == 2, result.output
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_what_cannot_be_read_is_counted_by_what_it_is_for(
    tulip: Tulip, project: Path, tmp_path: Path
) -> None:
    """Folders of one name, with 1, 2 and 3 files that are no images."""
    places = [tmp_path / place / "same" for place in ("a", "b", "c")]
    for broken, (place, source) in enumerate(zip(places, ("val", "test", "ood"), strict=True), 1):
        shutil.copytree(project / source, place)
        for i in range(broken):
            folder = place if source == "ood" else place / "red"
            (folder / f"broken{i}.png").write_bytes(b"no image")
    val, test, ood = places
    out = tmp_path / "found.json"
    result = tulip(
        "compare", "tulip_tiny:make", "--id-val", val, "--id-test", test, "--ood", ood,
        "--tune", ood, "--methods", "msp", *PREPARED, "--json", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert found["unreadable"] == {"id_val": 1, "id_test": 2, "tune": 3, "ood/same": 3}
    assert "1 input of id_val could not be read" in result.stderr
    assert "2 inputs of id_test could not be read" in result.stderr
    assert found["tuned_on"] == {"same": 30}


def test_numbers_instead_of_classes(tulip: Tulip, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, n in (("val", 120), ("test", 60)):
        x = rng.normal(size=(n, 3, 8, 8)).astype("f4")
        np.savez(tmp_path / f"{name}.npz", x=x, y=x.mean(axis=(1, 2, 3)))
    np.savez(tmp_path / "wide.npz", x=4 * x)
    result = tulip(
        "compare", "tulip_tiny:single", "--task", "regression", "--methods", "knn",
        "--id-val", tmp_path / "val.npz", "--id-test", tmp_path / "test.npz",
        "--far", tmp_path / "wide.npz",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "± to noise averaging" in result.stdout
