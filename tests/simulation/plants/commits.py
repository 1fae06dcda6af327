"""Mistakes on the path of a message through its own node: decide, record, deliver."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.engine.commit.commits import RECEIPT_BYTES
from qmq.engine.commit.replica_acks import PendingReceipt, ReplicaAcks
from qmq.engine.commit_path import CommitPath
from qmq.model.dots import Origin
from qmq.model.members import Membership
from qmq.record_codec import encode_group
from qmq.sessions.delivery.effect_dispatcher import Dispatcher
from qmq.storage.log.journal import Journal
from qmq.storage.store import Store
from tests.simulation.plan import Family
from tests.simulation.plants.registry import seeded_bug


@seeded_bug(Family.WIPES, "I1", "I3", "I13", seed=0)
def sequences_reused() -> Iterator[None]:
    """A node keeps one incarnation over all its starts: what its disk lost, it numbers again."""
    reset = Store.begin_incarnation

    def begin_incarnation(store: Store, incarnation: int, timestamp_us: int) -> Origin:
        node = store.recovered.identity.node
        origin = Origin(node, 1)
        if origin in store.journal.vector():
            return origin
        return reset(store, 1, timestamp_us)

    with patch.object(Store, "begin_incarnation", begin_incarnation):
        yield


@seeded_bug(Family.CRASHES, "I5", "I1", "I13")
def sent_before_fsync() -> Iterator[None]:
    """Subscribers and links get what is written and not yet synced. Receipts still wait for the sync."""
    append_synced = Journal.append

    def append(journal: Journal, *arguments: Any, **settings: Any) -> int:
        journal._settings = replace(journal._settings, sync="never")
        return append_synced(journal, *arguments, **settings)

    async def commit(path: CommitPath, group: list[Outcome]) -> None:
        commits, delivery = path._commits, path._delivery
        shares = path._peers is None or path._peers.shares_bodies
        batches = encode_group(path._broker.origin, group, shares)
        begin = commits.committed_end
        if batches:
            commits.committed_end = commits.journal.append(batches, settle_only=True)
        answers: list[Outcome] = []
        for out in group:
            answer = Outcome(out.session)
            answer.receipts, out.receipts = out.receipts, []
            answer.frames, out.frames = out.frames, []
            answer.ending, out.ending = out.ending, False
            answers.append(answer)
            commits.pending_bytes -= out.record_bytes + RECEIPT_BYTES
        path._committed(group, begin)
        delivery.flush()
        commits._progress.unpark_all()
        with trio.CancelScope(shield=True):
            await path._environment.run_blocking(commits.journal.sync)
        for out in group:
            left = commits._waiting_sessions[out.session] - 1
            if left:
                commits._waiting_sessions[out.session] = left
            else:
                del commits._waiting_sessions[out.session]
        path._committed(answers, commits.committed_end)
        delivery.flush()
        commits.delivered(group)

    with patch.object(Journal, "append", append), patch.object(CommitPath, "_commit", commit):
        yield


@seeded_bug(Family.CRASHES, "I1", "I7", seed=22)
def receipt_before_append() -> Iterator[None]:
    """A publisher gets its receipt at the decision."""
    before_commit = Dispatcher.before_commit

    def deliver_early(dispatcher: Dispatcher, out: Outcome) -> None:
        if out.receipts:
            answer = Outcome(out.session)
            answer.receipts, out.receipts = out.receipts, []
            dispatcher.after_commit([answer], dispatcher._commits.committed_end())
        before_commit(dispatcher, out)

    with patch.object(Dispatcher, "before_commit", deliver_early):
        yield


@seeded_bug(Family.CRASHES, "I1", "I5", "I7", "I13", seed=43)
def never_synced() -> Iterator[None]:
    """A write counts as durable; the sync is left out."""
    append_synced = Journal.append

    def append(journal: Journal, *arguments: Any, **settings: Any) -> int:
        journal._settings = replace(journal._settings, sync="never")
        return append_synced(journal, *arguments, **settings)

    with patch.object(Journal, "append", append):
        yield


@seeded_bug(Family.WIPES, "I1")
def receipt_level_ignored() -> Iterator[None]:
    """A receipt that promises two disks is sent when one has the record."""

    def ask(copies: ReplicaAcks, answer: PendingReceipt, now: float) -> bool:
        return True

    with patch.object(ReplicaAcks, "ask", ask):
        yield


@seeded_bug(Family.WIPES, "I1")
def missing_replicas_not_reported() -> Iterator[None]:
    """A receipt that comes after one second without replicas does not say so."""
    put = Dispatcher.put_receipt

    def put_nothing(dispatcher: Dispatcher, answer: PendingReceipt) -> None:
        answer.copies = None
        put(dispatcher, answer)

    with patch.object(Dispatcher, "put_receipt", put_nothing):
        yield


@seeded_bug(Family.MEMORY, "I1", seed=37, nodes=4)
def a_node_without_a_disk_is_a_copy() -> Iterator[None]:
    """A receipt counts what only a node has that keeps everything in memory."""
    counts = Membership.counts

    def counts_all(membership: Membership, peer: str) -> bool:
        return peer in membership.listing.without_disk or counts(membership, peer)

    with patch.object(Membership, "counts", counts_all):
        yield
