"""The one rule of replication, and every batch that must not be taken."""

import random
import zlib
from math import inf

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.build import BUILD
from qmq.errors import MeshError
from qmq.model.dots import Dot, Origin, Vector
from qmq.record_codec import Replay
from qmq.replication.anti_entropy.acceptance import CHECKED, ELEMENTS_MAX, FACTS, NOT_HERE, Acceptance
from qmq.storage.format.batch import GAPS, MEMORY, SHARED_VERSION, SPARSE, encode_batch
from qmq.storage.format.failure_records import pack_attempts, pack_dead
from qmq.storage.format.record import RecordKind, pack_envelope, pack_gap, pack_record, pack_reference
from qmq.storage.format.term_record import pack_term
from qmq.storage.repair.range_snapshot import RangeSnapshot

from ..rig import batch_of

A, B, C = Origin("a", 1), Origin("b", 1), Origin("c", 1)
ABC = frozenset("abc")

UNKNOWN_KIND = 77

CURSOR = {"client": "c", "name": "n", "created": 5}


def acceptance(own: Origin = B) -> Acceptance:
    return Acceptance(own, ABC, Replay(Broker(own, 1)))


def refusal(body: bytes, have: Vector | None = None) -> MeshError:
    """Why `body` is refused; checks that nothing was taken."""
    known: Vector = {} if have is None else have
    before = dict(known)
    out = Outcome()
    with pytest.raises(MeshError) as refused:
        acceptance().take(body, known, out)
    assert known == before
    assert not out.batches and not out.fanout_runs
    return refused.value


def raw_batch(record: object, *, attributes: int = 0) -> bytes:
    return encode_batch(A, [msgpack.packb(record)], 1, 1, 1, 1, attributes)


def test_what_continues_is_taken_and_handed_on_byte_for_byte() -> None:
    have: Vector = {}
    out = Outcome()
    first, second = batch_of(A, 1, 2), batch_of(A, 3, 3)

    grown = acceptance().take(first + second, have, out)

    assert grown == have == {A: 3}
    assert out.batches == [(A, 2, first), (A, 3, second)]
    assert [len(run.messages) for run in out.fanout_runs] == [3]


def test_a_repeat_is_dropped_silently() -> None:
    have = {A: 3}
    out = Outcome()

    assert acceptance().take(batch_of(A, 1, 2) + batch_of(A, 3, 3), have, out) == {}
    assert (have, out.batches) == ({A: 3}, [])


def test_a_gap_is_refused_without_a_condition() -> None:
    assert refusal(batch_of(A, 2, 2)).code == NOT_HERE
    assert refusal(batch_of(A, 5, 6), {A: 3}).code == NOT_HERE


def test_an_overlap_makes_the_link_begin_again() -> None:
    assert refusal(batch_of(A, 2, 4), {A: 3}).code == NOT_HERE


def test_what_came_before_a_bad_batch_stays_taken() -> None:
    have: Vector = {}
    out = Outcome()

    with pytest.raises(MeshError):
        acceptance().take(batch_of(A, 1, 1) + batch_of(C, 7, 7), have, out)

    assert (have, len(out.batches)) == ({A: 1}, 1)


def test_forged_and_unknown_origins_are_refused() -> None:
    assert refusal(batch_of(B, 1, 1)).code == "forged-origin"
    assert refusal(batch_of(B, 4, 4), {B: 3}).code == "forged-origin"
    assert refusal(batch_of(Origin("z", 1), 1, 1)).code == "unknown-origin"


def test_own_records_of_an_earlier_life_are_taken_back() -> None:
    have: Vector = {}

    assert acceptance().take(batch_of(Origin("b", 99), 1, 1), have, Outcome())


def gap_batch(noted_by: Origin, body: bytes) -> bytes:
    return encode_batch(
        noted_by, [pack_record(1, 1, RecordKind.GAP, 0, pack_envelope("", b""), body)], 1, 1, 1, 1, GAPS
    )


def test_what_an_earlier_life_gave_up_counts_again_when_its_records_come_back() -> None:
    """The journal counts it too: a record below it could not be appended any more, and the node would stop."""
    earlier = Origin("b", 99)
    have: Vector = {A: 2}
    out = Outcome()

    acceptance().take(gap_batch(earlier, pack_gap(A, 7)) + batch_of(A, 3, 4) + batch_of(A, 8, 8), have, out)

    assert have == {earlier: 1, A: 8}
    assert [(origin, last) for origin, last, _ in out.batches] == [(earlier, 1), (A, 8)]


