"""What one node wants, as versioned state: differences, wholes, repeats, and the bounds."""

import random

import pytest

from qmq.replication.interest import interest
from qmq.replication.interest.interest import NEVER, InterestState


def test_a_difference_brings_any_version_from_its_first_on_to_the_last_one() -> None:
    rng = random.Random(7)
    source = InterestState()
    followers: list[InterestState] = [InterestState()]
    for version in range(1, 200):
        changes = {f"/topic/{rng.randrange(12)}": rng.random() < 0.5 for _ in range(rng.randrange(4))}
        source.advance(version, changes)
        base = rng.randrange(version)
        difference = source.since(base)
        assert difference is not None
        for follower in followers:
            if base <= follower.version < version and rng.random() < 0.4:
                follower.advance(version, difference)

                assert follower.patterns.keys() == source.patterns.keys()
        if len(followers) < 8:
            followers.append(InterestState())


def test_a_follower_passes_on_what_is_no_news_to_itself() -> None:
    """Somebody else may stand between the two versions."""
    between = InterestState()
    between.advance(1, {"/topic/a": True})
    source = InterestState()
    source.advance(1, {"/topic/a": True})
    source.advance(2, {"/topic/a": False})
    relay = InterestState()
    difference = source.since(0)
    assert difference is not None
    relay.advance(2, difference)

    late = relay.since(1)

    assert late is not None
    between.advance(2, late)
    assert not between.patterns


def test_a_full_update_has_no_trace_of_the_changes_before() -> None:
    follower = InterestState(NEVER)

    changed = follower.replace(7, ["/topic/a", "/topic/b"])

    assert changed == {"/topic/a": True, "/topic/b": True}
    assert follower.since(6) is None
    assert follower.since(7) == {}
    assert follower.replace(9, ["/topic/b", "/topic/c"]) == {"/topic/a": False, "/topic/c": True}


def test_a_peer_that_missed_more_changes_than_are_remembered_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest, "CHANGES_MAX", 10)
    source = InterestState()
    for version in range(1, 21):
        source.advance(version, {f"/topic/{version}": True})

    assert source.since(9) is None
    assert source.since(10) == {f"/topic/{version}": True for version in range(11, 21)}


def test_patterns_beyond_the_bound_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest, "PATTERNS_MAX", 3)
    source = InterestState()

    changed = source.advance(1, {f"/topic/{number}": True for number in range(5)})

    assert list(changed) == list(source.patterns) == ["/topic/0", "/topic/1", "/topic/2"]
    assert source.left_out == 2
