"""What others have published on the same protocol, as numbers to stand beside ours.

Sources: the leaderboard of OpenOOD v1.5 (Zhang et al., 2023), and the results table of the TULiP
paper (Zhang, Wu, Wada & Kanamori, 2025) for ENT, MC-Dropout, TULiP and the other FPRs.
Means of three training runs (ImageNet-1K: one), in per cent; FPR@95 is the share of ID images
flagged where 95 % of OOD are caught. Parameters were chosen on OOD validation data.
"""

from typing import NamedTuple

__all__ = [
    "BEST_KNOWN",
    "DOUBTFUL",
    "EXTENDED",
    "FITTED_ON_TRAINING_DATA",
    "PAPERS_TULIP",
    "PUBLISHED",
    "Known",
    "known_for",
]

PAPERS_TULIP = "tulip[recipe=paper,tune=ood]"  # what the paper calls TULiP, as it is asked for here

_ID_SETS = ("cifar10", "cifar100", "imagenet200", "imagenet")

# Near/far AUROC; in brackets near/far FPR@95.
_FROM_LEADERBOARD = """
msp       88.03/90.73 (48.17/31.71) | 80.27/77.76 (54.80/58.70) | 83.34/90.13 | 76.02/85.23
mls       87.52/91.10 (61.33/41.67) | 81.05/79.67 (55.47/56.72) | 82.90/91.11 | 76.46/89.57
ebo       87.58/91.21 (61.34/41.71) | 80.91/79.77 (55.61/56.58) | 82.50/90.86 | 75.89/89.47
odin      82.87/87.96 (76.18/57.63) | 79.90/79.28 (57.92/58.87) | 80.27/91.71 | 74.75/89.47
gen       88.20/91.35               | 81.31/79.68               | 83.68/91.36 | 76.85/89.76
react     87.11/90.42 (63.56/44.90) | 80.77/80.39 (56.39/54.20) | 81.87/92.31 | 77.38/93.67
ash-b     75.27/78.49 (86.79/79.02) | 78.20/80.58 (65.72/59.20) | 82.38/93.90 | 78.17/95.74
scale     82.55/86.39 (80.45/67.53) | 80.99/81.42 (55.67/54.08) | 84.84/93.98 | 81.36/96.53
vim       88.68/93.48 (44.84/25.05) | 74.98/81.70 (62.63/50.74) | 78.68/91.26 | 72.08/92.68
knn       90.64/92.96 (34.00/24.28) | 80.18/82.40 (61.23/53.64) | 81.57/93.16 | 71.10/90.18
mds       84.20/89.72 (49.91/32.21) | 58.69/69.39 (83.52/72.26) | 61.93/74.72 | 55.44/74.25
rmds      89.80/92.20 (38.88/25.35) | 80.15/82.92 (55.46/52.81) | 82.57/88.06 | 76.99/86.38
gradnorm  54.90/57.55 (94.72/91.90) | 70.13/69.14 (85.58/83.68) | 72.75/84.26 | 72.96/90.25
rankfeat  79.46/75.87               | 61.88/67.10               | 56.92/38.22 | 50.99/53.93
tempscale 88.09/90.97               | 80.90/78.74               | 83.69/90.82 | 77.14/87.56
"""
_FROM_PAPER = f"""
ent   88.12/90.84 (48.17/31.71) | 80.63/78.14 (54.81/58.69) | 83.55/90.52 (54.82/35.34) | \
76.55/86.21 (65.63/51.28)
mcd   87.68/91.00 (53.54/31.43) | 80.42/77.58 (54.73/59.08) | 83.30/90.20 (55.25/35.48) | \
76.02/85.23 (65.68/51.45)
{PAPERS_TULIP} 89.36/92.25 (40.77/28.40) | 80.81/78.75 (56.21/57.94) | \
83.84/91.05 (54.75/33.62) | 78.38/88.85 (64.96/48.01)
"""
# FPRs alone; – where the leaderboard's stand above.
_FPR_FROM_PAPER = """
msp   – | –                     | (54.82/35.43) | (65.68/51.45)
mls   – | –                     | (59.76/34.03) | (51.35/63.60)
ebo   – | –                     | (60.24/34.86) | (68.56/38.39)
odin  – | –                     | (66.76/34.23) | (72.50/43.96)
gen   (53.67/47.03) | (54.42/56.71) | (55.20/32.10) | (65.32/35.61)
react – | –                     | (62.49/28.50) | (66.69/26.31)
ash-b – | –                     | (64.89/27.29) | (63.32/19.49)
vim   – | –                     | (59.19/27.20) | (71.35/24.67)
mds   – | –                     | (79.11/61.66) | (85.45/62.92)
"""


def _numbers(cell: str) -> dict[str, float]:
    """One cell of the tables above."""
    aurocs, _, rates = cell.strip().removesuffix(")").partition("(")
    found: dict[str, float] = {}
    for names, pair in ((("near", "far"), aurocs), (("near_fpr", "far_fpr"), rates)):
        if "/" in pair:
            found |= dict(zip(names, map(float, pair.split("/")), strict=True))
    return found


