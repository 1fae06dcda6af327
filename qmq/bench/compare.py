"""Compare two runs of the same workload: the ratio of each figure, and which direction is better.

A figure's name ends with its unit, and the unit says what is better: more per second, less microseconds or memory.
What a run was asked for must be the same in both, or the ratio of their figures would mean nothing. What only explains
a run (the busy side, versions, duration) may differ and is not compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

Facts = Mapping[str, object]

SAME_SHARE = 0.02
"""A smaller difference counts as none: two runs of one program on an idle machine differ by as much."""


class Better(Enum):
    MORE = "more is better"
    LESS = "less is better"


LESS_ENDINGS = ("_us", "_us_per_message", "_us_per_queue", "_us_per_subscription", "_mib", "bytes_per_connection")
LESS_NAMES = ("missing", "extra", "errors", "recovery_seconds", "first_message_seconds")
EXPLAINING = ("seconds", "limited_by", "error", "qmq", "build", "python", "cores", "pinned")


class NotComparable(ValueError):
    """The two runs are not of the same load; the message says how they differ."""


@dataclass(frozen=True, slots=True)
class FigureDifference:
    """One figure of both runs."""

    name: str
    before: float
    now: float
    better: Better

    @property
    def ratio(self) -> float | None:
        """The new value divided by the old one; None if the old one is 0."""
        return self.now / self.before if self.before else None

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or empty if both are the same."""
        if abs(self.now - self.before) <= SAME_SHARE * abs(self.before):
            return ""
        return "better" if (self.now > self.before) == (self.better is Better.MORE) else "worse"


def direction(name: str) -> Better | None:
    """Which direction is better for this figure; None if it is no figure, or neither is better."""
    if name.startswith("generator_lag_"):
        return None  # of the generator, not of what is measured
    if name.endswith("wakeups_per_second") or name.endswith(LESS_ENDINGS) or name in LESS_NAMES:
        return Better.LESS
    return Better.MORE if name.endswith("per_second") else None


def compare(before: Facts, now: Facts) -> list[FigureDifference]:
    """Each figure that both have, in the order of `now`. Raises NotComparable."""
    if "workload" not in before:
        raise NotComparable("it is not a result of qmq bench: it names no workload")
    asked = [name for name in (*now, *before) if _is_asked(name)]
    for name in dict.fromkeys(asked):
        if before.get(name) != now.get(name):
            raise NotComparable(f"{name} is {_formatted(before, name)} there and {_formatted(now, name)} here")
    found = []
    for name, value in now.items():
        better, earlier = direction(name), before.get(name)
        if better is not None and _is_number(value) and _is_number(earlier):
            found.append(FigureDifference(name, float(str(earlier)), float(str(value)), better))
    if not found:
        raise NotComparable("the two have no figure in common")
    return found


def _is_asked(name: str) -> bool:
    explains = name in EXPLAINING or name.endswith(("_cpu_share", "limited_by")) or name.startswith("generator_lag_")
    return direction(name) is None and not explains


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _formatted(facts: Facts, name: str) -> str:
    return repr(facts[name]) if name in facts else "not given"
