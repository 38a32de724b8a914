"""What a server counts, in Prometheus' text format."""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable

__all__ = ["Counter", "Gauge", "Histogram", "Metrics"]

Labels = tuple[tuple[str, str], ...]


def _written(labels: Iterable[tuple[str, str]]) -> str:
    """Labels as the format has them."""
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    inner = ",".join(f'{name}="{value.translate(escapes)}"' for name, value in labels)
    return f"{{{inner}}}" if inner else ""


class Counter:
    """Counts events, by labels.

    Example:
        >>> requests = Counter("requests_total", "Requests.")
        >>> requests.add(status="200")
        >>> requests.add(status="200")
        >>> print(requests)
        # HELP requests_total Requests.
        # TYPE requests_total counter
        requests_total{status="200"} 2
    """

    def __init__(self, name: str, help_text: str) -> None:
        self.name, self._help = name, help_text
        self._values: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def add(self, count: float = 1, **labels: str) -> None:
        """Count."""
        key = tuple(labels.items())
        with self._lock:
            self._values[key] = self._values.get(key, 0) + count

    def value(self, **labels: str) -> float:
        """How often it was."""
        return self._values.get(tuple(labels.items()), 0)

    def __str__(self) -> str:
        with self._lock:
            rows = sorted(self._values.items())
        # With all digits: the rate of a rounded counter is a row of zeros and jumps.
        lines = [f"{self.name}{_written(labels)} {value:.17g}" for labels, value in rows]
        return "\n".join([*_heading(self.name, self._help, "counter"), *lines])


class Gauge:
    """A number as it is at the moment of looking.

    Example:
        >>> print(str(Gauge("queue_images", "Waiting.", lambda: [((), 3)])).splitlines()[-1])
        queue_images 3
    """

    def __init__(
        self, name: str, help_text: str, look: Callable[[], Iterable[tuple[Labels, float]]]
    ) -> None:
        self.name, self._help, self._look = name, help_text, look

    def __str__(self) -> str:
        lines = [f"{self.name}{_written(labels)} {value:.10g}" for labels, value in self._look()]
        return "\n".join([*_heading(self.name, self._help, "gauge"), *lines])


class Histogram:
    """Counts values in buckets, by labels.

    Args:
        name: Its name.
        help_text: What is counted.
        bounds: Upper bounds of the buckets, rising; what lies above all of them counts, too.

    Example:
        >>> sizes = Histogram("batch_size", "Images.", [1, 2, 4])
        >>> sizes.add(2)
        >>> print(sizes)
        # HELP batch_size Images.
        # TYPE batch_size histogram
        batch_size_bucket{le="1"} 0
        batch_size_bucket{le="2"} 1
        batch_size_bucket{le="4"} 1
        batch_size_bucket{le="+Inf"} 1
        batch_size_sum 2
        batch_size_count 1
    """

    def __init__(self, name: str, help_text: str, bounds: Iterable[float]) -> None:
        self.name, self._help, self._bounds = name, help_text, list(bounds)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def add(self, value: float, **labels: str) -> None:
        """Count a value."""
        key = tuple(labels.items())
        with self._lock:
            counts = self._counts.setdefault(key, [0] * (len(self._bounds) + 1))
            counts[bisect_left(self._bounds, value)] += 1
            self._sums[key] = self._sums.get(key, 0.0) + value

    def __str__(self) -> str:
        with self._lock:
            rows = [(key, list(counts), self._sums[key]) for key, counts in self._counts.items()]
        lines = []
        for labels, counts, total in sorted(rows):
            so_far = 0
            for bound, count in zip(
                [f"{b:g}" for b in self._bounds] + ["+Inf"], counts, strict=True
            ):
                so_far += count
                lines.append(f"{self.name}_bucket{_written([*labels, ('le', bound)])} {so_far}")
            lines.append(f"{self.name}_sum{_written(labels)} {total:.17g}")
            lines.append(f"{self.name}_count{_written(labels)} {so_far}")
        return "\n".join([*_heading(self.name, self._help, "histogram"), *lines])


def _heading(name: str, help_text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]


class Metrics:
    """Everything that one server counts.

    p-values are counted in 20 buckets of equal width: on inputs like the validation data each gets
    5 %, so a flat histogram means no drift.

    Args:
        waiting: How many images wait.
        thresholds: The threshold of each detector, by its role.

    Example:
        >>> metrics = Metrics(lambda: 0, lambda: [])
        >>> metrics.judged("answering", 0.03, accepted=False)
        >>> 'tulip_p_value_bucket{detector="answering",le="0.05"} 1' in metrics.text()
        True
    """

    def __init__(
        self,
        waiting: Callable[[], int],
        thresholds: Callable[[], Iterable[tuple[Labels, float]]],
    ) -> None:
        seconds = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
        self.requests = Counter("tulip_requests_total", "Requests by path and status.")
        self.seconds = Histogram("tulip_request_seconds", "Time to the answer.", seconds)
        self.batch_size = Histogram(
            "tulip_batch_size", "Images scored together.", [1, 2, 4, 8, 16, 32, 64, 128]
        )
        self.images = Counter("tulip_images_total", "Images by detector and decision.")
        self.p_values = Histogram(
            "tulip_p_value", "Conformal p-values; flat: no drift.", [i / 20 for i in range(1, 21)]
        )
        self.pairs = Counter("tulip_shadow_pairs_total", "What both detectors decided.")
        self.failures = Counter("tulip_failures_total", "What went wrong inside, by place.")
        self._gauges = [
            Gauge("tulip_queue_images", "Images that wait.", lambda: [((), waiting())]),
            Gauge("tulip_threshold", "The largest score that is accepted.", thresholds),
        ]

    def judged(self, detector: str, p_value: float, *, accepted: bool) -> None:
        """Count a decision."""
        self.images.add(detector=detector, decision="accepted" if accepted else "refused")
        self.p_values.add(p_value, detector=detector)

    def text(self) -> str:
        """All of it, for Prometheus."""
        counted = (self.requests, self.seconds, self.batch_size, self.images, self.p_values)
        rest = (self.pairs, self.failures, *self._gauges)
        return "\n".join(map(str, (*counted, *rest))) + "\n"