def test_what_another_node_gave_up_is_not_given_up_here() -> None:
    have: Vector = {}

    acceptance().take(gap_batch(C, pack_gap(A, 7)), have, Outcome())

    assert have == {C: 1}


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", msgpack.packb(5), msgpack.packb(["a", 1, -3]), msgpack.packb([1, 1, 1])]
)
def test_a_gap_of_an_earlier_life_that_means_nothing_is_refused(body: bytes) -> None:
    assert refusal(gap_batch(Origin("b", 99), body)).code == "bad-batch"


def test_an_earlier_life_cannot_have_given_up_records_of_the_present_one() -> None:
    assert refusal(gap_batch(Origin("b", 99), pack_gap(B, 5))).code == "forged-origin"


def test_every_flipped_bit_is_noticed() -> None:
    good = batch_of(A, 1, 2)

    for at in range(len(good)):
        for bit in (1, 128):
            bad = bytearray(good)
            bad[at] ^= bit
            assert refusal(bytes(bad)).code in (
                "bad-batch",
                "unknown-origin",
                "forged-origin",
                "future-format",
                NOT_HERE,
            )


def test_a_batch_that_is_cut_short_is_refused_at_every_byte() -> None:
    good = batch_of(A, 1, 1)

    for size in range(1, len(good)):
        assert refusal(good[:size]).code == "bad-batch"
    assert refusal(b"\0" * 200).code == "bad-batch"


def test_a_batch_of_a_later_version_says_so() -> None:
    later = bytearray(batch_of(A, 1, 1))
    later[8:10] = (99).to_bytes(2, "big")
    later[4:8] = zlib.crc32(later[8:]).to_bytes(4, "big")

    assert refusal(bytes(later)).code == "future-format"


def test_batches_that_no_journal_holds_are_refused() -> None:
    envelope = pack_envelope("/fanout/x", b"")
    records = [pack_record(sequence, 1, RecordKind.PUBLISH, 0, envelope, b"") for sequence in (1, 5)]

    assert refusal(encode_batch(A, records, 1, 5, 1, 1, SPARSE)).code == "bad-batch"
    assert refusal(encode_batch(A, records[:1], 1, 1, 1, 1, MEMORY)).code == "bad-batch"


