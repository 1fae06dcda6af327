"""Bugs to put into the product, for the test of the tester. Each is what a plausible mistake would look like.

They replace methods for the time of one run and live here only: the product has no switches for them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import trio

from qmq.broker.outcome import Outcome
from qmq.dots import Origin, Vector
from qmq.errors import MeshError
from qmq.journal import encode_group
from qmq.replication.acceptance import NOT_HERE, Acceptance
from qmq.replication.feed import Feed, Read
from qmq.replication.serving import Serving
from qmq.server.commits import RECEIPT_BYTES, Commits
from qmq.storage.batch import BatchHead, read_head
from qmq.storage.journal import Journal
from qmq.storage.store import Store


@contextmanager
def sequences_used_again() -> Iterator[None]:
    """A node keeps one incarnation for all its lives: what its disk lost, it numbers again."""
    begin_anew = Store.begin_incarnation

    def begin_incarnation(store: Store, incarnation: int, timestamp_us: int) -> Origin:
        node = store.recovered.identity.node
        origin = Origin(node, 1)
        if origin in store.journal.vector():
            return origin
        return begin_anew(store, 1, timestamp_us)

    with patch.object(Store, "begin_incarnation", begin_incarnation):
        yield


@contextmanager
def shipped_before_fsync() -> Iterator[None]:
    """Subscribers and links are told what is written and not yet synced. Receipts still wait for the sync."""
    append_synced = Journal.append

    def append(journal: Journal, *arguments: object, **settings: object) -> int:
        journal._settings = replace(journal._settings, sync="never")
        return append_synced(journal, *arguments, **settings)

    async def commit(commits: Commits, group: list[Outcome]) -> None:
        batches = encode_group(commits._broker.origin, group)
        begin = commits.told_end
        if batches:
            commits.told_end = commits._journal.append(batches, settle_only=True)
        answers: list[Outcome] = []
        for out in group:
            answer = Outcome(out.session)
            answer.receipts, out.receipts = out.receipts, []
            answer.frames, out.frames = out.frames, []
            answer.ending, out.ending = out.ending, False
            answers.append(answer)
            commits.pending_bytes -= out.record_bytes + RECEIPT_BYTES
        commits._tell_after(group, begin)
        commits._flush()
        commits._progress.set()
        commits._progress = trio.Event()
        with trio.CancelScope(shield=True):
            await commits._world.run_blocking(commits._journal.sync)
        for out in group:
            left = commits._waiting_sessions[out.session] - 1
            if left:
                commits._waiting_sessions[out.session] = left
            else:
                del commits._waiting_sessions[out.session]
        commits._tell_after(answers, commits.told_end)
        commits._flush()
        commits._told += len(group)
        commits._progress.set()
        commits._progress = trio.Event()

    with patch.object(Journal, "append", append), patch.object(Commits, "_commit", commit):
        yield


@contextmanager
def highest_taken_for_all() -> Iterator[None]:
    """A vector means "the highest that I saw": feeds jump over what they skipped, and holes are taken in silence."""
    judge, acknowledged = Acceptance._is_new, Feed.acknowledged

    def is_new(acceptance: Acceptance, head: BatchHead, have: Vector) -> bool:
        try:
            return judge(acceptance, head, have)
        except MeshError as error:
            if error.code == NOT_HERE:
                return True
            raise

    def hear(feed: Feed, ack: object) -> None:
        began = feed.began
        acknowledged(feed, ack)  # type: ignore[arg-type]  # handed on as it came
        if began:
            feed.seek_again = False

    def select(feed: Feed, read: Read, durable_end: int, base: Vector) -> tuple[list[object], int | None]:
        frames: list[object] = []
        chosen: list[bytes] = []
        position = None
        for begin, head, data in read:
            if begin + head.size > durable_end:
                break
            position = begin + head.size
            if head.last > feed.peer.get(head.origin, 0) and head.origin not in feed._direct:
                chosen.append(data)
                feed.peer[head.origin] = head.last
        feed._close(frames, chosen)  # type: ignore[arg-type]  # a list of frames
        return frames, position

    def heads(journal: Journal, batches: list[bytes]) -> list[BatchHead]:
        found = map(read_head, batches)
        return [head for head in found if head is not None]

    journal = partial(patch.object, Journal)
    feed = partial(patch.object, Feed)
    with journal("_check", heads), feed("select", select), feed("acknowledged", hear):
        with patch.object(Acceptance, "_is_new", is_new):
            yield


@contextmanager
def receipted_before_recorded() -> Iterator[None]:
    """A publisher gets its receipt at the decision."""
    submit = Commits.submit

    def submit_early(commits: Commits, out: Outcome) -> None:
        if out.receipts:
            answer = Outcome(out.session)
            answer.receipts, out.receipts = out.receipts, []
            commits._tell_after([answer], commits.told_end)
        submit(commits, out)

    with patch.object(Commits, "submit", submit_early):
        yield


@contextmanager
def lent_and_forgotten() -> Iterator[None]:
    """What a borrower lost with its link is never taken back by its owner."""

    def take_back(serving: Serving, have: Vector, out: Outcome, *, late: bool = False) -> int:
        return 0

    with patch.object(Serving, "take_back", take_back):
        yield


ALL = (
    sequences_used_again,
    shipped_before_fsync,
    highest_taken_for_all,
    receipted_before_recorded,
    lent_and_forgotten,
)
