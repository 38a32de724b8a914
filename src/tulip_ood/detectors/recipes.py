"""Named, versioned ways to find the envelope's constants. A recipe never changes its meaning.

`paper-1` is Alg. 1 to the letter. `balanced-1` takes λ from the data's own scale. `self-1` and
`self-2` search ε, λ and J on pseudo-OOD, and differ in how they choose: `self-1` by the best mean
rank over the kinds, `self-2` by the highest mean AUROC, which depends less on chance. A better way
gets a new name.
"""

from dataclasses import dataclass, replace

from tulip_ood.errors import InputError

__all__ = ["PAPER_J_SCALINGS", "RECIPES", "Budget", "Recipe", "Setting", "recipe_named"]

PAPER_J_SCALINGS = (1.0, 1.25, 1.5, 1.75, 2.0)


@dataclass(frozen=True)
class Budget:
    """How much a search may look at. The default costs less than three plain calibrations.

    Attributes:
        id_inputs: Validation inputs.
        kind_inputs: Inputs of each kind of pseudo-OOD.
        ood_inputs: Inputs of real OOD validation data, where there is some.
        samples: Noisy passes.

    Example:
        >>> Budget().samples
        4
    """

    id_inputs: int = 256
    kind_inputs: int = 128
    ood_inputs: int = 1024
    samples: int = 4


@dataclass(frozen=True)
class Setting:
    """How ε, λ and J are found, once the passes are there.

    Attributes:
        epsilon: ε.
        lam: λ itself; None to take it in units of the balanced one.
        balance: λ in units of the balanced λ = 2 Θ_XX / mean D.
        j: J itself; None to take it in units of J*.
        j_scaling: J in units of J*.
        shaping: What is done to penultimate features inside the passes, for instance "scale:85".

    Example:
        >>> Setting(0.005, j=2.0).j
        2.0
    """

    epsilon: float
    lam: float | None = None
    balance: float = 1.0
    j: float | None = None
    j_scaling: float = 1.0
    shaping: str | None = None

    def with_given(
        self,
        epsilon: float | None = None,
        lam: float | None = None,
        j: float | None = None,
        shaping: str | None = None,
    ) -> "Setting":
        """What the user has set wins over what the recipe says."""
        return replace(
            self,
            epsilon=self.epsilon if epsilon is None else epsilon,
            lam=self.lam if lam is None else lam,
            j=self.j if j is None else j,
            shaping=self.shaping if shaping is None else shaping,
        )


@dataclass(frozen=True)
class Recipe:
    """A named way to fit.

    Attributes:
        name: With its version.
        setting: Where it starts.
        antithetic: Whether noise comes in pairs (v, −v).
        sqrt_outputs: Whether the drift is multiplied by √o.
        searches: How it chooses among settings on pseudo-OOD: "rank", "auroc", or "" (it does not
            search unless asked to).

    Example:
        >>> recipe_named("paper").setting.lam
        1.25
    """

    name: str
    setting: Setting
    antithetic: bool
    sqrt_outputs: bool
    searches: str = ""


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("self-1", Setting(0.005), antithetic=True, sqrt_outputs=False, searches="rank"),
        Recipe("self-2", Setting(0.005), antithetic=True, sqrt_outputs=False, searches="auroc"),
        Recipe("balanced-1", Setting(0.005), antithetic=True, sqrt_outputs=False),
        Recipe("paper-1", Setting(0.005, lam=1.25), antithetic=False, sqrt_outputs=True),
    )
}
_LATEST = {name.rpartition("-")[0]: name for name in RECIPES}


def recipe_named(name: str) -> Recipe:
    """The recipe called so; without a version, the latest.

    Example:
        >>> recipe_named("self").name, recipe_named("balanced-1").name
        ('self-2', 'balanced-1')
        >>> recipe_named("magic")
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: unknown recipe 'magic'; choose from self, balanced, paper
    """
    full = _LATEST.get(name, name)
    if full not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; choose from {', '.join(_LATEST)}")
    return RECIPES[full]
