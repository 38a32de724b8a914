"""TULiP with a part taken out: rows that show what each step brings. Not meant for use."""

from typing import ClassVar

from torch import Tensor

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import ModelError
from tulip_ood.network.perturbation import PassSettings, Perturbation

__all__ = ["ABLATIONS", "NormForDrift"]


class _DoubledHead(Perturbation):
    """Whose drifted output is 2 f: the last linear layer is doubled, and nothing else changes."""

    def _drifted(self, epsilon: float) -> dict[str, Tensor]:
        probe = self.network.known_probe
        if probe.head is None or not probe.head_is_logits:
            raise ModelError("tulip-norm needs a last linear layer whose output are the logits")
        parameters = dict(self.network.parameters)
        for name in (f"{probe.head}.weight".removeprefix("."), f"{probe.head}.bias"):
            if name in parameters:
                parameters[name] = 2 * parameters[name]
        return parameters


class NormForDrift(Tulip):
    """TULiP with D(z) := ‖f(z)‖: how much does the drift pass know beyond the size of the logits?

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 32), ReLU(), Linear(32, 3))
        >>> x = torch.randn(500, 4)
        >>> detector = NormForDrift(model).fit([(x, model(2 * x).argmax(1))], recipe="balanced")
        >>> detector.score(x[:2]).shape
        torch.Size([2])
    """

    name: ClassVar[str] = "tulip-norm"

    def _make_perturbation(self, settings: PassSettings) -> Perturbation:
        usual = super()._make_perturbation(settings)
        return _DoubledHead(self.network, usual.scales, usual.means, settings, hold=self.hold)


ABLATIONS: dict[str, type[Detector]] = {"tulip-norm": NormForDrift}
