"""The families of metrics of one page, and the page, by prometheus-client. Loaded at the first scrape."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from qmq.storage.log.fsync_times import BOUNDS_SECONDS, Durations

ESCAPES: Final = {
    ord("\\"): "\\\\",
    **{code: ascii(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)},
}
"""In names that a client chose. Two different names stay different."""


class MetricFamilies:
    """The metrics of one page, in order; what a registry of prometheus-client calls a collector."""

    def __init__(self) -> None:
        self._all: list[Metric] = []

    def collect(self) -> Iterable[Metric]:
        return self._all

    def process(self) -> None:
        """Those of the process, as each program has them that prometheus-client serves; none where there is no /proc.

        Reads files, and lists all that are open.
        """
        self._all += ProcessCollector(registry=None).collect()

    def counter(self, name: str, text: str, value: float) -> None:
        """`name` without `_total`."""
        self._all.append(CounterMetricFamily(name, text, value=value))

    def counters(
        self, name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
    ) -> None:
        """As `gauges`; `name` without `_total`."""
        self._add(CounterMetricFamily(name, text, labels=labels), rows)

    def gauge(self, name: str, text: str, value: float) -> None:
        self._all.append(GaugeMetricFamily(name, text, value=value))

    def gauges(self, name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]) -> None:
        """One series for each row: the values of `labels`, and its value. Without a row only the help text is there."""
        self._add(GaugeMetricFamily(name, text, labels=labels), rows)

    def _add(
        self, family: CounterMetricFamily | GaugeMetricFamily, rows: Iterable[tuple[Sequence[str], float]]
    ) -> None:
        for values, value in rows:
            family.add_metric([one.translate(ESCAPES) for one in values], value)
        self._all.append(family)

    def histograms(
        self, name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Durations]]
    ) -> None:
        """As `gauges`."""
        family = HistogramMetricFamily(name, text, labels=labels)
        bounds = (*map(str, BOUNDS_SECONDS), "+Inf")
        for values, times in rows:
            buckets = list(zip(bounds, accumulate(times.buckets()), strict=True))
            family.add_metric([one.translate(ESCAPES) for one in values], buckets, times.seconds)
        self._all.append(family)

    def page(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
