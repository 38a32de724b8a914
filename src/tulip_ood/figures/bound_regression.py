"""The bound of Eq. 5 beside the exact ensemble on a curve: the paper's first figure, part (a).

The C of the theorem grows like exp(η L λ_max ΔT). Over a whole training it is a number with
thousands of digits, so what a picture can show is the bound's *shape*, with a C that is fitted:
(a). With the C of the theorem the bound can be drawn for a short ΔT: (b), where it is compared with
what it bounds, perturb-then-train.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.figures.canvas import COLOURS, Drawn, canvas, need_matplotlib, note, save
from tulip_ood.theory.bound import Bound, bound, gradient_distance
from tulip_ood.theory.flow import ensemble, prior
from tulip_ood.theory.kernels import Kernels, WideNetwork, kernels
from tulip_ood.theory.losses import MSE
from tulip_ood.theory.problems import Points, Spline, spline
from tulip_ood.theory.simulate import Fluctuation, perturb_then_train, tightness, waves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["NETWORK", "Settings", "draw"]

# Two hidden layers: three of weights, as the paper's, which says no more of them. Activation and
# spreads were chosen by eye among a few: with smaller biases (erf 1.5, 0.3) the ensemble is far
# narrower than the bound's shape outside the data, with these the two look alike.
NETWORK = WideNetwork(depth=2, activation="erf", W_std=2.0, b_std=2.0)
_REACH = 4.5  # of the test inputs; training points lie in [−3, 3]


@dataclass(frozen=True)
class Settings:
    """What is drawn.

    Attributes:
        points: Training points.
        grid: Test inputs along the axis.
        time: T, how long the ensemble of (a) has trained; its ΔT is all of T.
        short: ΔT of (b).
        alpha: α of A3 in (b), and for log₁₀ C in (a).
        draws: Perturbations in (b).
        seed: Of the curve, the points and the perturbations.

    Example:
        >>> Settings(points=8).short
        0.1
    """

    points: int = 12
    grid: int = 451
    time: float = 1000.0
    short: float = 0.1
    alpha: float = 0.1
    draws: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("time", "short", "alpha"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise InputError(f"{name} must be positive and finite, got {value}")
        if self.grid < 2 or self.draws < 1:
            raise InputError(f"grid ≥ 2 and draws ≥ 1, got {self.grid} and {self.draws}")


@dataclass(frozen=True)
class _Setting:
    """The problem and its kernels; test inputs are a grid, then the training inputs."""

    points: Points
    curve: Spline
    z: Tensor
    train: Kernels
    cross: Kernels
    test: Kernels


def _setting(settings: Settings) -> _Setting:
    points, curve = spline(settings.points, seed=settings.seed)
    grid = torch.linspace(-_REACH, _REACH, settings.grid, dtype=torch.float64)[:, None]
    z = torch.cat([grid, points.x])
    return _Setting(
        points,
        curve,
        z[:, 0],
        kernels(NETWORK, points.x),
        kernels(NETWORK, z, points.x),
        kernels(NETWORK, z),
    )


@dataclass(frozen=True)
class _Shape:
    """(a): the ensemble, and C · distance + offset with the smallest C that holds it."""

    mean: Tensor
    spread: Tensor  # 2 standard deviations
    distance: Tensor
    C: float
    offset: float
    touches: int  # the test input that C is fitted at

    @property
    def bound(self) -> Tensor:
        return self.C * self.distance + self.offset


def _shape(setting: _Setting, settings: Settings) -> _Shape:
    found = ensemble(
        setting.train, setting.cross, setting.test, setting.points.y, time=settings.time
    )
    spread = 2 * found.covariance.diagonal().clamp_min(0.0).sqrt()
    distance = gradient_distance(setting.train.ntk, setting.cross.ntk, setting.test.ntk.diagonal())
    # What does not depend on z, 2α + β in the theorem: what is left at the training points.
    offset = float(spread[settings.grid :].max())
    ratio = (spread - offset) / distance.where(distance > 0, torch.inf)
    touches = int(ratio.argmax())
    return _Shape(
        found.mean[:, 0], spread, distance, max(0.0, float(ratio[touches])), offset, touches
    )


def _bound(setting: _Setting, alpha: float, beta: float, duration: float, kind: str) -> Bound:
    return bound(
        setting.train.ntk,
        setting.cross.ntk,
        setting.test.ntk.diagonal(),
        alpha=alpha,
        beta=beta,
        lipschitz=MSE.lipschitz,
        duration=duration,
        kind=kind,
    )


def _simulate(setting: _Setting, settings: Settings) -> Fluctuation:
    n = len(setting.points)
    # One network: a draw from the prior at the training and test inputs together.
    joint = kernels(NETWORK, torch.cat([setting.points.x, setting.z[:, None]])).nngp
    start = prior(joint, draws=1, seed=settings.seed)[0]
    changes = [
        waves(x, alpha=settings.alpha, draws=settings.draws, seed=settings.seed, frequency=0.8)
        for x in (setting.points.x, setting.z[:, None])
    ]
    return perturb_then_train(
        setting.train.ntk,
        setting.cross.ntk,
        start[:n],
        start[n:],
        changes[0],
        changes[1],
        setting.points.y,
        MSE,
        duration=settings.short,
        tolerance=1e-7,
    )


def draw(out: str | Path = "figures", settings: Settings | None = None) -> Drawn:
    """Draw `bound-regression` into a folder.

    Args:
        out: The folder.
        settings: What is drawn; by default what `tulip reproduce bound-regression` shows.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     drawn = draw(folder, Settings(points=5, grid=31, draws=4))
        >>> drawn.table.name, len(drawn.rows)
        ('bound-regression.parquet', 36)
    """
    need_matplotlib()
    settings = settings or Settings()
    setting = _setting(settings)
    shape, moved = _shape(setting, settings), _simulate(setting, settings)
    kinds = ("paper", "frobenius")
    short = {k: _bound(setting, settings.alpha, moved.beta, settings.short, k) for k in kinds}
    whole = {k: _bound(setting, settings.alpha, 0.0, settings.time, k) for k in kinds}
    facts = _facts(settings, shape, moved, short, whole)
    rows = _rows(setting, settings, shape, moved, short)
    with canvas(13.0, 6.7) as figure:
        figure.set_layout_engine("constrained", w_pad=0.12)
        left, right = figure.subplots(1, 2)
        _draw_shape(left, setting, settings, shape, facts)
        _draw_literal(right, setting, settings, moved, short)
        return save(figure, "bound-regression", out, rows, facts, _lines(settings, facts))


def _facts(
    settings: Settings,
    shape: _Shape,
    moved: Fluctuation,
    short: dict[str, Bound],
    whole: dict[str, Bound],
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "time": settings.time,
        "short": settings.short,
        "alpha": settings.alpha,
        "beta": moved.beta,
        "fitted_C": shape.C,
        "fitted_offset": shape.offset,
    }
    for kind in short:
        facts[f"lambda_max_{kind}"] = short[kind].lambda_max
        facts[f"log10_C_time_{kind}"] = whole[kind].log10_C
        facts[f"log10_C_short_{kind}"] = short[kind].log10_C
        facts[f"tightness_short_{kind}"] = tightness(moved, short[kind])
    return facts


def _lines(settings: Settings, facts: dict[str, Any]) -> list[str]:
    def pair(name: str, form: str) -> str:
        paper, frobenius = facts[f"{name}_paper"], facts[f"{name}_frobenius"]
        return f"{paper:{form}} with ‖G‖/√N as in the paper, {frobenius:{form}} with ‖G‖_F/N"

    return [
        f"λ_max: {pair('lambda_max', '.3f')}",
        f"log₁₀ C of the theorem for ΔT = {settings.time:g}: {pair('log10_C_time', ',.0f')}",
        f"log₁₀ C for ΔT = {settings.short:g}: {pair('log10_C_short', '.2f')}",
        f"largest share of the bound used for ΔT = {settings.short:g}: "
        f"{pair('tightness_short', '.1%')}",
        f"(a) shows the shape with C = {facts['fitted_C']:.3g}: the smallest that holds 2 std of "
        f"the ensemble everywhere, fitted at the one point where they touch",
    ]


def _rows(
    setting: _Setting,
    settings: Settings,
    shape: _Shape,
    moved: Fluctuation,
    short: dict[str, Bound],
) -> list[dict[str, Any]]:
    columns = {
        "z": setting.z,
        "curve": setting.curve(setting.z),
        "ensemble_mean": shape.mean,
        "ensemble_2std": shape.spread,
        "gradient_distance": shape.distance,
        "bound_shape": shape.bound,
        "moved_most": moved.distance.amax(dim=0),
        "bound_short_paper": short["paper"].right_side,
        "bound_short_frobenius": short["frobenius"].right_side,
    }
    values = torch.stack([column.to(torch.float64) for column in columns.values()], dim=1).tolist()
    return [
        {
            "role": "grid" if i < settings.grid else "train",
            "fitted_here": i == shape.touches,
            **dict(zip(columns, row, strict=True)),
        }
        for i, row in enumerate(values)
    ]


def _draw_shape(
    axes: "Axes", setting: _Setting, settings: Settings, shape: _Shape, facts: dict[str, Any]
) -> None:
    z, mean = setting.z, shape.mean
    order = z.argsort()
    x, middle = z[order], mean[order]
    for width, colour, label in (
        (shape.bound, "sky", "shape of the bound (Eq. 5), C fitted"),
        (shape.spread, "blue", f"exact ensemble, mean ± 2 std at T = {settings.time:g}"),
    ):
        half = width[order]
        alpha = 0.3 if colour == "sky" else 0.5
        axes.fill_between(
            x, middle - half, middle + half, color=COLOURS[colour], alpha=alpha, lw=0, label=label
        )
    axes.plot(x, middle, color=COLOURS["blue"], label="ensemble mean")
    axes.plot(x, setting.curve(x), color=COLOURS["ink"], lw=1.2, ls=(0, (4, 3)), label="the curve")
    axes.plot(
        setting.points.x[:, 0], setting.points.y[:, 0], "o", color=COLOURS["ink"], ms=6.5,
        label="training points", zorder=5,
    )  # fmt: skip
    at = shape.touches
    axes.plot(
        z[at],
        mean[at] + shape.bound[at],
        "v",
        color=COLOURS["vermilion"],
        ms=9,
        zorder=6,
        mec="w",
        ls="",
        label="where C is fitted",
    )
    top = float((middle + shape.bound[order]).max())
    low = float((middle - shape.bound[order]).min())
    axes.set_ylim(low - 0.05 * (top - low), top + 0.25 * (top - low))  # room for the note
    axes.set(xlim=(-_REACH, _REACH), xlabel="input z", ylabel="output f(z)")
    axes.set_title("(a) the bound's shape and the exact ensemble")
    _legend(axes)
    paper, frobenius = facts["log10_C_time_paper"], facts["log10_C_time_frobenius"]
    note(
        axes,
        f"$\\log_{{10}} C$ of the theorem for ΔT = T: {paper:,.0f}\n"
        f"(with $\\lambda_{{max}} = \\|G\\|_F/N$ instead: {frobenius:,.0f})",
        x=0.02,
        y=0.985,
        va="top",
    )


def _draw_literal(
    axes: "Axes",
    setting: _Setting,
    settings: Settings,
    moved: Fluctuation,
    short: dict[str, Bound],
) -> None:
    order = setting.z.argsort()
    x, most = setting.z[order], moved.distance.amax(dim=0)[order]
    for kind, style, label in (
        ("paper", "-", r"Eq. 5 with the paper's $\lambda_{max} = \|G\|/\sqrt{N}$"),
        ("frobenius", (0, (5, 2)), r"Eq. 5 with its proof's $\lambda_{max} = \|G\|_F/N$"),
    ):
        found = short[kind]
        axes.plot(
            x,
            found.right_side[order],
            color=COLOURS["vermilion" if kind == "paper" else "orange"],
            ls=style,
            label=f"{label}: $\\log_{{10}} C = {found.log10_C:.2f}$",
        )
    axes.fill_between(
        x, 1e-9, most, color=COLOURS["blue"], alpha=0.5, lw=0,
        label=f"largest $|f_T(z) - \\hat{{f}}_T(z)|$ of {settings.draws} perturbations",
    )  # fmt: skip
    offset = short["paper"].offset
    axes.axhline(offset, color=COLOURS["grey"], lw=1.4, ls=":", label=f"2α + β = {offset:.2f}")
    low = float(most.min()) / 2
    axes.plot(
        setting.points.x[:, 0], torch.full((len(setting.points),), low), "o", zorder=5,
        color=COLOURS["ink"], ms=6.5, clip_on=False, label="training inputs",
    )  # fmt: skip
    axes.set(xlim=(-_REACH, _REACH), yscale="log", xlabel="input z")
    axes.set_ylim(bottom=low)
    axes.set_ylabel("change of the trained output")
    axes.set_title(f"(b) the bound itself, ΔT = {settings.short:g}, α = {settings.alpha:g}")
    _legend(axes)


def _legend(axes: "Axes") -> None:
    """Below the panel, where it covers nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.13), labelspacing=0.35)
