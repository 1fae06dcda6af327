"""What a peer is sent: nothing twice, nothing out of order, never more than the window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.errors import MeshError
from qmq.model.dots import Origin, Vector
from qmq.replication.anti_entropy.feed import ORIGINS_MAX, WINDOW_BATCHES, JournalFeed
from qmq.replication.protocol.congestion import FIRST_BYTES, LEAST_BYTES, PARTS, WINDOW_BYTES
from qmq.replication.protocol.frames import Ack, Batches, Gap, Hole
from qmq.storage.repair.range_snapshot import RangeSnapshot, snapshot_batch

from ..rig import ListJournal, batch_of

A, B, C = Origin("a", 1), Origin("b", 1), Origin("c", 1)


def feed_of(vector: Vector | None = None, direct: tuple[Origin, ...] = ()) -> JournalFeed:
    feed = JournalFeed()
    feed.acknowledged(Ack(0, {} if vector is None else vector, {}, direct))
    feed.seek_again = False
    return feed


def journal_of(*batches: bytes) -> ListJournal:
    journal = ListJournal()
    for batch in batches:
        journal.append(batch)
    return journal


def select(feed: JournalFeed, journal: ListJournal, position: int = 0) -> list[Gap | Hole | Batches]:
    return feed.select(journal.read(position, 1 << 30), journal.end, journal.base)[0]


def test_nothing_begins_before_the_first_ack() -> None:
    feed = JournalFeed()
    assert not feed.began

    feed.acknowledged(Ack(0, {A: 1}, {}, ()))

    assert feed.began and feed.seek_again


def test_only_what_the_peer_lacks_is_sent_in_log_order() -> None:
    one, two, other = batch_of(A, 1, 2), batch_of(A, 3, 3), batch_of(C, 1, 1)
    journal = journal_of(one, other, two)

    assert select(feed_of({A: 2}), journal) == [Batches(1, other + two)]
    assert select(feed_of({A: 3, C: 1}), journal) == []


def test_what_is_not_durable_is_not_sent() -> None:
    one, two = batch_of(A, 1, 1), batch_of(A, 2, 2)
    journal = journal_of(one, two)
    feed = feed_of()

    frames, position = feed.select(journal.read(0, 1 << 30), len(one), {})
    assert (frames, position) == ([Batches(1, one)], len(one))

    assert feed.select(journal.read(len(one), 1 << 30), len(one), {}) == ([], None)


def test_what_was_sent_is_not_sent_again() -> None:
    journal = journal_of(batch_of(A, 1, 1))
    feed = feed_of()

    assert len(select(feed, journal)) == 1
    assert select(feed, journal) == []


def test_the_window_fills_and_empties_by_acknowledged_frames() -> None:
    feed = feed_of()
    big = [batch_of(A, number, number, body=b"x" * (FIRST_BYTES // 2)) for number in (1, 2, 3)]
    position = 0
    journal = journal_of(*big)

    frames, after = feed.select(journal.read(position, 1), journal.end, {})
    assert feed.has_room
    assert after is not None
    feed.select(journal.read(after, 1), journal.end, {})
    assert not feed.has_room

    feed.acknowledged(Ack(1, {}, {}, None))
    assert feed.has_room
    assert len(frames) == 1


def test_the_window_grows_while_acknowledgements_are_quick_and_shrinks_while_they_are_late() -> None:
    feed = feed_of()
    journal = journal_of(*[batch_of(A, number, number, body=b"x" * 10_000) for number in range(1, 200)])
    windows: list[int] = []
    position = 0
    for number in range(1, 40):
        feed.now += 5.0
        _, after = feed.select(journal.read(position, 1), journal.end, {})
        assert after is not None
        position = after
        feed.now += 0.1 if number <= 5 else 2.0
        feed.acknowledged(Ack(number, {}, {}, None))
        windows.append(feed.pace.window)

    assert windows[:5] == [2 * FIRST_BYTES, 4 * FIRST_BYTES, WINDOW_BYTES, WINDOW_BYTES, WINDOW_BYTES]
    assert windows[-1] == LEAST_BYTES
    assert all(later <= earlier for earlier, later in zip(windows[4:], windows[5:], strict=False))


def test_what_is_read_goes_out_in_frames_of_a_part_of_the_window_and_no_batch_is_split() -> None:
    bodies = [100] * 400 + [FIRST_BYTES] + [100] * 3
    batches = [batch_of(A, number, number, body=b"x" * size) for number, size in enumerate(bodies, 1)]
    journal = journal_of(*batches)

    frames = select(feed_of(), journal)

    assert b"".join(frame.body for frame in frames if isinstance(frame, Batches)) == b"".join(batches)
    sizes = [len(frame.body) for frame in frames if isinstance(frame, Batches)]
    assert len(sizes) > 3
    assert sorted(sizes)[-2] <= FIRST_BYTES // PARTS


def test_the_window_counts_batches_too() -> None:
    feed = feed_of()
    journal = journal_of(*[batch_of(A, number, number) for number in range(1, WINDOW_BATCHES + 1)])

    select(feed, journal)

    assert not feed.has_room


def test_an_ack_of_frames_never_sent_does_no_harm() -> None:
    feed = feed_of()
    feed.acknowledged(Ack(1 << 40, {}, {}, None))

    assert feed.has_room


def test_a_peer_that_names_too_many_origins_is_refused() -> None:
    feed = feed_of()
    many = {Origin("d", number): 1 for number in range(ORIGINS_MAX - len(feed.durable) - 1)}
    feed.acknowledged(Ack(0, {}, many, None))
    feed.acknowledged(Ack(0, {A: 2, B: 1}, {B: 1}, None))

    with pytest.raises(MeshError, match=f"more than {ORIGINS_MAX} origins"):
        feed.acknowledged(Ack(0, {}, {Origin("a", 2): 1}, None))


def test_what_the_peer_follows_at_its_own_node_is_not_relayed_until_that_link_ends() -> None:
    mine, relayed = batch_of(A, 1, 1), batch_of(C, 1, 1)
    journal = journal_of(relayed, mine)
    feed = feed_of(direct=(C,))

    assert select(feed, journal) == [Batches(1, mine)]
    feed.acknowledged(Ack(1, {}, {}, (C, B)))
    assert not feed.seek_again
    feed.acknowledged(Ack(1, {}, {}, (B,)))
    assert feed.seek_again

    assert select(feed, journal, journal.seek(feed.peer)) == [Batches(2, relayed)]


def test_records_that_the_peer_got_elsewhere_are_passed_over() -> None:
    journal = journal_of(batch_of(C, 1, 1), batch_of(C, 2, 2))
    feed = feed_of()
    feed.acknowledged(Ack(0, {C: 1}, {}, None))

    assert select(feed, journal) == [Batches(1, batch_of(C, 2, 2))]


def test_a_gap_of_retention_is_sent_before_what_comes_after_it() -> None:
    journal = journal_of(batch_of(A, 1, 3), batch_of(C, 1, 1), batch_of(A, 4, 4))
    journal.drop_before(1)
    feed = feed_of()

    assert select(feed, journal) == [
        Batches(1, batch_of(C, 1, 1)),
        Gap([(A, 3)]),
    ]


def test_what_retention_drops_during_a_walk_is_reported_even_if_nothing_of_its_origin_follows() -> None:
    """Records of a life that ended: no later batch would ever show the peer that it lacks them."""
    journal = journal_of(batch_of(A, 1, 1), batch_of(C, 1, 2), batch_of(A, 2, 2))
    feed = feed_of()
    first = journal.read(0, 1)
    frames, position = feed.select(first, journal.end, {})
    assert position is not None and len(frames) == 1

    after = feed.select(journal.read(journal.end - 1, 1), journal.end, {A: 1, C: 2})[0]

    assert after[-1] == Gap([(C, 2)])


def test_a_walk_begins_with_what_the_journal_no_longer_has() -> None:
    feed = feed_of({A: 2}, direct=(C,))

    assert feed.start_again({A: 5, B: 1, C: 9}) == Gap([(A, 5), (B, 1)])
    assert feed.start_again({A: 5, B: 1, C: 9}) is None


def test_a_hole_that_damage_made_is_reported_once_and_left_to_others() -> None:
    damaged = journal_of(batch_of(A, 1, 1), batch_of(A, 2, 2), batch_of(A, 3, 3))
    del damaged.batches[1]
    feed = feed_of()

    assert select(feed, damaged) == [Batches(1, batch_of(A, 1, 1)), Hole((A,))]
    assert select(feed, damaged) == []
    feed.acknowledged(Ack(1, {A: 2}, {}, None))
    assert select(feed, damaged) == [Batches(2, batch_of(A, 3, 3))]


def test_a_hole_with_nothing_behind_it_is_reported_once_at_the_end_of_the_walk() -> None:
    """Records of a life that ended: no later batch would ever show the peer that it lacks them."""
    feed = feed_of({B: 1}, direct=(C,))
    select(feed, journal_of(batch_of(A, 1, 1)))
    had = {A: 2, B: 1, C: 9}

    assert feed.ended(had, {}) == [Hole((A,))]
    assert feed.ended(had, {}) == []
    feed.acknowledged(Ack(1, {A: 2}, {}, None))
    assert feed.ended(had, {}) == []


def test_the_end_of_the_walk_reports_what_this_node_gave_up_itself_as_a_gap() -> None:
    feed = feed_of({B: 1})

    assert feed.ended({A: 2, B: 3}, {A: 2, B: 2}) == [Gap([(A, 2)]), Hole((B,))]
    assert feed.ended({A: 2, B: 3}, {A: 2, B: 2}) == []


def test_the_end_of_the_walk_says_nothing_of_an_origin_of_which_something_is_awaited() -> None:
    feed = feed_of()
    feed.start_again({A: 3})

    assert feed.ended({A: 5}, {}) == []
    feed.acknowledged(Ack(1, {A: 3}, {}, None))
    assert feed.seek_again
    assert feed.ended({A: 5}, {}) == [Hole((A,))]


def test_lag_counts_what_the_peer_has_not_reported() -> None:
    journal = journal_of(batch_of(A, 1, 4))
    feed = feed_of({C: 2})
    select(feed, journal)

    assert feed.lag({A: 4, C: 2}) == {A: 4}
    feed.acknowledged(Ack(1, {A: 4}, {}, None))
    assert feed.lag({A: 4, C: 2}) == {}


@given(
    owners=st.lists(st.sampled_from([A, B, C]), max_size=30),
    known=st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 12)),
    reads=st.lists(st.integers(1, 2000), min_size=1, max_size=40),
)
def test_any_reading_sends_exactly_what_the_peer_lacks_in_order(
    owners: list[Origin], known: Vector, reads: list[int]
) -> None:
    journal = ListJournal()
    for origin in owners:
        journal.append(batch_of(origin, journal.vector.get(origin, 0) + 1, journal.vector.get(origin, 0) + 1))
    known = {origin: min(last, journal.vector.get(origin, 0)) for origin, last in known.items()}
    feed = feed_of(known)
    position = journal.seek(feed.peer)
    sent = b""

    for size in [*reads, 1 << 30]:
        frames, after = feed.select(journal.read(position, size), journal.end, {})
        position = journal.end if after is None else after
        for frame in frames:
            assert isinstance(frame, Batches)
            sent += frame.body

    lacking = [data for _, head, data in journal.batches if head.last > known.get(head.origin, 0)]
    assert sent == b"".join(lacking)


def test_after_a_gap_nothing_of_that_origin_is_sent_until_the_peer_is_past_it() -> None:
    journal = journal_of(batch_of(A, 1, 1), batch_of(A, 2, 2), batch_of(C, 1, 1))
    journal.drop_before(1)
    feed = feed_of()

    assert feed.start_again(journal.base) == Gap([(A, 1)])
    assert select(feed, journal) == [Batches(1, batch_of(C, 1, 1))]
    assert feed.start_again(journal.base) is None
    feed.acknowledged(Ack(1, {A: 1}, {}, None))

    assert feed.seek_again
    assert select(feed, journal, journal.seek(feed.peer)) == [Batches(2, batch_of(A, 2, 2))]


def test_what_stands_for_a_range_is_never_passed_on_and_counts_as_dropped() -> None:
    rest = snapshot_batch(A, 0, RangeSnapshot(3, 0, 0, []))
    journal = journal_of(rest, batch_of(A, 4, 4))

    assert select(feed_of(), journal) == [Gap([(A, 3)])]


def test_a_peer_in_the_middle_of_a_batch_gets_a_gap_up_to_its_end() -> None:
    journal = journal_of(batch_of(A, 1, 4), batch_of(A, 5, 5))

    assert select(feed_of({A: 2}), journal) == [Gap([(A, 4)])]


def test_what_comes_after_a_hole_is_sent_once_the_peer_is_past_it() -> None:
    journal = journal_of(batch_of(A, 1, 1), batch_of(A, 2, 2), batch_of(A, 3, 3))
    del journal.batches[1]
    feed = feed_of()

    assert select(feed, journal) == [Batches(1, batch_of(A, 1, 1)), Hole((A,))]
    feed.acknowledged(Ack(1, {A: 1}, {}, None))
    assert not feed.seek_again
    feed.acknowledged(Ack(1, {A: 2}, {}, None))

    assert feed.seek_again
    assert select(feed, journal) == [Batches(2, batch_of(A, 3, 3))]
