"""Detectors that a user writes: saved, loaded, and refused in words where that cannot be."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.detectors import MSP, Detector
from tulip_ood.errors import InputError
from tulip_ood.network.passes import Passes


@dataclass(frozen=True)
class Centre:
    """What `Gap` learns."""

    gap: Tensor


class Gap(Detector):
    """How far the two highest logits lie apart, to some power."""

    name: ClassVar[str] = "own-gap"
    state_class: ClassVar[type] = Centre

    def __init__(self, model: Any, *, power: float = 1.0, **common: Any) -> None:
        super().__init__(model, **common)
        self.power = power

    def _gap(self, passes: Passes) -> Tensor:
        two = passes.base.double().topk(2, dim=1).values
        return (two[:, 0] - two[:, 1]) ** self.power

    def _learn(self, passes: Passes) -> Centre:
        return Centre(self._gap(passes).mean())

    def _score(self, state: Centre, passes: Passes) -> Tensor:
        return state.gap - self._gap(passes)

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config, tensors = super().configuration()
        return config | {"power": self.power}, tensors


@pytest.fixture(scope="module")
def data() -> Any:
    torch.manual_seed(0)
    x = torch.randn(240, 4)
    model = nn.Linear(4, 3)
    return model, x, model(x).argmax(dim=1)


def fitted(kind: type[Detector], data: Any, **settings: Any) -> Detector:
    model, x, y = data
    return kind(model, **settings).fit([(x, y)])


pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


def test_a_detector_of_ones_own_is_loaded_again(data: Any, tmp_path: Path) -> None:
    detector = fitted(Gap, data, power=0.5)
    detector.save(tmp_path / "d.safetensors")
    again = tulip_ood.load(tmp_path / "d.safetensors", data[0])
    assert type(again) is Gap
    assert again.power == 0.5
    assert torch.equal(again.score(data[1]), detector.score(data[1]))


def test_it_has_its_name_where_methods_have_one(data: Any, tmp_path: Path) -> None:
    made = tulip_ood.detectors.make("own-gap", data[0], power=2.0)
    assert type(made) is Gap
    both = tulip_ood.detectors.make("own-gap&msp", data[0]).fit([(data[1], data[2])])
    both.save(tmp_path / "d.safetensors")
    again = tulip_ood.load(tmp_path / "d.safetensors", data[0])
    assert torch.equal(again.score(data[1]), both.score(data[1]))


def test_a_process_that_does_not_know_the_class_says_so(data: Any, tmp_path: Path) -> None:
    fitted(Gap, data).save(tmp_path / "d.safetensors")
    code = "import sys, torch, tulip_ood\ntulip_ood.load(sys.argv[1], torch.nn.Linear(4, 3))\n"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "d.safetensors")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "FileFormatError" in done.stderr
    assert "holds the method 'own-gap', which tulip-ood" in done.stderr
    assert "a class of your own, import the module that defines it before load" in done.stderr


def test_a_class_defined_again_is_the_last_one(data: Any, tmp_path: Path) -> None:
    def define() -> type[Detector]:
        class Again(MSP):
            name: ClassVar[str] = "again"

        return Again

    first = fitted(define(), data)
    second = define()
    first.save(tmp_path / "d.safetensors")
    assert type(tulip_ood.load(tmp_path / "d.safetensors", data[0])) is second


def test_what_load_could_not_find_is_not_saved(data: Any, tmp_path: Path) -> None:
    class Nameless(MSP):
        pass

    class Taken(MSP):
        name: ClassVar[str] = "ebo"

    class One(MSP):
        name: ClassVar[str] = "same"

    class Two(MSP):
        name: ClassVar[str] = "same"

    class Forgetful(MSP):
        name: ClassVar[str] = "forgetful"

        def __init__(self, model: Any, *, depth: int = 3, **common: Any) -> None:
            super().__init__(model, **common)

    for kind, said in {
        Nameless: r"no name of its own \(it is called 'msp', as its parent is\).*name = ",
        Taken: "is called 'ebo', as tulip_ood.detectors.ebo.Energy is.*another name",
        One: "One and .*Two are both called 'same': give each class a name of its own",
        Forgetful: r"made with depth, which would not stand in the file: add it to .*configuration",
    }.items():
        with pytest.raises(InputError, match=said):
            fitted(kind, data).save(tmp_path / "d.safetensors")
        assert not list(tmp_path.iterdir())


def test_two_classes_of_one_name_are_not_chosen_from(data: Any, tmp_path: Path) -> None:
    class Alone(MSP):
        name: ClassVar[str] = "alone"

    fitted(Alone, data).save(tmp_path / "d.safetensors")

    class Other(MSP):
        name: ClassVar[str] = "alone"

    with pytest.raises(InputError, match="both called 'alone'"):
        tulip_ood.load(tmp_path / "d.safetensors", data[0])


def test_a_file_reaches_no_helper_of_the_library() -> None:
    """`Auto` has parts that are detectors with names, but no methods."""
    from tulip_ood.detectors import depth, registry

    assert issubclass(depth.Depth, Detector)
    with pytest.raises(InputError, match="unknown method"):
        registry.class_of(depth.Depth.name)
