"""What choosing may cost: all of a fit stays within four plain calibrations.

A plain calibration is twelve passes (M 10) over the validation inputs, or over 1,000 if there are
fewer. A search alone stays below that with its usual budget; where a scope or M is chosen too,
every set is looked at a little less.
"""

from dataclasses import dataclass, replace

from tulip_ood.detectors.recipes import Budget
from tulip_ood.detectors.sample_choice import ID_INPUTS, KIND_INPUTS, MOST_SAMPLES
from tulip_ood.detectors.steadiness import ALONE

__all__ = ["Plan", "within"]

CALIBRATIONS = 4
_PLAIN = 12 * 1000
_FEWEST = 16  # inputs of a set, whatever they cost
_GUARDS = 100  # inputs that go through the network while it is looked at


@dataclass(frozen=True)
class Plan:
    """What a fit is going to do.

    Attributes:
        inputs: Validation inputs.
        samples: M of the calibration; the largest one if it is to be chosen.
        id_inputs: Validation inputs that are there to choose on.
        kinds: Kinds of pseudo-OOD.
        ood_inputs: Real OOD inputs in their place.
        epsilons: Values of ε that are searched.
        scopes: Scopes that are tried beside all parameters and need passes of the network.
        chooses_samples: Whether M is chosen.

    Example:
        >>> Plan(1000, 10, 400, 7, 0, 4, 2, False).samples
        10
    """

    inputs: int
    samples: int
    id_inputs: int
    kinds: int
    ood_inputs: int
    epsilons: int
    scopes: int
    chooses_samples: bool

    def in_any_case(self, budget: Budget) -> int:
        """Inputs times passes that do not depend on how much is looked at."""
        each = 2 * ALONE * (budget.samples + 2)  # scored alone and together
        fixed = self.inputs * (self.samples + 2) + 2 * ALONE * (self.samples + 2) + _GUARDS
        fixed += (self.epsilons + self.scopes) * each + self.scopes * 2 * ALONE
        if self.chooses_samples:
            ranked = ID_INPUTS + self.kinds * KIND_INPUTS
            fixed += ranked * (MOST_SAMPLES - budget.samples)
        return fixed

    def looked_at(self, budget: Budget) -> int:
        """Inputs times passes of the search and the scopes."""
        inside = min(budget.id_inputs, self.id_inputs)
        outside = self.kinds * min(budget.kind_inputs, self.id_inputs)
        outside += min(budget.ood_inputs, self.ood_inputs)
        each = 1 + (self.epsilons + self.scopes) * (budget.samples + 1)
        return inside + (inside + outside) * each


def within(budget: Budget, plan: Plan) -> Budget:
    """The budget, made smaller where the plan would cost more than four plain calibrations.

    Example:
        >>> within(Budget(), Plan(1000, 10, 400, 7, 0, 4, 0, False)) == Budget()
        True
        >>> within(Budget(), Plan(1000, 16, 400, 7, 0, 4, 2, True)).kind_inputs < 128
        True
    """
    limit = CALIBRATIONS * max(12 * plan.inputs, _PLAIN)
    left = (limit - plan.in_any_case(budget)) / max(plan.looked_at(budget), 1)
    if left >= 1:
        return budget
    there = {"id_inputs": plan.id_inputs, "kind_inputs": plan.id_inputs, "ood_inputs": 1 << 62}
    return replace(
        budget,
        **{
            name: max(_FEWEST, int(left * min(getattr(budget, name), most)))
            for name, most in there.items()
        },
    )
