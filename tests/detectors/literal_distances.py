"""The distance detectors once more, as plain loops in numpy."""

import math
from collections.abc import Callable

import numpy as np

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.fdbd import FDBD
from tulip_ood.detectors.knn import KNN
from tulip_ood.detectors.mds import MDS
from tulip_ood.detectors.mds_plus import MDSPlus
from tulip_ood.detectors.nci import NCI
from tulip_ood.detectors.nnguide import NNGuide
from tulip_ood.detectors.rmds import RMDS
from tulip_ood.detectors.rmds_plus import RMDSPlus
from tulip_ood.detectors.vim import ViM
from tulip_ood.network.passes import Passes


def rows_of(passes: Passes, *, normalise: bool = False) -> list[np.ndarray]:
    assert passes.features is not None
    rows = [row.astype(np.float64) for row in passes.features.numpy()]
    return [row / (math.sqrt(sum(row * row)) or 1.0) for row in rows] if normalise else rows


def inverse(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    least = len(values) * np.finfo(np.float64).eps * values.max()
    total = np.zeros_like(covariance)
    for value, vector in zip(values, vectors.T, strict=True):
        if value > least:
            total += np.outer(vector, vector) / value
    return total


def gaussian_scores(learned: Passes, test: Passes, *, normalise: bool, relative: bool) -> list:
    rows = rows_of(learned, normalise=normalise)
    assert learned.labels is not None
    labels = learned.labels.tolist()
    means = {c: np.mean([r for r, y in zip(rows, labels, strict=True) if y == c], axis=0)
             for c in set(labels)}  # fmt: skip
    whole = np.mean(rows, axis=0)
    d = len(whole)
    within, total = np.zeros((d, d)), np.zeros((d, d))
    for row, label in zip(rows, labels, strict=True):
        within += np.outer(row - means[label], row - means[label]) / len(rows)
        total += np.outer(row - whole, row - whole) / len(rows)
    precision, background = inverse(within), inverse(total)
    scores = []
    for row in rows_of(test, normalise=normalise):
        score = min(float((row - m) @ precision @ (row - m)) for m in means.values())
        if relative:
            score -= float((row - whole) @ background @ (row - whole))
        scores.append(score)
    return scores


def energies(passes: Passes) -> list[float]:
    logits = passes.base.numpy().astype(np.float64)
    return [float(np.log(np.sum(np.exp(z - z.max()))) + z.max()) for z in logits]


def principal(learned: Passes) -> tuple[np.ndarray, np.ndarray]:
    """−pinv(W) b, and the eigenvectors of the second moments about it, largest first."""
    weight = learned.head.weight.numpy().astype(np.float64)
    bias = learned.head.bias.numpy().astype(np.float64)
    origin = -np.linalg.pinv(weight) @ bias
    second = np.zeros((weight.shape[1],) * 2)
    for row in rows_of(learned):
        second += np.outer(row - origin, row - origin)
    values, vectors = np.linalg.eigh(second)
    return origin, vectors[:, np.argsort(-values)]


def vim_scores(learned: Passes, test: Passes, dim: int | None = None) -> list[float]:
    origin, vectors = principal(learned)
    d = len(origin)

    def residual(row: np.ndarray, outside: int) -> float:
        return float(np.linalg.norm((row - origin) @ vectors[:, outside:]))

    rows = rows_of(learned)
    if dim is None:  # half of the features, or of the dimensions that they span
        norm = np.mean([residual(row, 0) for row in rows])
        spanned = [i for i in range(d) if np.mean([residual(r, i) for r in rows]) > 1e-6 * norm]
        dim = min(d // 2, len(spanned) // 2)
    top = np.mean([max(z) for z in learned.base.numpy().astype(np.float64)])
    alpha = top / np.mean([residual(row, dim) for row in rows])
    pairs = zip(rows_of(test), energies(test), strict=True)
    return [alpha * residual(row, dim) - energy for row, energy in pairs]


def knn_scores(learned: Passes, test: Passes, k: int) -> list[float]:
    bank = [row for row in rows_of(learned, normalise=True) if row.any()]
    return [
        sorted(float(sum((row - other) ** 2)) for other in bank)[k - 1]
        for row in rows_of(test, normalise=True)
    ]


def fdbd_scores(learned: Passes, test: Passes, *, distance: bool) -> list[float]:
    mean = np.mean(rows_of(learned), axis=0)
    weight = test.head.weight.numpy().astype(np.float64)
    scores = []
    for row, z in zip(rows_of(test), test.base.numpy().astype(np.float64), strict=True):
        top = int(np.argmax(z))
        others = [c for c in range(len(z)) if c != top]
        total = sum((z[top] - z[c]) / np.linalg.norm(weight[top] - weight[c]) for c in others)
        out = np.linalg.norm(row - mean) if distance else np.linalg.norm(row)
        scores.append(-total / out if out > 0 else 0.0)
    return scores


def nci_scores(learned: Passes, test: Passes, alpha: float) -> list[float]:
    mean = np.mean(rows_of(learned), axis=0)
    weight = test.head.weight.numpy().astype(np.float64)
    scores = []
    for row, z in zip(rows_of(test), test.base.numpy().astype(np.float64), strict=True):
        out, own = row - mean, weight[int(np.argmax(z))]
        aligned = sum(a * b for a, b in zip(out, own, strict=True)) / np.linalg.norm(out)
        scores.append(-aligned - alpha * sum(abs(a) for a in row))
    return scores


def nnguide_scores(learned: Passes, test: Passes, k: int) -> list[float]:
    pairs = zip(rows_of(learned, normalise=True), energies(learned), strict=True)
    bank = [row * energy for row, energy in pairs]
    scores = []
    for row, energy in zip(rows_of(test, normalise=True), energies(test), strict=True):
        nearest = sorted((float(row @ other) for other in bank), reverse=True)[:k]
        scores.append(-energy * sum(nearest) / len(nearest))
    return scores


Literal = Callable[[Passes, Passes, str], list[float]]
LITERAL: dict[type[Detector], Literal] = {
    MDS: lambda a, b, _: gaussian_scores(a, b, normalise=False, relative=False),
    MDSPlus: lambda a, b, _: gaussian_scores(a, b, normalise=True, relative=False),
    RMDS: lambda a, b, _: gaussian_scores(a, b, normalise=False, relative=True),
    RMDSPlus: lambda a, b, _: gaussian_scores(a, b, normalise=True, relative=True),
    ViM: lambda a, b, _: vim_scores(a, b),
    KNN: lambda a, b, track: knn_scores(a, b, 50 if track == "train" else 1),
    FDBD: lambda a, b, _: fdbd_scores(a, b, distance=True),
    NCI: lambda a, b, _: nci_scores(a, b, 0.0),
    NNGuide: lambda a, b, _: nnguide_scores(a, b, 100),
}
