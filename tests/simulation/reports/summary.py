"""Sums over many seeds: a table for people, the same numbers as JSON for programs."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field

from tests.simulation.plan import Family
from tests.simulation.run import Report


@dataclass(slots=True)
class Row:
    """The seeds of one family, or of all."""

    seeds: int = 0
    five: int = 0
    """Of these: with five nodes or more."""
    faults: int = 0
    lives: int = 0
    takeovers: int = 0
    sent: int = 0
    receipted: int = 0
    excused: int = 0
    """Receipted, and then only on a disk that was lost: by a receipt that said so, or by losing several disks."""
    redelivered: int = 0
    acks: int = 0
    """Receipted at the level `edge`."""
    again: int = 0
    """Of `redelivered`: after the receipt of one of these."""
    quorum_acks: int = 0
    """Receipted at the level `quorum`."""
    quorum_again: int = 0
    """Of `redelivered`: after the receipt of one of these."""
    agreed_seconds: float = 0.0
    """The longest, in virtual time, from the last fault to agreement."""
    failed: int = 0

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.five += len(report.plan.nodes) >= 5
        self.faults += len(report.plan.script)
        self.lives += report.lives
        self.takeovers += report.takeovers
        self.sent += report.sent
        self.receipted += report.receipted
        self.excused += report.excused
        self.redelivered += report.redelivered
        self.acks += report.acks
        self.again += report.again
        self.quorum_acks += report.quorum_acks
        self.quorum_again += report.quorum_again
        self.agreed_seconds = max(self.agreed_seconds, report.settled_seconds)
        self.failed += bool(report.wrongs)


COLUMNS = (
    ("seeds", "seeds"),
    ("of five nodes", "five"),
    ("faults", "faults"),
    ("lives of nodes", "lives"),
    ("takeovers", "takeovers"),
    ("sent", "sent"),
    ("receipted", "receipted"),
    ("on lost disks only", "excused"),
    ("redelivered", "redelivered"),
    ("edge ACKs", "acks"),
    ("given again", "again"),
    ("quorum ACKs", "quorum_acks"),
    ("given again", "quorum_again"),
    ("agreed after", "agreed_seconds"),
    ("failed", "failed"),
)


@dataclass(slots=True)
class Summary:
    """Everything that was run."""

    rows: dict[str, Row] = field(default_factory=lambda: {family.name.lower(): Row() for family in Family})
    all: Row = field(default_factory=Row)
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, report: Report) -> None:
        self.rows[report.plan.family.name.lower()].add(report)
        self.all.add(report)
        self.faults.update(fault.name for fault in report.plan.script)
        if report.wrongs:
            self.failed.append(report.seed)

    def table(self, seconds: float) -> str:
        """Markdown, which reads well on a terminal too."""
        lines = [
            "| faults drawn from | " + " | ".join(title for title, _ in COLUMNS) + " |",
            "|---|" + "--:|" * len(COLUMNS),
        ]
        for name, row in [*self.rows.items(), ("together", self.all)]:
            if row.seeds:
                values = (getattr(row, attribute) for _, attribute in COLUMNS)
                cells = (f"{value:.1f} s" if isinstance(value, float) else str(value) for value in values)
                lines.append(f"| {name} | " + " | ".join(cells) + " |")
        counted = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        each = seconds / max(self.all.seeds, 1)
        return "\n".join(
            [
                *lines,
                "",
                f"Faults: {counted or 'none'}.",
                f"{self.all.seeds} seeds in {seconds:.0f} s, {each:.2f} s each.",
                f"Failing seeds: {', '.join(map(str, sorted(self.failed))) or 'none'}.",
            ]
        )

    def json(self, seconds: float) -> str:
        rows = {name: asdict(row) for name, row in self.rows.items() if row.seeds}
        document = {
            "seconds": round(seconds, 1),
            "all": asdict(self.all),
            "families": rows,
            "faults": dict(sorted(self.faults.items())),
            "failed": sorted(self.failed),
        }
        return json.dumps(document, indent=2)
