"""Reduces a failing seed to the few faults that it needs, by delta debugging of its script.

A part of a script runs like a whole one, with the same mesh and clients. A part counts as failing only if it breaks an
invariant that the whole script broke. So the search does not move to another bug.
"""

from collections.abc import Callable, Sequence

from tests.simulation.run import InstallBug, Report, simulate

RUNS_MAX = 120
"""Simulations that one seed may cost; what is left then is shown, however long it is."""


def minimal(numbers: Sequence[int], fails: Callable[[Sequence[int]], bool], runs_max: int = RUNS_MAX) -> list[int]:
    """A part of `numbers` that still fails and of which, within `runs_max` tries, nothing can be left out.

    `numbers` itself is known to fail. Classic ddmin: try to do without ever smaller slices.
    """
    left = list(numbers)
    slices = 2
    runs = 0
    while left and runs < runs_max:
        size = max(1, len(left) // slices)
        for begin in range(0, len(left), size):
            rest = left[:begin] + left[begin + size :]
            runs += 1
            if fails(rest):
                left = rest
                slices = max(slices - 1, 2)
                break
            if runs == runs_max:
                break
        else:
            if size == 1:
                break
            slices = min(slices * 2, len(left))
    return left


def shrink(report: Report, bug: InstallBug) -> Report:
    """The same failure with as few faults as can be found."""
    signs = _signs(report)

    def fails(kept: Sequence[int]) -> bool:
        return bool(signs & _signs(simulate(report.seed, bug, report.plan.family, kept, report.plan.size)))

    kept = minimal(report.plan.kept, fails)
    return simulate(report.seed, bug, report.plan.family, kept, report.plan.size)


def _signs(report: Report) -> set[str]:
    """Which invariants are broken: the first words of what is wrong."""
    return {wrong.split(":")[0].split(" after ")[0] for wrong in report.wrongs}
