"""`tulip calibrate`: from a network and a folder to a detector file."""

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import Result

import tulip_ood
from tulip_ood.data.opening import open_sources
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.detectors.recipes import recipe_named
from tulip_ood.detectors.saving import read_header
from tulip_ood.models.spec import load_model

Tulip = Callable[..., Result]
PREPARED = ("--crop", "8", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25")


def test_the_file_says_where_everything_came_from(tulip: Tulip, detectors: Path) -> None:
    header = read_header(detectors / "tulip.safetensors")
    assert header["model_spec"] == "tulip_tiny:make"
    assert header["classes"] == ["blue", "green", "red"]
    preprocess = Preprocess.from_json(header["preprocess"])
    assert preprocess.crop == 8
    assert header["preprocess_sha256"] == preprocess.fingerprint
    assert header["recipe"] == recipe_named("balanced").name
    assert header["config"]["n_samples"] == 4


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")  # J* is huge on so small a network
@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_the_command_fits_what_python_fits(tulip: Tulip, project: Path, detectors: Path) -> None:
    model = load_model("tulip_tiny:make").module
    prepared = Preprocess(8, 8, (0.5,) * 3, (0.25,) * 3)
    rows = list(open_sources(["val"]).read())
    x = prepared.normalise(np.stack([prepared.pixels(raw) for _, raw in rows]))
    y = torch.tensor([row.label for row, _ in rows])
    ours = tulip_ood.Tulip(model, n_samples=4).fit([(x, y)], recipe="balanced")
    theirs = tulip_ood.load(detectors / "tulip.safetensors", model)
    assert torch.equal(ours.score(x), theirs.score(x))


def test_what_is_shown_and_what_is_written(tulip: Tulip, tmp_path: Path) -> None:
    out, found = tmp_path / "d.safetensors", tmp_path / "d.json"
    result = tulip(
        "calibrate", "tulip_tiny:make", "--data", "val", "--out", out, "--json", found,
        "--recipe", "balanced", "--samples", "2", "--score", "msp", "--seed", "3",
        "--scope", "head", "--false-alarm", "0.1", *PREPARED,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "perturbed copies of the weights will be held in memory: 0.0 MB on cpu" in result.stderr
    assert "tulip, fitted on 150 validation inputs" in result.stdout
    assert f"wrote {out}" in result.stdout
    told = json.loads(found.read_text())
    assert (told["threshold"]["kind"], told["threshold"]["target"]) == ("false_alarm", 0.1)
    assert (told["model_spec"], told["unreadable"]) == ("tulip_tiny:make", [])
    config = read_header(out)["config"]
    assert (config["score"], config["seed"], config["n_samples"]) == ("msp", 3, 2)
    assert config["scope"] == ["head.weight", "head.bias"]


def test_the_default_recipe_and_real_ood(tulip: Tulip, tmp_path: Path) -> None:
    out = tmp_path / "d.safetensors"
    arguments = ["calibrate", "tulip_tiny:make", "--data", "val", "--out", out, "--samples", "2"]
    assert tulip(*arguments, "--tune", "ood", *PREPARED).exit_code == 0
    assert read_header(out)["recipe"] == recipe_named("self").name


def test_an_error_rate_that_can_be_promised_and_one_that_cannot(
    tulip: Tulip, tmp_path: Path
) -> None:
    out = tmp_path / "d.safetensors"
    arguments = ["calibrate", "tulip_tiny:make", "--data", "val", "--out", out, "--method", "msp"]
    result = tulip(*arguments, "--max-error", "0.5", "--confidence", "0.8", *PREPARED)
    assert result.exit_code == 0, result.output
    threshold = read_header(out)["threshold"]
    assert (threshold["kind"], threshold["confidence"]) == ("max_error", 0.8)
    out.unlink()
    found = tmp_path / "d.json"
    result = tulip(*arguments, "--max-error", "0.0001", "--json", found, *PREPARED)
    assert result.exit_code == 2
    assert re.search(r"cannot be promised .* the lowest that can is 0\.\d+", result.stderr)
    assert "is kept" in result.stderr
    assert "refuses at most 5.0 %" in result.stderr.replace("\u202f", " ").replace("\xa0", " ")
    threshold = read_header(out)["threshold"]  # hours of fitting are not thrown away
    assert (threshold["kind"], threshold["target"]) == ("false_alarm", 0.05)
    assert json.loads(found.read_text())["threshold"]["kind"] == "false_alarm"


def test_arrays(tulip: Tulip, tmp_path: Path) -> None:
    out = tmp_path / "d.safetensors"
    arguments = ["calibrate", "tulip_tiny:make", "--method", "ent", "--out", out]
    assert tulip(*arguments, "--data", "ready.npz").exit_code == 0
    header = read_header(out)
    assert (header["preprocess"], header["classes"]) == (None, None)
    assert tulip(*arguments, "--data", "images.npz", *PREPARED).exit_code == 0
    assert read_header(out)["preprocess"]["crop"] == 8
    result = tulip(*arguments, "--data", "ready.npz", *PREPARED)
    assert (result.exit_code, "normalised already" in result.stderr) == (2, True)


def test_settings_of_a_method_stand_in_brackets(tulip: Tulip, tmp_path: Path) -> None:
    out = tmp_path / "auto.safetensors"
    asked = ("calibrate", "tulip_tiny:make", "--data", "val", "--out", out, *PREPARED)
    word = "auto[strength=0.5,mirror=false]"
    result = tulip(*asked, "--method", word, "--samples", "4")
    assert result.exit_code == 0, result.output
    header = read_header(out)
    assert (header["method"], header["config"]["n_samples"]) == ("auto", 4)
    assert (header["config"]["strength"], header["config"]["mirror"]) == (0.5, False)
    again = tulip(*asked, "--like", out, "--method", "auto[strength=2]")
    assert again.exit_code == 0, again.output
    config = read_header(out)["config"]
    assert (config["strength"], config["mirror"], config["n_samples"]) == (2, False, 4)


def test_everything_of_tulip_can_be_said_on_the_command_line(tulip: Tulip, tmp_path: Path) -> None:
    """By an option, or in brackets; a function (output) belongs into the factory."""
    brackets = {
        "delta": "4",
        "sqrt_outputs": "true",
        "antithetic": "false",
        "layer_scale": '{"*.weight":0.5,"*.bias":2}',
        "initial_mean": '{"head.weight":0.25}',
        "shaping": "scale",
        "head": "head",
        "precision": "auto",
        "hold": "false",
        "fit_memory": "100000000",
    }
    inside = ",".join(f"{name}={value}" for name, value in brackets.items())
    chosen = {
        "score": "gen", "samples": "4", "epsilon": "0.01", "drift": "pass", "lam": "0.5", "j": "1",
        "scope": "all", "seed": "7", "task": "classification", "batch-size": "32", "device": "cpu",
    }  # fmt: skip
    words = [word for name, value in chosen.items() for word in (f"--{name}", value)]
    out = tmp_path / "d.safetensors"
    result = tulip(
        "calibrate", "tulip_tiny:make", "--data", "val", "--out", out, "--recipe", "balanced",
        "--method", f"tulip[{inside}]", *words, *PREPARED,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    config = read_header(out)["config"]
    assert (config["j"], config["delta"], config["seed"], config["hold"]) == (1.0, 4, 7, False)
    assert config["as_given"]["layer_scale"] == {"*.weight": 0.5, "*.bias": 2}
    known = set(inspect.signature(tulip_ood.Tulip.__init__).parameters) - {"self", "model"}
    said = {*brackets, *chosen} - {"samples", "batch-size"} | {"n_samples", "batch_size"}
    assert known - said == {"output"}


def test_several_sources_and_unreadable_files(tulip: Tulip, tmp_path: Path) -> None:
    (tmp_path / "blue").mkdir()
    (tmp_path / "blue" / "bad.png").write_bytes(b"")
    classes = tmp_path / "classes.txt"
    classes.write_text("blue\ngreen\nred\n")
    out, found = tmp_path / "d.safetensors", tmp_path / "d.json"
    result = tulip(
        "calibrate", "tulip_tiny:make", "--data", tmp_path, "--data", "val", "--out", out,
        "--method", "msp", "--classes", classes, "--json", found, *PREPARED,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "1 input could not be read" in result.stderr
    assert "the file is empty (0 bytes)" in result.stderr
    assert json.loads(found.read_text())["facts"]["n_validation"] == 150


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["--recipe", "magic"], "unknown recipe 'magic'"),
        (["--method", "magic"], "unknown method 'magic'"),
        (["--method", "msp", "--epsilon", "0.1"], "the method msp has no --epsilon"),
        (["--method", "msp", "--samples", "3"], "the method msp has no --samples"),
        (["--method", "auto[strenght=2]"], "auto has no argument 'strenght'; it takes batch_size"),
        (["--method", "auto[strength=-2]"], "strength must be finite and not negative, got -2"),
        (["--method", "auto[n_samples=4]"], "n_samples has an option of its own, --samples"),
        (["--method", "knn[batch_size=4]"], "batch_size has an option of its own, --batch-size"),
        (["--method", "tulip[recipe=paper]"], "recipe has an option of its own, --recipe"),
        (["--method", "auto[strength"], "is no method: expected NAME or NAME"),
        (["--method", "tulip[j=1]"], "j has an option of its own, --j"),
        (["--method", "tulip[delta=4,delta=5]"], "delta is given twice"),
        (["--method", "tulip[hold=no]"], "hold must be True or False, got 'no'"),
        (["--method", "tulip[antithetic=7]"], "antithetic must be True or False, got 7"),
        (["--method", "tulip[initial_mean=0.1]"], "initial_mean must be a mapping like"),
        (["--method", "msp", "--recipe", "self"], "leave out --recipe"),
        (["--method", "msp", "--tune", "ood"], "leave out --tune"),
        (["--score", "magic"], "choose from"),
        (["--task", "magic"], "choose from"),
        (["--epsilon", "-1"], "epsilon must be positive"),
        (["--seed", "-1"], "a seed must be a whole number from 0"),
        (["--seed", str(2**63)], "a seed must be a whole number from 0"),
        (["--false-alarm", "1.5"], "--false-alarm must lie between 0 and 1"),
        (["--false-alarm", "0.1", "--max-error", "0.1"], "either"),
        (["--confidence", "0.9"], "belongs to --max-error"),
        (["--device", "magic"], "device 'magic' cannot be used"),
        (["--data", "labels-missing.txt"], "--data: 1 of 152 inputs .* have no label"),
        (["--mean", "a,b"], "takes numbers"),
        (["--mean", "127.5,116,nan"], "--mean 127.5,116,nan: pixels lie between 0 and 1, and so"),
        (["--std", "58,57,57"], r"divide by 255 \(--std 0.227,0.224,0.224\)"),
        (["--mean", "-0.5,0,0"], "--mean -0.5,0,0: pixels lie between 0 and 1, and so do"),
        (["--mean", "0.1,0.2"], "three numbers"),
        (["--resize", "4"], "does not fit"),
        (["--classes", "gone.txt"], "gone.txt cannot be read"),
        (["--json", "gone/x.json"], "--json: there is no folder gone"),
        (["--out", "val"], "is a folder"),
        (["--out", "tulip_tiny.py"], "tulip_tiny.py is there already, and is no detector file"),
        (["--out", "d.onnx"], "which such a name hides; name it d.safetensors"),
        (
            ["--out", "/proc/d.safetensors"],
            "the folder /proc may not be written to: No such",
        ),
        (["--out", "/dev/null"], "--out: /dev/null is a device or a pipe; name a file"),
        (["--json", "/dev/stdout"], "--json: /dev/stdout is a device or a pipe; name a file"),
        (["--root", "gone"], "there is no folder gone, in which paths of lists begin"),
        (["--like", "gone.safetensors"], "no detector file"),
    ],
)
def test_wrong_use_exits_with_2_before_any_work(
    tulip: Tulip, tmp_path: Path, changes: list[str], words: str
) -> None:
    out = tmp_path / "d.safetensors"
    base = ["calibrate", "tulip_tiny:make", "--data", "val", "--out", out, *PREPARED]
    result = tulip(*base, *changes)
    assert result.exit_code == 2, result.output
    assert re.search(words, result.stderr.replace("\n", " ")), result.stderr
    assert result.stderr.startswith("tulip: ")
    assert not out.exists()


def test_a_factory_does_not_know_how_images_are_prepared(tulip: Tulip, tmp_path: Path) -> None:
    base = ["calibrate", "tulip_tiny:make", "--data", "val", "--out", tmp_path / "d"]
    result = tulip(*base, "--mean", "0.5")
    assert result.exit_code == 2
    assert "give --crop (and --resize), --std" in result.stderr
    result = tulip(*base, "--mean", "0.5", "--std", "0.5", "--crop", "0")
    assert "--crop must be at least 1, got 0" in result.stderr
    shown = tulip("calibrate", "--help").stdout  # every kind of network that can be named
    for kind in ("torchvision:", "timm:", "hf:", "openood:", ".pt2", "factory"):
        assert kind in shown


def test_nothing_readable_and_a_network_that_does_not_fit(tulip: Tulip, tmp_path: Path) -> None:
    for colour in ("a", "b"):
        (tmp_path / "bad" / colour).mkdir(parents=True)
        (tmp_path / "bad" / colour / "x.png").write_text("no image")
        (tmp_path / "tiny" / colour).mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(tmp_path / "tiny" / colour / "x.png")
    out = tmp_path / "d.safetensors"
    base = ["calibrate", "tulip_tiny:make", "--out", out, *PREPARED]
    result = tulip(*base, "--data", tmp_path / "bad")
    assert result.exit_code == 2
    assert "can be read (2 inputs)" in result.stderr
    arguments = ["calibrate", "tulip_tiny:wider", "--data", tmp_path / "tiny", "--out", out]
    result = tulip(*arguments, "--crop", "8", "--mean", "0.5", "--std", "0.5")
    assert result.exit_code == 1
    assert "cannot run on inputs of shape [N, 1, 8, 8]" in result.stderr
