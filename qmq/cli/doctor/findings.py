"""A finding of `qmq doctor`: how urgent it is, where it is, what was found, and what to do."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from ..output import counted

SEVERITIES: Final = ("critical", "error", "warning", "info")
"""As of conditions, the most urgent first."""

FREE_BYTES_MIN: Final = 1 << 30
"""A disk with less is a finding."""
FSYNC_SECONDS_SLOW: Final = 0.02
"""Above it, a receipt takes longer than a client on the same network expects."""


class DoctorFinding(NamedTuple):
    severity: str
    where: str
    """A file, a node, a destination, or a setting."""
    message: str
    advice: str

    @property
    def is_error(self) -> bool:
        """Also of a severity that a later version has."""
        return self.severity not in SEVERITIES[2:]


def in_order(findings: Iterable[DoctorFinding]) -> list[DoctorFinding]:
    """The most urgent first, otherwise as they were found."""
    ranks = {severity: rank for rank, severity in enumerate(SEVERITIES)}
    return sorted(findings, key=lambda one: ranks.get(one.severity, 1))


def shown(findings: Iterable[DoctorFinding]) -> list[str]:
    """Two lines for each finding."""
    return [
        line
        for one in findings
        for line in (f"{one.severity}  {one.where}  {one.message}", *([f"    {one.advice}"] if one.advice else ()))
    ]


def summary(findings: Iterable[DoctorFinding]) -> str:
    """`1 error, 2 warnings`; what is critical counts as an error."""
    found = list(findings)
    errors = sum(one.is_error for one in found)
    warnings = sum(one.severity == "warning" for one in found)
    counts = ((errors, "error"), (warnings, "warning"))
    return ", ".join(counted(count, noun) for count, noun in counts if count) or "nothing wrong"
