"""What a peer is sent: nothing twice, nothing out of order, never more than the window."""

from hypothesis import given
from hypothesis import strategies as st

from qmq.dots import Origin, Vector
from qmq.replication.feed import WINDOW_BATCHES, WINDOW_BYTES, Feed
from qmq.replication.frames import Ack, Batches, Gap, Hole

from .rig import ListJournal, batch_of

A, B, C = Origin("a", 1), Origin("b", 1), Origin("c", 1)


def feed_of(vector: Vector | None = None, direct: tuple[Origin, ...] = ()) -> Feed:
    feed = Feed()
    feed.acknowledged(Ack(0, {} if vector is None else vector, {}, direct))
    feed.seek_again = False
    return feed


def journal_of(*batches: bytes) -> ListJournal:
    journal = ListJournal()
    for batch in batches:
        journal.append(batch)
    return journal


def select(feed: Feed, journal: ListJournal, position: int = 0) -> list[Gap | Hole | Batches]:
    return feed.select(journal.read(position, 1 << 30), journal.end, journal.base)[0]


def test_nothing_begins_before_the_first_ack() -> None:
    feed = Feed()
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
    big = [batch_of(A, number, number, body=b"x" * (WINDOW_BYTES // 2)) for number in (1, 2, 3)]
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


def test_the_window_counts_batches_too() -> None:
    feed = feed_of()
    journal = journal_of(*[batch_of(A, number, number) for number in range(1, WINDOW_BATCHES + 1)])

    select(feed, journal)

    assert not feed.has_room


def test_an_ack_of_frames_never_sent_does_no_harm() -> None:
    feed = feed_of()
    feed.acknowledged(Ack(1 << 40, {}, {}, None))

    assert feed.has_room


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


def test_a_gap_of_retention_is_told_before_what_comes_after_it() -> None:
    journal = journal_of(batch_of(A, 1, 3), batch_of(C, 1, 1), batch_of(A, 4, 4))
    journal.drop_before(1)
    feed = feed_of()

    assert select(feed, journal) == [
        Batches(1, batch_of(C, 1, 1)),
        Gap([(A, 3)]),
        Batches(2, batch_of(A, 4, 4)),
    ]


def test_what_retention_drops_during_a_walk_is_told_even_if_nothing_of_its_origin_follows() -> None:
    """Records of a life that ended: no later batch would ever show the peer that it lacks them."""
    journal = journal_of(batch_of(A, 1, 1), batch_of(C, 1, 2), batch_of(A, 2, 2))
    feed = feed_of()
    first = journal.read(0, 1)
    frames, position = feed.select(first, journal.end, {})
    assert position is not None and len(frames) == 1

    after = feed.select(journal.read(journal.end - 1, 1), journal.end, {A: 1, C: 2})[0]

    assert after[-1] == Gap([(C, 2)])
    assert feed.peer[C] == 2


def test_a_walk_begins_by_telling_what_the_journal_no_longer_has() -> None:
    feed = feed_of({A: 2}, direct=(C,))

    assert feed.start_again({A: 5, B: 1, C: 9}) == Gap([(A, 5), (B, 1)])
    assert feed.start_again({A: 5, B: 1, C: 9}) is None


def test_a_hole_that_damage_made_is_told_once_and_left_to_others() -> None:
    damaged = journal_of(batch_of(A, 1, 1), batch_of(A, 2, 2), batch_of(A, 3, 3))
    del damaged.batches[1]
    feed = feed_of()

    assert select(feed, damaged) == [Batches(1, batch_of(A, 1, 1)), Hole((A,))]
    assert select(feed, damaged) == []
    feed.acknowledged(Ack(1, {A: 2}, {}, None))
    assert select(feed, damaged) == [Batches(2, batch_of(A, 3, 3))]


def test_lag_counts_what_the_peer_has_not_told_to_have() -> None:
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