def _read(text: str) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in _ID_SETS}
    for line in text.strip().splitlines():
        method, _, cells = line.partition(" ")
        for id_set, cell in zip(_ID_SETS, cells.split("|"), strict=True):
            found[id_set][method] = _numbers(cell)
    return found


_LEADERBOARD, _PAPER, _PAPER_FPR = map(_read, (_FROM_LEADERBOARD, _FROM_PAPER, _FPR_FROM_PAPER))

# By ID set and method: "near" and "far" (AUROC), "near_fpr" and "far_fpr"; a key that is not
# published is not there.
PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    id_set: {
        method: _PAPER_FPR[id_set].get(method, {}) | numbers
        for method, numbers in {**_LEADERBOARD[id_set], **_PAPER[id_set]}.items()
    }
    for id_set in _ID_SETS
}

# Published numbers that are not to be trusted, and why: (ID set, method, number).
DOUBTFUL: dict[tuple[str, str, str], str] = {
    ("imagenet", "mls", "near_fpr"): "another run of the same networks gives 67.84",
    ("imagenet", "mls", "far_fpr"): "another run of the same networks gives 38.20",
    ("cifar10", "gen", "far_fpr"): "above that of methods with a lower AUROC (EBO: 41.71 at 91.21)",
    **{
        (id_set, "mcd", number): "MSP of one training run: the networks have no dropout layers"
        for id_set in _ID_SETS
        for number in ("near", "far", "near_fpr", "far_fpr")
    },
}

# The highest AUROC that a post-hoc method is known to reach: (number, method).
BEST_KNOWN: dict[str, dict[str, tuple[float, str]]] = {
    "cifar10": {"near": (91.16, "GROOD"), "far": (95.64, "Gram")},
    "cifar100": {"near": (81.37, "WeiPer+KLD"), "far": (86.98, "NAC")},
    "imagenet200": {"near": (85.73, "AdaSCALE-L"), "far": (94.86, "AdaSCALE-L")},
    "imagenet": {"near": (84.42, "AdaSCALE"), "far": (97.28, "AdaSCALE")},
}

# The paper's second table: other networks on ImageNet-1K, near and far AUROC; None: not run.
_EXTENDED = """
          resnet50-v2 | vit-b-16    | mobilenet-v3-large | vgg-16      | regnet-y-16gf
ebo       54.39/51.36 | 62.41/78.98 | 71.00/77.46        | 72.16/89.92 | 67.50/69.98
odin      69.89/66.10 | 64.32/76.06 | 70.09/79.63        | 70.86/90.83 | 64.93/65.41
mls       69.24/76.47 | 68.30/83.54 | 74.39/82.67        | 72.75/89.78 | 72.07/78.45
ash-b     35.96/29.91 | 53.21/51.56 | –                  | –           | –
tulip     66.77/74.35 | 72.96/87.42 | 75.20/84.40        | 74.54/87.51 | 74.54/83.52
"""


def _extended() -> dict[str, dict[str, tuple[float, float] | None]]:
    head, *lines = _EXTENDED.strip("\n").splitlines()
    networks = [name.strip() for name in head.split("|")]
    found: dict[str, dict[str, tuple[float, float] | None]] = {name: {} for name in networks}
    for line in lines:
        method, _, cells = line.partition(" ")
        for network, cell in zip(networks, cells.split("|"), strict=True):
            both = _numbers(cell)
            found[network][method] = (both["near"], both["far"]) if both else None
    return found


EXTENDED = _extended()

# Published with all training images in hand: on the track "val" ours had far fewer.
FITTED_ON_TRAINING_DATA = frozenset({"vim", "knn", "mds", "rmds"})


class Known(NamedTuple):
    """What is published for a method, and whether for that very one.

    Example:
        >>> Known("msp", {"near": 88.03, "far": 90.73}, same=True).numbers["near"]
        88.03
    """

    method: str
    numbers: dict[str, float]
    same: bool


def known_for(id_set: str, method: str) -> Known | None:
    """The published numbers that belong beside a method; None if there are none.

    A method is known by its plain name or with `tune=ood`, which is how others chose parameters.
    Plain `tulip` is another recipe than the paper's: it gets the paper's TULiP, with `same` False.

    Example:
        >>> known_for("cifar10", "knn[tune=ood]").numbers["near"]
        90.64
        >>> known_for("cifar10", "tulip").same, known_for("cifar10", "tulip[recipe=paper]")
        (False, None)
    """
    there = PUBLISHED.get(id_set, {})
    if not there:
        return None
    if method == "tulip":
        return Known(PAPERS_TULIP, there[PAPERS_TULIP], same=False)
    name, _, settings = method.partition("[")
    asked = {each.strip() for each in settings.removesuffix("]").split(",")} - {""}
    if name == "tulip":
        found = PAPERS_TULIP if asked == {"recipe=paper", "tune=ood"} else None
    else:
        found = name if asked <= {"tune=ood"} and name in there else None
    return None if found is None else Known(found, there[found], same=True)
