"""Reference numbers for tests/theory, made by neural-tangents.

It needs an old JAX, so it runs in an environment of its own:

    python3 -m venv /tmp/nt
    /tmp/nt/bin/pip install jax==0.5.3 jaxlib==0.5.3 neural-tangents==0.6.5 tf2jax==0.3.6
    /tmp/nt/bin/python benchmarks/theory/reference.py          # writes tests/theory/reference.json

Kernels of fully connected networks (ReLU and erf, one to three hidden layers, several variances)
on inputs with a zero row, two equal, two opposite and two nearly parallel ones; and mean and
covariance of the infinite ensemble under gradient flow with MSE. neural-tangents takes the mean of
½(f − y)² over inputs and outputs; with one output that is the paper's Eq. 3.
"""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import neural_tangents as nt  # noqa: E402
from neural_tangents import stax  # noqa: E402

HERE = Path(__file__).resolve()
OUT = HERE.parents[2] / "tests" / "theory" / "reference.json"
VARIANCES = ((1.4142135623730951, 0.0), (1.5, 0.1), (0.8, 1.0))
CASES = [
    (activation, depth, W_std, b_std)
    for activation in ("relu", "erf")
    for depth in (1, 2, 3)
    for W_std, b_std in VARIANCES
]
TRAIN = [[-1.0, 0.3], [-0.4, -1.1], [0.2, 0.9], [0.8, -0.5], [1.5, 1.2]]
TARGETS = [0.9, -0.4, 0.1, 1.3, -0.8]
TEST = [[0.0, 0.1], [0.7, -0.6], [3.0, -2.0]]
TIMES = (0.5, 10.0, 1000.0, None)
LEARNING_RATE = 0.7


def inputs() -> np.ndarray:
    rows = np.random.default_rng(0).standard_normal((3, 4))
    return np.concatenate([rows, np.zeros((1, 4)), rows[:1], -rows[1:2], 3 * rows[2:] + 1e-3])


def network(activation: str, depth: int, W_std: float, b_std: float):
    layer = {"relu": stax.Relu, "erf": stax.Erf}[activation]
    hidden = [part for _ in range(depth) for part in (stax.Dense(1, W_std, b_std), layer())]
    return stax.serial(*hidden, stax.Dense(1, W_std, b_std))[2]


def setting(case) -> dict:
    return dict(zip(("activation", "depth", "W_std", "b_std"), case, strict=True))


def kernel_numbers(case, a: np.ndarray, b: np.ndarray) -> dict:
    both = network(*case)(a, b, ("nngp", "ntk"))
    return setting(case) | {"nngp": both.nngp.tolist(), "ntk": both.ntk.tolist()}


def flow_numbers(case) -> dict:
    x, y, z = np.array(TRAIN), np.array(TARGETS)[:, None], np.array(TEST)
    predict = nt.predict.gradient_descent_mse_ensemble(
        network(*case), x, y, learning_rate=LEARNING_RATE, diag_reg=0.0
    )
    rows = []
    for t in TIMES:
        found = predict(t=t, x_test=z, get="ntk", compute_cov=True)
        mean, covariance = found.mean[:, 0].tolist(), found.covariance.tolist()
        rows.append({"t": t, "mean": mean, "covariance": covariance})
    return setting(case) | {"times": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    a = inputs()
    b = a[::2]
    flows = [case for case in CASES if case[2:] == (1.5, 0.1)]
    found = {
        "made_by": {name: version(name) for name in ("neural-tangents", "jax", "tf2jax")},
        "a": a.tolist(),
        "b": b.tolist(),
        "kernels": [kernel_numbers(case, a, b) for case in CASES],
        "train": TRAIN,
        "targets": TARGETS,
        "test": TEST,
        "learning_rate": LEARNING_RATE,
        "flow": [flow_numbers(case) for case in flows],
    }
    options.out.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    print(f"{len(found['kernels'])} kernels, {len(flows)} flows: {options.out}")


if __name__ == "__main__":
    main()