@pytest.mark.parametrize(
    "record",
    [
        [1, 1, RecordKind.PUBLISH << 56, 5, b"", b""],
        [1, 1, RecordKind.PUBLISH << 56, "/fanout/x", "text", b""],
        [1, 1, RecordKind.PUBLISH << 56, "/fanout/x", b"", None],
        [1, 1, RecordKind.SETTLE << 56, "/queue/x", b"", b"\xc1"],
        [1, 1, RecordKind.SETTLE << 56, "/queue/x", b"", msgpack.packb([["a", 1, ["x"]]])],
        [1, 1, RecordKind.SETTLE << 56, "/queue/x", b"", msgpack.packb(5)],
        [1, 1, RecordKind.DEAD << 56, "/queue/x", b"", b"\xc1"],
        [1, 1, RecordKind.DEAD << 56, "/queue/x", b"", pack_dead("/topic/x", Dot(A, 1), b"")],
        [1, 1, RecordKind.DEAD << 56, "/fanout/x", b"", pack_dead("/queue/x", Dot(A, 1), b"")],
        [1, 1, RecordKind.DEAD << 56, "/queue/x", b"", pack_dead("/queue/x", Dot(Origin("No Name", 1), 1), b"")],
        [1, 1, RecordKind.ATTEMPTS << 56, "/queue/x", b"", msgpack.packb([["a", 1, [1]]])],
        [1, 1, RecordKind.ATTEMPTS << 56, "/queue/x", b"", pack_attempts([(Dot(Origin("No Name", 1), 1), 1)])],
        *[[1, 1, RecordKind.CURSOR << 56, "/fanout/x", b"", body] for body in (b"", b"\xc1", msgpack.packb(5))],
        *[
            [1, 1, RecordKind.CURSOR << 56, "/fanout/x", b"", msgpack.packb({**CURSOR, **wrong})]
            for wrong in (
                {"client": 5},
                {"created": "x"},
                {"created": 1 << 63},
                {"deleted": -1},
                {"credit": "x"},
                {"start": [["No Name", 1, 1]]},
                {"told": [["a", 1, "x"]]},
                {"done": [["a", 1, ["x", "y"]]]},
                {"done": [["a", 1, [5, 4]]]},
                {"done": [["", 1, [4, 5]]]},
                {"holder": [1, "a", -1]},
                {"holder": [inf, "a", 1]},
                {"owner": [inf, "ann"]},
                {"owner": [-1, "ann"]},
                {"owner": [1]},
            )
        ],
        [1, 1, RecordKind.CURSOR << 56, 5, b"", msgpack.packb(CURSOR)],
        *[
            [1, 1, RecordKind.SEAL << 56, "", b"", msgpack.packb([seal])]
            for seal in (
                ["", 1, 1, False, ""],
                ["a", -1, 1, False, ""],
                ["a", 1, -1, False, ""],
                ["a", inf, 1, False, ""],
            )
        ],
        *[
            [1, 1, RecordKind.GONE << 56, "", b"", msgpack.packb(stretch)]
            for stretch in (["", 1, 1, 1], ["a", -1, 1, 1], ["a", 1, 1, -1], ["a", 1, 1, inf], ["a", 1], 5)
        ],
        *[
            [1, 1, kind << 56, "", b"", pack_term(owner, term, server)]
            for kind in (RecordKind.TERM, RecordKind.VOTE)
            for owner, term, server in (("", 1, "b"), ("a", -1, "b"), ("a", 1 << 63, "b"), ("a", 1, "No Name"))
        ],
        [1, 1, RecordKind.TERM << 56, "", b"", msgpack.packb(["a", inf, "b"])],
        *[[1, time, RecordKind.PUBLISH << 56, "/fanout/x", b"", b""] for time in (None, "1", 1.5, -1, 1 << 63)],
        *[
            [1, 1, kind << 56, *fields]
            for kind in (RecordKind.START, UNKNOWN_KIND)
            for fields in ((5, b"", b""), ("", None, b""), ("", b"", 5))
        ],
        [1, 1, "x", "/queue/x", b"", b""],
        [1.0, 1, RecordKind.PUBLISH << 56, "/fanout/x", b"", b""],
        [1, 1],
        5,
    ],
)
def test_records_that_mean_nothing_are_refused(record: object) -> None:
    assert refusal(raw_batch(record)).code == "bad-batch"


@pytest.mark.parametrize("kind", [*CHECKED - {RecordKind.PUBLISH, RecordKind.DEAD}, *FACTS])
def test_a_record_of_millions_of_elements_is_refused_while_it_is_unpacked(kind: RecordKind) -> None:
    bomb = b"\xdd" + (2 * ELEMENTS_MAX).to_bytes(4, "big") + b"\x90" * (2 * ELEMENTS_MAX)

    refused = refusal(raw_batch([1, 1, kind << 56, "/queue/x", b"", bomb]))

    assert (refused.code, "max_array_len" in refused.message) == ("bad-batch", True)


@pytest.mark.parametrize("last", [None, "1", 1.5, -1, 1 << 63])
def test_a_snapshot_with_a_record_that_means_nothing_is_refused(last: object) -> None:
    for sequence, time in ((last, 1), (2, last)):
        packed = msgpack.packb([sequence, time, RecordKind.PUBLISH << 56, "/fanout/x", b"", b""])
        have: Vector = {}
        out = Outcome()

        with pytest.raises(MeshError, match="bad-batch"):
            acceptance().take_snapshot(A, 0, RangeSnapshot(3, 0, 0, [packed]), have, out)

        assert not have and not out.batches


