"""The report of a run, as Markdown."""

from collections import Counter
from collections.abc import Sequence

from tests.mutation.run import Verdict


def page(verdicts: Sequence[Verdict], seed: int, seconds: float) -> str:
    """A table by package, and each mutant that survives with its place and its change."""
    survivors = [verdict for verdict in verdicts if verdict.by is None]
    all_by, left_by = Counter(map(_package, verdicts)), Counter(map(_package, survivors))
    lines = [
        "# Mutants",
        "",
        f"Seed {seed}, {len(verdicts)} mutants, {seconds / 60:.0f} minutes.",
        "A survivor is equivalent to the source, or shows a missing test.",
        "",
        "| package | mutants | killed | survive |",
        "|---|--:|--:|--:|",
        *(f"| {name} | {all_by[name]} | {all_by[name] - left_by[name]} | {left_by[name]} |" for name in sorted(all_by)),
        f"| all | {len(verdicts)} | {len(verdicts) - len(survivors)} | {len(survivors)} |",
        "",
        "## Survivors",
        "",
    ]
    lines += [
        f"- `{v.path}:{v.mutant.line}` {v.mutant.kind}: `{_line(v.before)}` → `{_line(v.mutant.text)}`"
        for v in survivors
    ]
    return "\n".join(lines) + "\n"


def _package(verdict: Verdict) -> str:
    return verdict.path.split("/")[1]


def _line(text: str) -> str:
    return " ".join(text.split())
