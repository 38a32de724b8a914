"""Networks' weights and passes of strangers: safetensors, OpenOOD's pickles, exported programs."""

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file

import tulip_ood
from tulip_ood.errors import TulipError
from tulip_ood.models import architectures
from tulip_ood.models.architectures import Architecture
from tulip_ood.models.spec import load_model
from tulip_ood.network.passes import Passes

from .fence import fuzz, survives
from .hostile import damaged, one_changed, texts

ABOUT = {
    "arch": "small",
    "classes": "3",
    "mean": "0.5,0.5,0.5",
    "std": "0.2,0.2,0.2",
    "dropout": "0",
}


class Small(torch.nn.Module):
    """Named like a ResNet's parts, but quickly made."""

    def __init__(self, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 64, 3, bias=False)
        self.fc = torch.nn.Linear(64, classes)
        self.dropout = torch.nn.Dropout(dropout)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("small", "resnet18_32x32"):
        made = Architecture(Small, 32, 32)
        monkeypatch.setitem(architectures.ARCHITECTURES, name, made)


STATE = Small(3).state_dict()
WHOLE = save(STATE, ABOUT)


def pickled(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


PICKLES = [pickled(STATE), pickled({"state_dict": STATE, "epoch": 3})]
LEGACY = pickled(STATE, _use_new_zipfile_serialization=False)


@fuzz(1)
@given(content=damaged(WHOLE))
def test_damaged_weights(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    file.write_bytes(content)
    survives(lambda: load_model(str(file)))


@fuzz(1)
@given(data=st.data())
def test_weights_that_say_something_else(data: Any, tmp_path: Path) -> None:
    about = dict(ABOUT)
    key = data.draw(st.sampled_from(sorted(about)))
    about[key] = data.draw(
        texts.filter(lambda text: text.isprintable())
        | st.sampled_from(["10000000000", "-3", "0", "nan", "1e400", "9" * 5000, ",,", "1,2"])
    )
    save_file(STATE, tmp_path / "net.safetensors", about)
    survives(lambda: load_model(str(tmp_path / "net.safetensors")))


@fuzz(1)
@given(content=st.sampled_from([*PICKLES, LEGACY]).flatmap(damaged))
def test_damaged_pickles(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "best.ckpt"
    file.write_bytes(content)
    survives(lambda: load_model(f"openood:{file}"))


@pytest.mark.parametrize(
    "held",
    [
        [],
        {"state_dict": []},
        {1: torch.zeros(1)},
        {"fc.weight": torch.zeros(1).expand(2**40, 64), "conv1.weight": torch.zeros(64, 3, 3, 3)},
        {"fc.weight": torch.zeros(()), "conv1.weight": torch.zeros(64, 3, 3, 3)},
        {"fc.weight": torch.zeros(0, 64), "conv1.weight": torch.zeros(64, 3, 3, 3)},
        {**STATE, "fc.weight": STATE["fc.weight"].to_sparse()},
    ],
)
def test_pickles_that_hold_something_else(held: Any, tmp_path: Path) -> None:
    file = tmp_path / "best.ckpt"
    torch.save(held, file)
    assert survives(lambda: load_model(f"openood:{file}"))


class Attack:
    """What a pickle can do when it is loaded as it asks to be."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path("/tmp/tulip-was-here"), "gotcha")


@pytest.mark.parametrize("pack", [pickled, pickle.dumps])
def test_a_pickle_runs_nothing(pack: Any, tmp_path: Path) -> None:
    file = tmp_path / "best.ckpt"
    file.write_bytes(pack({"fc.weight": Attack()}))
    assert survives(lambda: load_model(f"openood:{file}"))
    assert not Path("/tmp/tulip-was-here").exists()


def test_a_pickle_that_unpacks_without_end(tmp_path: Path) -> None:
    file = tmp_path / "best.ckpt"
    with (
        zipfile.ZipFile(io.BytesIO(PICKLES[0])) as whole,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out,
    ):
        for name in whole.namelist():
            out.writestr(name, whole.read(name))
    assert "is compressed" in (survives(lambda: load_model(f"openood:{file}")) or "")


@fuzz(0.5)
@given(content=st.binary(max_size=200) | st.sampled_from(PICKLES).flatmap(damaged))
def test_programs_are_not_opened_unasked(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "net.pt2"
    file.write_bytes(content)
    with pytest.raises(TulipError, match="--trust"):
        load_model(str(file))
    survives(lambda: load_model(str(file), trust=True))


@pytest.fixture(scope="module")
def passes(vectors: Any) -> Passes:
    detector = tulip_ood.detectors.MSP(vectors.model).fit(vectors.loader())
    needs = detector._needs_to_score()
    rows = detector.engine.collect(vectors.loader(), needs, seed=0, memory=1 << 30)
    return detector.engine.passes_of(rows, needs, seed=0)


@fuzz(1)
@given(data=st.data())
def test_passes(data: Any, passes: Passes, tmp_path: Path) -> None:
    file = tmp_path / "p.safetensors"
    passes.save(file)
    assert len(Passes.load(file).base) == len(passes.base)
    file.write_bytes(data.draw(damaged(file.read_bytes())))
    survives(lambda: Passes.load(file))
    header = {"format": "tulip-passes-1", "key": "", "settings": passes.settings.to_dict()}
    text = json.dumps(data.draw(one_changed(header)))
    save_file({"base": passes.base, "noisy": passes.noisy}, file, {"tulip": text})
    survives(lambda: Passes.load(file))