@pytest.mark.skipif(BUILD == "compiled", reason="breaks what is compiled")
def test_what_cannot_be_applied_is_not_handed_to_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be read again at every start."""
    monkeypatch.setattr(Replay, "message_of", lambda *_: 1 / 0)
    out = Outcome()

    with pytest.raises(ZeroDivisionError):
        acceptance().take(batch_of(A, 1, 1), {}, out)

    assert not out.batches


def test_records_of_unknown_kinds_are_taken_as_they_are() -> None:
    have: Vector = {}
    out = Outcome()
    batch = batch_of(A, 1, 1, kind=UNKNOWN_KIND)

    acceptance().take(batch, have, out)

    assert out.batches == [(A, 1, batch)]
    assert not out.fanout_runs


def test_a_gap_is_news_only_beyond_what_is_known_and_never_about_ourselves() -> None:
    judge = acceptance()

    assert judge.check_gap(A, 5, {A: 4})
    assert not judge.check_gap(A, 5, {A: 5})
    with pytest.raises(MeshError, match="forged-origin"):
        judge.check_gap(B, 5, {})
    with pytest.raises(MeshError, match="unknown-origin"):
        judge.check_gap(Origin("z", 1), 5, {})


@given(body=st.binary(max_size=400))
def test_any_bytes_are_taken_or_refused_with_one_error(body: bytes) -> None:
    try:
        acceptance().take(body, {}, Outcome())
    except MeshError as error:
        assert error.code in ("bad-batch", "future-format")


@given(seed=st.integers(0, 1 << 32), cuts=st.lists(st.integers(1, 4), min_size=3, max_size=12))
def test_three_nodes_that_copy_from_each_other_in_any_order_end_up_equal(seed: int, cuts: list[int]) -> None:
    """Prefixes, repeats, relays and skips at random: nobody takes a repeat or a gap, and in the end all have all."""
    rng = random.Random(seed)
    origins = (A, B, C)
    journals: dict[Origin, list[tuple[Origin, bytes]]] = {origin: [] for origin in origins}
    have: dict[Origin, Vector] = {origin: {} for origin in origins}
    judges = {origin: acceptance(origin) for origin in origins}

    def copy(source: Origin, target: Origin, begin: int, end: int) -> None:
        body = b"".join(data for origin, data in journals[source][begin:end] if origin != target)
        out = Outcome()
        before = dict(have[target])
        try:
            judges[target].take(body, have[target], out)
        except MeshError as error:
            assert error.code == NOT_HERE
        for origin, last, data in out.batches:
            assert last > before.get(origin, 0)
            journals[target].append((origin, data))

    for size in cuts:
        writer = rng.choice(origins)
        first = have[writer].get(writer, 0) + 1
        have[writer][writer] = first + size - 1
        journals[writer].append((writer, batch_of(writer, first, first + size - 1)))
        for _ in range(rng.randrange(4)):
            source, target = rng.sample(origins, 2)
            begin = rng.randrange(len(journals[source]) + 1)
            copy(source, target, begin, rng.randrange(begin, len(journals[source]) + 1))
    for _ in range(2):
        for source in origins:
            for target in origins:
                if source != target:
                    copy(source, target, 0, len(journals[source]))

    assert have[A] == have[B] == have[C]
    for origin in origins:
        parts = [[data for found, data in journals[node] if found == origin] for node in origins]
        assert parts[0] == parts[1] == parts[2]


def shared_batch(*records: bytes) -> bytes:
    return encode_batch(A, list(records), 1, len(records), 1, 1, 0, SHARED_VERSION)


def test_shared_bodies_are_taken_and_handed_on_byte_for_byte() -> None:
    envelope = pack_envelope("/fanout/x", b"")
    batch = shared_batch(
        pack_record(1, 1, RecordKind.PUBLISH, 0, envelope, b"body" * 20), pack_reference(2, 1, 0, envelope, 1)
    )
    have: Vector = {}
    out = Outcome()

    acceptance().take(batch, have, out)

    assert have == {A: 2}
    assert out.batches == [(A, 2, batch)]
    assert [message.body for run in out.fanout_runs for message in run.messages] == [b"body" * 20] * 2


@pytest.mark.parametrize("back", [b"\xce\0\0\0\2", b"\xce\0\0\0\0", b"\x01", b"\xcd\0\1", b"\xff"])
def test_a_wrong_reference_to_a_body_is_refused(back: bytes) -> None:
    envelope = pack_envelope("/fanout/x", b"")
    message = pack_record(1, 1, RecordKind.PUBLISH, 0, envelope, b"body" * 20)

    assert refusal(shared_batch(message, pack_reference(2, 1, 0, envelope, 1)[:-5] + back)).code == "bad-batch"


def test_a_batch_that_stands_for_more_than_a_batch_may_have_is_refused() -> None:
    envelope = pack_envelope("/fanout/x", b"")
    message = pack_record(1, 1, RecordKind.PUBLISH, 0, envelope, bytes(1 << 20))
    copies = [pack_reference(number, 1, 0, envelope, number - 1) for number in range(2, 50)]

    assert refusal(shared_batch(message, *copies)).code == "bad-batch"
