"""What TULiP has fitted, in words that a newcomer understands, and what is odd about it."""

from collections.abc import Iterator
from typing import Any

from tulip_ood.detectors.envelope_fit import FittedEnvelope
from tulip_ood.detectors.findings import Finding
from tulip_ood.detectors.self_tuning import Tuning
from tulip_ood.network.initial_mean import InitialMean
from tulip_ood.network.perturbation import PassSettings
from tulip_ood.wording import counted, percent

__all__ = ["choice_lines", "envelope_lines", "look_at_envelope", "tuning_lines"]

_NEARLY_ALL = 0.95


def look_at_envelope(
    fitted: FittedEnvelope,
    facts: dict[str, Any],
    chance: float,
    tuning: Tuning | None,
    guesses: tuple[str, ...],
    score: str,
) -> list[Finding]:
    """Degenerate results of a fit.

    Example:
        >>> import torch, tulip_ood, warnings
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     detector = tulip_ood.Tulip(torch.nn.Linear(4, 3), j=0.0)
        ...     _ = detector.fit([(x, y)], recipe="paper")
        >>> "j-zero" in [finding.code for finding in detector.report().findings]
        True
    """
    found: list[Finding] = []
    if fitted.j_score == 0.0 and score != "bound":
        found.append(_no_width(fitted, searched=tuning is not None and bool(tuning.ranked)))
    if fitted.inactive >= _NEARLY_ALL:
        found.append(
            Finding(
                "inactive",
                f"the bound S is not positive on {percent(fitted.inactive, 0)} of the validation "
                f"data, so TULiP changes nothing there: λ = {fitted.lam:.3g} is too large for this "
                f"network (balanced would be {fitted.balanced_lam:.3g}). Use recipe='balanced' or "
                f"'self'",
            )
        )
    found += _of_performance(fitted, facts, chance)
    if tuning is not None:
        found += _of_tuning(fitted, facts, tuning)
    if guesses:
        more = f" (and {len(guesses) - 1} more)" if len(guesses) > 1 else ""
        found.append(
            Finding(
                "guessed-mean",
                f"an initial mean was guessed: {guesses[0]}{more}. Pass initial_mean=… if you "
                f"know better",
            )
        )
    return found


def _no_width(fitted: FittedEnvelope, *, searched: bool) -> Finding:
    """Why the envelope has no width."""
    if searched:
        why = "no perturbation did better on the pseudo-OOD"
    elif fitted.setting.j == 0.0:
        why = "as was asked for"
    elif fitted.inactive >= _NEARLY_ALL:
        why = "the bound is hardly ever positive, so the likelihood does not depend on J"
    else:
        why = (
            "the likelihood on validation data is highest without any perturbation (the "
            "network is not over-confident)"
        )
    return Finding(
        "j-zero",
        f"J = 0: {why}, so the score is the plain network's own and costs one pass. Set "
        f"j=… by hand{'' if searched else ', or tune=…,'} to perturb all the same",
    )


def _of_performance(
    fitted: FittedEnvelope, facts: dict[str, Any], chance: float
) -> Iterator[Finding]:
    """Networks that answer no better than chance, as they are or perturbed."""
    name, clean, noisy = (
        facts[key] for key in ("performance_name", "performance", "noisy_performance")
    )
    if clean <= chance + 1e-12:
        yield Finding(
            "no-better-than-chance",
            f"the network's {name} is {percent(clean)}, no more than an answer that ignores the "
            f"input has ({percent(chance)}): is it trained, and are inputs prepared as in "
            f"training?",
        )
    if clean > chance and noisy < chance + 0.1 * (clean - chance):
        yield Finding(
            "near-chance",
            f"the perturbed network's {name} is only {percent(noisy)} ({percent(clean)} "
            f"unperturbed): ε = {fitted.setting.epsilon:g} is too large. Use a smaller epsilon",
        )


def _of_tuning(fitted: FittedEnvelope, facts: dict[str, Any], tuning: Tuning) -> Iterator[Finding]:
    """Searches that could not do what they should."""
    if tuning.hopeless:
        yield Finding(
            "spoiled",
            f"even noise of ε = {tuning.setting.epsilon:g} spoils the network's "
            f"{facts['performance_name']}: check that the labels belong to the outputs",
        )
    if not tuning.ranked:
        dropped = ", ".join(tuning.kept_label) or "none could be made"
        strength = "J*" if fitted.setting.j is None else f"{fitted.j_score:g}, as it was given"
        yield Finding(
            "fallback-balanced",
            f"fewer than three kinds of pseudo-OOD were left (dropped because the network "
            f"keeps its answers on them: {dropped}): nothing was searched, λ is "
            f"{_ratio(fitted.lam, fitted.balanced_lam)} × balanced and J is {strength}. "
            f"Pass tune=… with OOD data or kinds of your own to search",
        )


