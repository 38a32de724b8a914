"""How unsure is a prediction? One number from logits, high = unsure.

Every score takes *samples*, logits [M, …, o] of M predictions of the same inputs: the envelope's
f̃_i, or the network's own logits as a single sample. Entropy, MSP and GEN look at the mean
probability; max-logit and energy at the mean over samples, because the energy of a probability
vector is constant. Work in float64: the caller decides by the dtype that is passed in.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tulip_ood.errors import InputError

__all__ = [
    "SCALED_SCORES",
    "SCORES",
    "bernoulli_entropy",
    "bernoulli_msp",
    "energy",
    "entropy",
    "gen",
    "max_logit",
    "mean_probability",
    "msp",
    "sample_score",
]


def mean_probability(samples: Tensor) -> Tensor:
    """p = mean_i softmax(f̃_i), Alg. 1's prediction: [M, …, o] → […, o].

    Example:
        >>> import torch
        >>> mean_probability(torch.zeros(3, 1, 4))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    return samples.softmax(dim=-1).mean(dim=0)


def entropy(probs: Tensor) -> Tensor:
    """Shannon entropy −Σ p log p in nats: […, o] → […].

    Example:
        >>> import torch
        >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
        tensor([0.6931, 0.0000])
    """
    total: Tensor = torch.special.xlogy(probs, probs).sum(dim=-1)
    return 0.0 - total  # not -total: no negative zero


def msp(probs: Tensor) -> Tensor:
    """One minus the largest probability: […, o] → […].

    Summed over the other classes, so that very confident predictions keep their order
    where 1 − max p would round to 0.

    Example:
        >>> import torch
        >>> msp(torch.tensor([[0.7, 0.2, 0.1]]))
        tensor([0.3000])
    """
    top = probs.argmax(dim=-1, keepdim=True)
    return probs.scatter(-1, top, 0.0).sum(dim=-1)


def gen(probs: Tensor, gamma: float = 0.1, top: int = 100) -> Tensor:
    """Generalised entropy Σ p^γ (1−p)^γ over the `top` largest p (Liu et al., CVPR 2023).

    1 − p of the largest is summed over the other classes: a small power makes much of a tiny
    number, and 1 − p would round it to 0.

    Example:
        >>> import torch
        >>> gen(torch.tensor([[0.5, 0.5], [0.99, 0.01]]))
        tensor([1.7411, 1.2606])
    """
    largest = probs.topk(min(top, probs.shape[-1]), dim=-1).values
    rest = 1.0 - largest
    rest[..., 0] = msp(probs)
    return (largest * rest).pow(gamma).sum(dim=-1)


def max_logit(samples: Tensor) -> Tensor:
    """−max_c mean_i f̃_i: [M, …, o] → […] (Hendrycks et al., ICML 2022).

    Example:
        >>> import torch
        >>> max_logit(torch.tensor([[[1.0, 5.0]]]))
        tensor([-5.])
    """
    return -samples.mean(dim=0).amax(dim=-1)


def energy(samples: Tensor) -> Tensor:
    """−mean_i logsumexp(f̃_i): [M, …, o] → […] (Liu et al., NeurIPS 2020).

    Example:
        >>> import torch
        >>> energy(torch.zeros(1, 1, 2))
        tensor([-0.6931])
    """
    return -samples.logsumexp(dim=-1).mean(dim=0)


def bernoulli_entropy(yes: Tensor, no: Tensor) -> Tensor:
    """Σ over outputs of the entropy of a yes/no answer: […, o] → […].

    Both probabilities are asked for, so that a very sure yes keeps its order as a very sure no
    does: 1 − p would round to 0.

    Example:
        >>> import torch
        >>> bernoulli_entropy(torch.tensor([[0.5, 1.0]]), torch.tensor([[0.5, 0.0]]))
        tensor([0.6931])
    """
    both = torch.special.xlogy(yes, yes) + torch.special.xlogy(no, no)
    total: Tensor = both.sum(dim=-1)
    return 0.0 - total


def bernoulli_msp(yes: Tensor, no: Tensor) -> Tensor:
    """The largest chance that any single yes/no answer is wrong: […, o] → […].

    Example:
        >>> import torch
        >>> bernoulli_msp(torch.tensor([[0.9, 0.4]]), torch.tensor([[0.1, 0.6]]))
        tensor([0.4000])
    """
    return torch.minimum(yes, no).amax(dim=-1)


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "ent": lambda samples: entropy(mean_probability(samples)),
    "msp": lambda samples: msp(mean_probability(samples)),
    "gen": lambda samples: gen(mean_probability(samples)),
    "mls": max_logit,
    "ebo": energy,
}
SCALED_SCORES = frozenset({"mls", "ebo"})  # all others are the same for logits + a number


def sample_score(name: str, samples: Tensor) -> Tensor:
    """The score called `name` of samples [M, …, o].

    Example:
        >>> import torch
        >>> sample_score("ent", torch.zeros(2, 1, 2))
        tensor([0.6931])
        >>> sample_score("entropy", torch.zeros(2, 1, 2))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.InputError: unknown score 'entropy'; choose from ent, msp, gen, mls, ebo
    """
    if name not in SCORES:
        raise InputError(f"unknown score {name!r}; choose from {', '.join(SCORES)}")
    return SCORES[name](samples)
