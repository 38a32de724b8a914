"""What was fitted, for someone who has never heard of it."""

from dataclasses import dataclass

from tulip_ood.detectors.auto import Auto
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.report.html import Markup, element
from tulip_ood.report.opinions import opinions
from tulip_ood.wording import percent

__all__ = ["Term", "fitted_section", "terms"]


@dataclass(frozen=True)
class Term:
    """One symbol.

    Attributes:
        symbol: As in the paper.
        name: In words.
        value: What it came out as, or "".
        meaning: What it does.

    Example:
        >>> Term("ε", "noise", "0.005", "how far weights are nudged").symbol
        'ε'
    """

    symbol: str
    name: str
    value: str
    meaning: str


def terms(detector: Detector) -> list[Term]:
    """The symbols that a detector's numbers go by; those of the threshold for every method.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> [term.symbol for term in terms(detector)]
        ['p', 't']
    """
    found = _envelope_terms(detector) if isinstance(detector, Tulip) else []
    if isinstance(detector, Auto):
        found = [Term(*opinion) for opinion in opinions(detector)]
    calibration, threshold = detector.calibration, detector.threshold
    found.append(
        Term(
            "p",
            "p-value",
            f"from {calibration.n_inputs} held-out inputs",
            "The share of in-distribution inputs that look at least as odd as this one. 0.5 is "
            "ordinary; 0.01 means that only one in a hundred is as odd. It is conformal: it holds "
            "whatever the score is, because these inputs took no part in fitting.",
        )
    )
    if threshold is not None:
        found.append(
            Term(
                "t",
                "threshold",
                f"{threshold.value:.3g}",
                f"Answers with a score up to this are accepted. The promise: {threshold.promise}",
            )
        )
    return found


def _envelope_terms(detector: Tulip) -> list[Term]:
    state = detector.fitted
    facts = detector.report().facts
    clean, noisy = facts["performance"], facts["noisy_performance"]
    balance = ""
    if state.balanced_lam > 0:
        balance = f" ({state.lam / state.balanced_lam:.3g} × balanced)"
    return [
        Term(
            "ε",
            "size of the noise",
            f"{state.setting.epsilon:g}",
            f"Every weight of the network is nudged by a random number of about this size, "
            f"{detector.pass_settings.n_samples} times over. Enough for a shaky answer to move, "
            f"not enough to spoil the network: its {facts['performance_name']} is "
            f"{percent(clean)}, nudged {percent(noisy)}.",
        ),
        Term(
            "Θ",
            "trace",
            f"{state.trace_xx:.3g} on average",
            "How far the outputs move when the weights are nudged, for one input. Its average over "
            "validation inputs, Θ_XX, is what is normal for this network.",
        ),
        _drift_term(detector.pass_settings.drift),
        Term(
            "λ",
            "weight of the drift",
            f"{state.lam:.3g}{balance}",
            "How much of the movement the drift may explain away. Balanced means that both sides "
            "are equal on average over the validation data.",
        ),
        Term(
            "S",
            "bound",
            f"not positive on {100 * state.inactive:.0f} %",
            "J² (Θ + Θ_XX − λD): an estimate of how far off the outputs could be. Where it is not "
            "positive (the percentage is of validation inputs), TULiP leaves the network's answer "
            "as it is; elsewhere it spreads the answer out.",
        ),
        Term(
            "J",
            "strength",
            f"{state.j_score:.3g} for scores, {state.j_probs:.3g} for probabilities",
            f"How much the spread counts. J* = {state.j_star:.3g} makes the validation labels "
            f"most likely. Probabilities use J* if that helps on held-out data, and else 0, which "
            f"is the network's own; scores may use another J, chosen for detection.",
        ),
    ]


def _drift_term(by_a_pass: bool) -> Term:
    if not by_a_pass:
        return Term(
            "D",
            "drift",
            "‖f(z)‖, no pass",
            "How large the outputs are. It stands in for how far they move when the weights go on "
            "a little in the direction in which training has pushed them. Training has had much "
            "to say about an input with large outputs, so its answer counts as better explained.",
        )
    return Term(
        "D",
        "drift",
        "one more pass",
        "How far the outputs move when the weights go on a little in the direction in which "
        "training has pushed them. Training has had much to say about such an input, so its "
        "answer counts as better explained.",
    )


def fitted_section(detector: Detector) -> list[Markup]:
    """The symbols, what the detector says of itself, and what looked odd.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> len(fitted_section(detector))
        3
    """
    report = detector.report()
    glossary = element(
        "dl",
        [
            element(
                "div",
                element("dt", element("b", term.symbol), term.name),
                element("dd", term.value, class_="value"),
                element("dd", term.meaning),
            )
            for term in terms(detector)
        ],
        class_="terms",
    )
    if report.findings:
        items = [
            element("li", finding.text, " ", element("code", finding.code))
            for finding in report.findings
        ]
        looked = element(
            "div", element("h3", "Look at this"), element("ul", items), class_="note warn"
        )
    else:
        looked = element(
            "div",
            element("h3", "Nothing looked odd"),
            element(
                "p",
                "The fit was checked for too few inputs, missing classes, labels in another order, "
                "duplicates, training images in disguise, and noise that does nothing or too much.",
            ),
            class_="note",
        )
    own_words = element(
        "details",
        element("summary", "The same in the detector’s own words: ", element("code", "report()")),
        element("pre", str(report)),
    )
    return [looked, glossary, own_words]
