"""Several fitted detectors on inputs that are in memory."""

from collections.abc import Callable, Mapping

from torch import Tensor

from tulip_ood.benchmark.collecting import Collector
from tulip_ood.benchmark.results import Comparison, check_groups
from tulip_ood.detectors.base import Detector
from tulip_ood.errors import InputError
from tulip_ood.network.inputs import Inputs, count_rows
from tulip_ood.numerics.default_device import on_the_cpu
from tulip_ood.wording import counted

__all__ = ["evaluate"]


@on_the_cpu()
def evaluate(
    detectors: Mapping[str, Detector],
    id_test: tuple[Inputs, Tensor],
    ood: Mapping[str, Inputs],
    groups: Mapping[str, str] | None = None,
    *,
    progress: Callable[[str, str], None] | None = None,
) -> Comparison:
    """Score the same inputs with several fitted detectors.

    Args:
        detectors: Fitted detectors by the name to show.
        id_test: ID inputs and labels that neither training nor fitting has seen.
        ood: OOD inputs by the name of their set.
        groups: "near" or "far" for a set's name.
        progress: Called with (method, set) before each is scored; the ID test set is "ID".

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detectors = {"ebo": tulip_ood.detectors.Energy(torch.nn.Linear(4, 3)).fit([(x, y)])}
        >>> found = evaluate(detectors, (x, y), {"wide": 9 * x})
        >>> found.to_dict()["methods"]["ebo"]["sets"]["wide"]["auroc"] is not None
        True
    """
    inputs, labels = id_test
    groups = check_groups(groups or {}, ood)
    if not detectors:
        raise InputError("there are no detectors to compare")
    sizes = {name: count_rows(part) for name, part in ood.items()}
    n_id = count_rows(inputs)
    if n_id != len(labels):
        raise InputError(
            f"got {counted(n_id, 'ID test input')} but {counted(len(labels), 'label')}"
        )
    if empty := [name for name, size in {"ID": n_id, **sizes}.items() if size == 0]:
        raise InputError(f"there are no inputs in {', '.join(empty)}")
    say = progress or (lambda method, name: None)
    methods = {}
    for name, detector in detectors.items():
        collector = Collector(name, detector)
        say(name, "ID")
        collector.inside(detector.predict(inputs), labels)
        for each, part in ood.items():
            say(name, each)
            collector.outside(each, detector.score(part))
        methods[name] = collector.result()
    return Comparison(methods, groups, n_id, sizes)
