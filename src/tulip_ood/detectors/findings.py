"""Degenerate or suspicious situations, in plain words.

Each finding is shown in `report()` and raised as a `TulipWarning`, so that it is seen by someone
who reads and by someone who does not.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.network.probing import Probe
from tulip_ood.network.rows import Rows
from tulip_ood.numerics.tasks import Classification, Dense, Regression, Task
from tulip_ood.wording import percent

__all__ = ["Finding", "check_validation", "look_at_head", "look_at_validation"]

MIN_INPUTS = 20
FEW_INPUTS = 100
LOOKED_AT = 32  # inputs with dense labels
TOO_ACCURATE = 0.995


@dataclass(frozen=True)
class Finding:
    """One thing that the user should know.

    Attributes:
        code: A short stable name, for programs.
        text: What was found and what to do, for people.

    Example:
        >>> Finding("few-inputs", "only 40 validation inputs").code
        'few-inputs'
    """

    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.text} [{self.code}]"


def check_validation(task: Task, rows: Rows, outputs: torch.Size) -> None:
    """Refuse what cannot be fitted on, before any pass or search is paid for.

    Args:
        task: What the outputs mean.
        rows: The validation inputs and their labels.
        outputs: The shape of the network's outputs for one input, […, o].

    Example:
        >>> from tulip_ood.network.rows import collect_rows
        >>> from tulip_ood.numerics.tasks import Classification
        >>> rows = collect_rows([(torch.randn(30, 2), torch.full((30,), 1))])
        >>> check_validation(Classification(), rows, torch.Size([3]))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: all 30 validation labels are class 1: fitting needs inputs \
