"""Whatever happens to the disk of a node, at whichever call: what was receipted is there, once."""

import pytest

from tests.simulation.disk.disk_troubles import Trouble, meet
from tests.simulation.plants import SEEDED_BUGS

PARTS = 4

STEPS = {Trouble.POWER: 1, Trouble.FAILURE: 3, Trouble.FULL: 3, Trouble.TAKEN: 3}
"""Each call, or each third, on every commit; `python -m tests.simulation.disk.disk_troubles` tries them all."""

SEEDS = {Trouble.POWER: (1, 3), Trouble.FAILURE: (0,), Trouble.FULL: (0,), Trouble.TAKEN: (0,)}
"""What is left of a write when the power goes is drawn: of two records in two batches one draw in fifty leaves one."""

PLANTED = [
    "sent before fsync",
    "receipt before append",
    "never synced",
    "settles forgotten by recovery",
    "dead letter without settle",
]

pytestmark = pytest.mark.simulation


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("trouble", Trouble)
def test_trouble_at_any_call_of_the_disk_loses_and_doubles_nothing(trouble: Trouble, part: int) -> None:
    for seed in SEEDS[trouble]:
        undisturbed = meet(trouble, None, seed)
        assert undisturbed.calls > 100, "a load that hardly uses its disk proves nothing"
        assert not undisturbed.wrongs
        step = STEPS[trouble]

        points = range(part * step, undisturbed.calls, PARTS * step)
        found = {point: meet(trouble, point, seed).wrongs for point in points}

        assert not {point: wrongs for point, wrongs in found.items() if wrongs}


@pytest.mark.parametrize("name", PLANTED)
def test_a_seeded_bug_of_the_disk_is_found(name: str) -> None:
    with SEEDED_BUGS[name].install():
        is_found = any(meet(Trouble.POWER, point).wrongs for point in (None, *range(70)))

    assert is_found
