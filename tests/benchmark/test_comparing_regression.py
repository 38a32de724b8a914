"""`compare` where outputs are numbers: another yardstick, fewer metrics, the right words."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.benchmark.comparing import Compared
from tulip_ood.benchmark.ranking import verdict


@pytest.fixture(scope="module")
def numbers() -> tuple[nn.Module, Tensor, Tensor]:
    """A small regressor of y = sin 2a + b², and more data like it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = torch.randn(900, 2)
        y = torch.sin(2 * x[:, 0]) + x[:, 1] ** 2 + 0.1 * torch.randn(900)
        model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(200):
            optimiser.zero_grad()
            nn.functional.mse_loss(model(x[:300]).squeeze(1), y[:300]).backward()
            optimiser.step()
        return model.eval(), x[300:], y[300:]


def regress(numbers: Any, methods: Any, **more: Any) -> Compared:
    model, x, y = numbers
    return tulip_ood.compare(
        model,
        id_val=[(x[:300], y[:300])],
        id_test=[(x[300:], y[300:])],
        ood={"wide": [4 * x[:200]]},
        task="regression",
        methods=methods,
        **more,
    )


def test_regression_is_held_against_noise(numbers: Any) -> None:
    _, x, y = numbers
    found = regress(
        numbers,
        ["msp", "ent", "ent+react", "mds", "knn", "tulip"],
        train=[(x[:300] + 0.01, y[:300])],
        settings={"tulip": {"epsilon": 0.01, "lam": 1.0, "j": 1.0}},
    )
    assert found.yardstick == found.to_dict()["yardstick"] == "noise"
    assert set(found.val.methods) == {"noise", "tulip", "knn"}
    assert "same for every input" in found.skipped["ent"]
    assert set(found.skipped) == {"msp", "ent", "ent+react", "mds"}
    assert found.against["val"]["noise"]["auroc"].value == 0.0
    assert found.train is not None
    assert set(found.train.methods) == {"noise", "knn"}
    text = str(found)
    assert "± to noise averaging" in text
    assert "entropy" not in text.split("not run")[0]
    assert "AURC ↓" not in text
    assert "only these three remain for task 'regression'" in " ".join(text.split())
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_yardstick_of_regression_is_the_same_as_alone(numbers: Any) -> None:
    model, x, y = numbers
    found = regress(numbers, ["ent", "knn"])
    assert set(found.val.methods) == {"noise", "knn"}
    alone = tulip_ood.detectors.NoiseAveraging(model, task="regression")
    alone.fit([(x[:300], y[:300])])
    mine = found.val.methods["noise"].id_scores
    assert (mine - alone.score(x[300:])).abs().max() <= 1e-5 * alone.calibration.spread
    assert verdict(found, "val").startswith(("Use noise averaging", "Use knn"))
    assert verdict(regress(numbers, "noise"), "val") == (
        "Use noise averaging: no method has a higher AUROC on these OOD sets."
    )
