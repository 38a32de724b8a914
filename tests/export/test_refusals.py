"""What is not exported, and that nothing is left behind where an export fails."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tulip_ood
from tulip_ood.data.preprocess import Preprocess
from tulip_ood.errors import InputError, ModelError, NotFittedError
from tulip_ood.export import parity, plan, writing
from tulip_ood.export.artefact import Artefact
from tulip_ood.export.judging import OUTPUTS


@pytest.fixture(scope="module")
def msp(vectors: Any) -> Any:
    return tulip_ood.detectors.MSP(vectors.model).fit(vectors.loader())


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_methods_without_a_graph(vectors: Any, tmp_path: Path) -> None:
    detector = tulip_ood.detectors.make("odin", vectors.model).fit(vectors.loader())
    with pytest.raises(InputError, match="odin cannot be exported.* These can.*: msp, ent.* auto"):
        tulip_ood.export(detector, tmp_path / "x.onnx")
    both = tulip_ood.detectors.make("msp&vim", vectors.model).fit(vectors.loader())
    with pytest.raises(InputError, match="msp&vim cannot be exported.* the score of vim"):
        tulip_ood.export(both, tmp_path / "x.onnx")
    dense = tulip_ood.detectors.MSP(nn.Conv1d(1, 3, 1), task="dense")
    dense.fit([(torch.randn(120, 1, 4), torch.randint(3, (120, 4)))])
    with pytest.raises(InputError, match="task 'dense' cannot be exported"):
        tulip_ood.export(dense, tmp_path / "x.onnx")
    with pytest.raises(NotFittedError):
        tulip_ood.export(tulip_ood.Tulip(vectors.model), tmp_path / "x.onnx")
    assert os.listdir(tmp_path) == []


def test_formats_and_folders(msp: Any, tmp_path: Path) -> None:
    for name, kind in (("x.engine", None), ("x.onnx", "pt2"), ("x", "tensorrt")):
        with pytest.raises(InputError, match=r"must end in \.onnx or \.pt2"):
            tulip_ood.export(msp, tmp_path / name, format=kind)
    with pytest.raises(InputError, match="there is no folder"):
        tulip_ood.export(msp, tmp_path / "no" / "x.pt2")
    prepared = Preprocess(None, None, (0.5,), (0.5,))
    with pytest.raises(InputError, match="for networks that take images"):
        tulip_ood.export(msp, tmp_path / "x.pt2", preprocess=prepared)


@pytest.mark.parametrize("method", ["tulip", "auto"])
def test_more_than_a_file_holds(
    method: str, images: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = tulip_ood.detectors.make(method, images.model, n_samples=4)
    detector.fit(images.loader(), **({"recipe": "balanced"} if method == "tulip" else {}))
    # Auto holds what neighbours are looked for in, too.
    monkeypatch.setattr(plan, "LIMIT", 50_000 if method == "tulip" else 310_000)
    with pytest.raises(InputError, match=r"would have .* GB.*scope='head' .*--format pt2"):
        tulip_ood.export(detector, tmp_path / "x.onnx")


def test_other_answers_leave_no_file(
    msp: Any, vectors: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither scores that are off, nor a lost refusal of inputs without a score."""
    kept = tmp_path / "x.pt2"
    kept.write_text("what was there")
    plain = writing.open_pt2
    for spoil in ("score", "label", "accepted", "probs"):

        def opened(path: Path, spoil: str = spoil) -> Artefact:
            artefact = plain(path)

            def run(arrays: list[Any]) -> list[Any]:
                answers = dict(zip(OUTPUTS, honest(arrays), strict=True))
                wrong = answers[spoil]
                answers[spoil] = ~wrong if wrong.dtype == bool else wrong + 1
                if spoil == "label":
                    answers["logits"] = -answers["logits"]
                return list(answers.values())

            honest, artefact._run = artefact._run, run
            return artefact

        monkeypatch.setattr(writing, "open_pt2", opened)
        with pytest.raises(parity.ParityError, match="nothing is written"):
            tulip_ood.export(msp, kept)
        monkeypatch.undo()
    assert os.listdir(tmp_path) == ["x.pt2"]
    assert kept.read_text() == "what was there"


class Moody(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if bool((x > -1e9).all()) else 2 * super().forward(x)


def test_networks_without_a_graph(tmp_path: Path) -> None:
    x, y = torch.randn(100, 4), torch.randint(3, (100,))
    detector = tulip_ood.detectors.MSP(Moody(4, 3)).fit([(x, y)])
    with pytest.raises(ModelError, match="Moody cannot be exported: its code goes one way"):
        tulip_ood.export(detector, tmp_path / "x.onnx")
    assert os.listdir(tmp_path) == []


def test_passes_alone_do_not_tell_what_inputs_are(vectors: Any, tmp_path: Path, msp: Any) -> None:
    passes = msp.engine.passes_of(
        msp.engine.collect(vectors.loader(), msp._needs(), seed=0, memory=1 << 20),
        msp._needs(),
        seed=0,
    )
    detector = tulip_ood.detectors.MSP(msp.network).fit(passes)
    with pytest.raises(InputError, match="has never seen an input"):
        tulip_ood.export(detector, tmp_path / "x.onnx")


def test_an_absent_package_is_named(
    msp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModelError, match=r"needs the package onnx: pip .* 'tulip-ood\[export\]'"):
        tulip_ood.export(msp, tmp_path / "x.onnx")
