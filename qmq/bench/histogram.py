"""Times counted in buckets, as an HDR histogram does: any number of them in the same memory, to three digits.

Buckets are equally wide up to twice SUB_BUCKETS units; from there on they double in width with each power of two, so
that a value is never off by more than 1/SUB_BUCKETS of itself. A percentile is the highest value of its bucket, as in
HdrHistogram, but never more than the highest that was counted: figures err towards slow.
"""

UNIT_SECONDS = 1e-7
"""The resolution of the finest bucket: a tenth of a microsecond."""

SUB_BITS = 10
SUB_BUCKETS = 1 << SUB_BITS

SHARES = {
    "p50": 0.5,
    "p90": 0.9,
    "p99": 0.99,
    "p999": 0.999,
    "p9999": 0.9999,
    "max": 1.0,
}
"""Reported percentiles, by name."""


class Histogram:
    """Seconds, counted. `count` is how many there are, `highest` the largest, exactly."""

    __slots__ = ("_buckets", "count", "highest")

    def __init__(self) -> None:
        self.count = 0
        self.highest = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Count one. What is below nought (clocks of two processors) counts as nought."""
        value = max(int(seconds / UNIT_SECONDS), 0)
        shift = max(value.bit_length() - SUB_BITS - 1, 0)
        bucket = (shift << SUB_BITS) + (value >> shift)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        if seconds > self.highest:
            self.highest = seconds

    def percentile(self, share: float) -> float:
        """Seconds that at least `share` (0 to 1) of all do not exceed; 0 when there are none."""
        wanted = max(-(-self.count * share // 1), 1)
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(_upper_end(bucket), self.highest)
        return 0.0

    def micros(self, name: str) -> dict[str, int]:
        """Figures of all SHARES in microseconds, their names beginning with `name`."""
        return {f"{name}{word}_us": round(self.percentile(share) * 1e6) for word, share in SHARES.items()}


def _upper_end(bucket: int) -> float:
    shift = max((bucket >> SUB_BITS) - 1, 0)
    return ((bucket - (shift << SUB_BITS) + 1) << shift) * UNIT_SECONDS