def envelope_lines(
    fitted: FittedEnvelope,
    settings: PassSettings,
    facts: dict[str, Any],
    *,
    means: InitialMean,
    held_bytes: int | None,
) -> list[str]:
    """The fit, one sentence a line.

    Example:
        >>> import torch, tulip_ood, warnings
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     detector = tulip_ood.Tulip(torch.nn.Linear(4, 3)).fit([(x, y)], recipe="paper")
        >>> detector.report().lines[0][:40]
        'recipe paper-1: weight noise ε = 0.005, '
    """
    pairs = "antithetic pairs" if settings.antithetic else "independent draws"
    lines = [
        f"recipe {facts['recipe']}: weight noise ε = {settings.epsilon:g}, {settings.n_samples} "
        f"noisy passes in {pairs}, {_drift(settings)}, seed {settings.seed}",
        f"the bound: Θ_XX = {fitted.trace_xx:.4g}, λ = {fitted.lam:.4g} "
        f"({_ratio(fitted.lam, fitted.balanced_lam)} × balanced); not positive on "
        f"{percent(fitted.inactive, 0)} of the validation data",
        f"the strength: J = {fitted.j_score:.4g} for the score, J = {fitted.j_probs:.4g} for the "
        f"probabilities (J* = {fitted.j_star:.4g}); held-out NLL "
        f"{facts['held_out_nll_plain']:.4f} → {facts['held_out_nll_tulip']:.4f}",
        f"{facts['performance_name']} {percent(facts['performance'])}, "
        f"perturbed {percent(facts['noisy_performance'])}",
    ]
    if fitted.j_star > 0 and fitted.j_probs == 0:
        lines.append("J* did not lower the held-out NLL: probabilities are the network's own")
    lines += facts["tuning"]
    if means.values:
        lines.append(f"initial means other than 0: {_means(means)}")
    if held_bytes:
        lines.append(f"perturbed weights held in memory: {held_bytes / 1e6:.1f} MB")
    return lines


def tuning_lines(tuning: Tuning | None) -> list[str]:
    """What a search has looked at, one sentence a line.

    Example:
        >>> tuning_lines(None)
        []
    """
    lines: list[str] = []
    if tuning is None:
        return lines
    if tuning.ranked:
        lines.append(
            f"tuned: {counted(len(tuning.ranked), 'setting')} ranked on "
            f"{counted(len(tuning.kinds), 'kind')} ({', '.join(tuning.kinds)})"
        )
    if tuning.kept_label:
        kept = ", ".join(
            f"{kind} ({percent(min(share, 1.0), 0)})" for kind, share in tuning.kept_label.items()
        )
        lines.append(
            f"kinds dropped because the network keeps its answers on them (the share of what it "
            f"does better than chance): {kept}"
        )
    if tuning.spoiled:
        spoiled = ", ".join(f"{eps:g} ({percent(acc)})" for eps, acc in tuning.spoiled.items())
        lines.append(f"ε dropped because the noisy network is too often wrong: {spoiled}")
    return lines


def choice_lines(choices: dict[str, Any], settings: PassSettings) -> list[str]:
    """The scope and M that were chosen, and what else there was, one sentence a line.

    Args:
        choices: As a fit notes them.
        settings: The passes as they were chosen.

    Example:
        >>> settings = PassSettings(0.005, n_samples=4)
        >>> choice_lines({"samples": [[2, 0.98], [4, 0.998]]}, settings)
        ['M = 4: the ranking no longer moves (Spearman ρ with two more passes: 2: 0.980, 4: 0.998)']
    """
    lines: list[str] = []
    if "scopes" in choices:
        lines.append(
            f"scope {choices['scope']}: the smallest that does as well as all parameters on the "
            f"pseudo-OOD (cost in passes for one input, mean AUROC, loss with 95 % interval)"
        )
        lines += [f"  {_trade(trade, settings)}" for trade in choices["scopes"]]
    steps = choices.get("samples")
    if steps:
        samples = settings.n_samples
        seen = ", ".join(f"{m}: {rho:.3f}" for m, rho in steps)
        still = "the ranking no longer moves" if samples == steps[-1][0] else "the most there are"
        lines.append(f"M = {samples}: {still} (Spearman ρ with two more passes: {seen})")
    return lines


def _trade(trade: dict[str, Any], settings: PassSettings) -> str:
    cost = "not known"
    if trade["share"] is not None:
        repeated = percent(trade["share"])
        passes = 1 + (settings.n_passes - 1) * trade["share"]
        cost = f"{passes:.1f} passes (repeats {repeated})"
    points = [f"{100 * trade[name]:.1f}" for name in ("auroc", "loss", "low", "high")]
    return (
        f"{trade['scope']}: {cost}, ε = {trade['epsilon']:g}, AUROC {points[0]}, loss {points[1]} "
        f"({points[2]} to {points[3]}){'' if trade['good'] else ', too much'}"
    )


def _drift(settings: PassSettings) -> str:
    return f"drift δ = {settings.delta:g}" if settings.drift else "D := ‖f(z)‖ for the drift"


def _ratio(lam: float, balanced: float) -> str:
    return f"{lam / balanced:.3g}" if balanced > 0 else "–"


def _means(means: InitialMean) -> str:
    groups: dict[str, list[str]] = {}
    for name, value in means.values.items():
        number = f"{value:g}" if isinstance(value, int | float) else "given"
        groups.setdefault(number, []).append(name)
    shown = []
    for number, names in groups.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        shown.append(f"{number} for {', '.join(names[:3])}{more}")
    return "; ".join(shown)