of at least two classes (is the loader sorted and cut short?)
    """
    n, given = len(rows), rows.seen - rows.dropped
    if n < MIN_INPUTS <= given:
        raise InputError(
            f"the loader gave {given} inputs, but only {n} of them are held because they are "
            f"large; fitting needs at least {MIN_INPUTS}: allow more memory (fit_memory=…)"
        )
    _need_enough(n)
    if len(set(rows.digests)) < 2:
        raise InputError(
            f"all {n} validation inputs are the same: none can be held out from fitting. Does the "
            f"loader give one input again and again, or are all of them zero?"
        )
    if rows.labels is None:
        return
    dense = isinstance(task, Dense)
    # Dense labels are many: a sample of them here, those that are fitted on later.
    labels = rows.labels[:LOOKED_AT] if dense else rows.labels
    labels = task.check_labels(labels, torch.zeros(()).expand(len(labels), *outputs))
    if isinstance(task, Classification) and not dense:
        _need_two_classes(labels)


def _need_enough(n: int) -> None:
    if n < MIN_INPUTS:
        raise InputError(
            f"fitting needs at least {MIN_INPUTS} validation inputs (better {FEW_INPUTS} or more), "
            f"got {n}"
        )


def _need_two_classes(labels: Tensor) -> None:
    if bool((labels == labels[0]).all()):
        raise InputError(
            f"all {len(labels)} validation labels are class {int(labels[0])}: fitting needs "
            f"inputs of at least two classes (is the loader sorted and cut short?)"
        )


def look_at_validation(
    task: Task, base: Tensor, labels: Tensor, *, duplicates: int = 0, scale: bool = False
) -> list[Finding]:
    """What is odd about the validation data; refuses what cannot be fitted on at all.

    Args:
        task: What the outputs mean.
        base: The network's outputs.
        labels: The truth.
        duplicates: How many inputs repeat another one.
        scale: Whether the method reads something in the size of logits, not only their differences.

    Example:
        >>> import torch
        >>> from tulip_ood.numerics.tasks import Classification
        >>> logits = 9 * torch.eye(3).repeat(20, 1)
        >>> [f.code for f in look_at_validation(Classification(), logits, logits.argmax(1))]
        ['few-inputs', 'too-accurate']
    """
    n = len(base)
    _need_enough(n)
    found: list[Finding] = []
    if n < FEW_INPUTS:
        found.append(
            Finding(
                "few-inputs",
                f"there are only {n} validation inputs: thresholds and what is fitted are rough. "
                f"Use {FEW_INPUTS} or more, 1,000 if you have them",
            )
        )
    if duplicates:
        found.append(
            Finding(
                "duplicates",
                f"{duplicates} of {n} validation inputs repeat another one: they count twice, and "
                f"the promise of the threshold assumes independent inputs",
            )
        )
    found += _look_at_outputs(task, base)
    if scale:
        found += _look_at_scale(task, base)
    if isinstance(task, Classification):
        found += _look_at_classes(task, base, labels)
    return found


def look_at_head(probe: Probe) -> list[Finding]:
    """Logits that do not come from the last linear layer alone, for what is told from that layer.

    Example:
        >>> from tulip_ood.network.features import Calls
        >>> probe = Probe(3, 3, Calls({}), "fc", False, head_decides=False, other_heads=("side",))
        >>> [finding.code for finding in look_at_head(probe)]
        ['head']
    """
    if probe.head is None or probe.head_decides:
        return []
    more = f"if it is, say so with head={probe.head!r}"
    if probe.other_heads:
        others = " and ".join(map(repr, probe.other_heads))
        has = "has" if len(probe.other_heads) == 1 else "have"
        more = f"{others} {has} as many outputs: name the one that is meant with head='…'"
    return [
        Finding(
            "head",
            f"the logits follow from no linear layer alone (another input, a second head or a gate "
            f"has a part in them): {probe.head!r} is taken for the last one, and what goes past it "
            f"is not seen; {more}",
        )
    ]


def _look_at_outputs(task: Task, base: Tensor) -> list[Finding]:
    """A softmax or a sigmoid at the end of a network, which is then applied twice."""
    if isinstance(task, Regression) or bool(((base < 0) | (base > 1)).any()):
        return []
    what, undo = "lie between 0 and 1", "p.logit(eps=1e-6)"
    if isinstance(task, Classification):
        if float((base.sum(dim=-1) - 1).abs().max()) > 1e-3:
            return []
        what, undo = "are never negative and add up to 1", "p.clamp_min(1e-12).log()"
    return [
        Finding(
            "probabilities",
            f"the network's outputs {what}: they seem to be probabilities, and are taken for "
            f"logits, which spoils scores and calibration. Leave out its last softmax or sigmoid, "
            f"or pass output=lambda p: {undo}",
        )
    ]


def _look_at_scale(task: Task, base: Tensor) -> list[Finding]:
    """A log_softmax at the end: differences of logits are left, and their size is lost."""
    if not isinstance(task, Classification):
        return []
    if float(base.to(torch.float64).logsumexp(dim=-1).abs().max()) > 1e-3:
        return []
    return [
        Finding(
            "log-probabilities",
            "the network's outputs are logarithms of probabilities (their exponentials always add "
            "up to 1), but this method reads the size of logits, which a log_softmax takes away: "
            "energy is then the same for every input, and the largest logit says what msp says. "
            "Leave out the network's last log_softmax, or choose msp, ent, gen or tulip",
        )
    ]


def _look_at_classes(task: Classification, base: Tensor, labels: Tensor) -> list[Finding]:
    flat, logits = labels.reshape(-1), base.reshape(-1, base.shape[-1])
    known = flat >= 0
    flat, logits = flat[known], logits[known]
    n_classes = base.shape[-1]
    counts = torch.bincount(flat, minlength=n_classes)
    _need_two_classes(flat)
    found: list[Finding] = []
    missing = (counts == 0).nonzero().squeeze(1).tolist()
    if missing:
        shown = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
        found.append(
            Finding(
                "missing-classes",
                f"{len(missing)} of {n_classes} classes have no validation input ({shown}): the "
                f"threshold promises nothing for them",
            )
        )
    accuracy = float(task.correct(base, labels).nanmean())
    if accuracy >= TOO_ACCURATE:
        found.append(
            Finding(
                "too-accurate",
                f"the network is right on {percent(accuracy)} of the validation inputs: these look "
                f"like training images. Fit on data that the network was not trained on, or the "
                f"threshold will be too tight",
            )
        )
    found += _label_order(logits.argmax(dim=-1), flat, n_classes, accuracy)
    return found


def _label_order(answers: Tensor, labels: Tensor, n_classes: int, accuracy: float) -> list[Finding]:
    """Few right answers, but many if every answer were renamed: labels in another order."""
    if len(labels) < 5 * n_classes or accuracy > 0.5:
        return []
    together = torch.bincount(answers * n_classes + labels, minlength=n_classes**2)
    renamed = float(together.reshape(n_classes, n_classes).amax(dim=1).sum() / len(labels))
    commonest = float(torch.bincount(labels).max() / len(labels))  # what no renaming has to explain
    if renamed < max(0.6, commonest + 0.2) or accuracy > renamed / 2:
        return []
    return [
        Finding(
            "label-order",
            f"the network is right on {percent(accuracy)} of the validation inputs, but would be "
            f"on {percent(renamed)} if its outputs were renamed: the labels seem to be in another "
            f"order than the network's outputs. Check the class order (sorted folder names?)",
        )
    ]
