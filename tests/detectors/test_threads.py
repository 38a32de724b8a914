"""The user's own forward passes are right while detectors score in other threads."""

import threading
from typing import Any

import torch

import tulip_ood


def test_the_users_model_is_undisturbed_while_two_threads_score(images: Any) -> None:
    detector = tulip_ood.Tulip(images.model, batch_size=16).fit(images.loader(), recipe="balanced")
    x = images.test[0][:64]
    with torch.no_grad():
        expected = images.model(x)
    expected_score = detector.score(x)
    stop = threading.Event()
    scores: list[torch.Tensor] = []

    def keep_scoring() -> None:
        while not stop.is_set():
            scores.append(detector.score(x))

    workers = [threading.Thread(target=keep_scoring) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        with torch.no_grad():
            wrong = sum(not torch.equal(images.model(x), expected) for _ in range(150))
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert wrong == 0
    assert scores
    assert all(torch.equal(score, expected_score) for score in scores)
