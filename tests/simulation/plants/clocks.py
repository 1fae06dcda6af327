"""Mistakes with the clock at a start."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from qmq.broker.messages.peer_clocks import PeerClocks
from qmq.mesh.membership.clock_check import ClockCheck
from tests.simulation.plan import Family
from tests.simulation.plants.registry import seeded_bug


@seeded_bug(Family.CLOCKS, "I1", "I13", seed=0)
def clock_trusted_at_start() -> Iterator[None]:
    """A node goes by the wall clock as it stands at its start, whatever its disk has noted."""
    real = ClockCheck.__init__

    def begin(check: ClockCheck, *parts: Any, is_trusted: bool) -> None:
        real(check, *parts, is_trusted=True)

    with patch.object(ClockCheck, "__init__", begin):
        yield


@seeded_bug(
    Family.CLOCKS,
    "I1",
    found_by="tests/mesh/membership/test_clock_check.py"
    "::test_nodes_that_all_start_with_the_same_wrong_clock_do_not_confirm_each_other",
)
def doubtful_clocks_confirm_each_other() -> Iterator[None]:
    """A node whose clock is in doubt sends its peers the time all the same."""

    def shown_time(clocks: PeerClocks, now_us: int) -> int:
        return now_us

    with patch.object(PeerClocks, "shown_time", shown_time):
        yield
