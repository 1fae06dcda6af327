"""One seed from its plan to its verdict.

First the faults, with publishers at work; then everything is healed and started, publishers are silent, and the mesh
has a bounded virtual time to agree and to run its queues dry. What is wrong is collected, never raised, so that one
report shows all of it.
"""

import random
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import trio

from qmq.dots import Vector, covers
from tests.simulation import checks
from tests.simulation.clients import FANOUTS, Clients
from tests.simulation.cluster import Member, peers_of
from tests.simulation.determinism import run_seeded
from tests.simulation.faults import Family, Fault, Kind, Plan, draw_plan
from tests.simulation.ledger import Ledger
from tests.simulation.trace import Trace
from tests.support.network import Fabric

SETTLE_SECONDS = 60.0
"""Virtual time, from the last fault healed to every vector equal, every subscriber complete and every queue dry."""

KEEPS_ALL_BYTES = 1 << 24
"""A journal that may keep more than this drops nothing in a simulation."""

POLL_SECONDS = 0.1
WRONGS_SHOWN = 12

Plant = Callable[[], AbstractContextManager[None]]
"""Puts a bug into the product for the time of one run."""


@dataclass(slots=True)
class Report:
    """`wrongs` is empty for a good seed."""

    seed: int
    plan: Plan
    digest: str = ""
    wrongs: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    sent: int = 0
    receipted: int = 0
    excused: int = 0
    lives: int = 0
    redelivered: int = 0
    redelivered_after_ack: int = 0
    settled_seconds: float = 0.0
    """Virtual time that it took to agree after the last fault."""

    def __str__(self) -> str:
        shown = self.wrongs[:WRONGS_SHOWN]
        more = len(self.wrongs) - len(shown)
        lines = [str(self.plan), *(f"! {wrong}" for wrong in shown)]
        if more:
            lines.append(f"! and {more} more")
        return "\n".join([*lines, "the last that happened:", *self.tail])


def simulate(seed: int, plant: Plant = nullcontext, family: Family | None = None) -> Report:
    """Run `seed` and judge it. `family` asks for other faults than the seed draws."""
    plan = draw_plan(seed, family)
    report = Report(seed, plan)
    trace = Trace()
    simulation = Simulation(plan, report, trace)
    try:
        with plant():
            errors = run_seeded(seed, simulation.run)
        report.wrongs += [f"logged: {error}" for error in errors]
    except Exception:
        report.wrongs.append("the simulation failed:\n" + traceback.format_exc())
    report.digest = trace.digest
    report.tail = trace.tail()
    return report


class Simulation:
    """A mesh, its clients and its faults."""

    def __init__(self, plan: Plan, report: Report, trace: Trace) -> None:
        self._plan = plan
        self._report = report
        self._trace = trace
        self._chance = random.Random(f"faults/{plan.seed}")
        self._fabric = Fabric(random.Random(f"network/{plan.seed}"))
        self._fabric.latency_seconds = plan.latency_seconds
        self._fabric.buffer_bytes = plan.buffer_bytes
        peers = peers_of(plan)
        self._members = {name: Member(name, plan, peers, self._fabric, trace) for name in plan.nodes}
        self._ledger = Ledger()
        self._excuses = checks.Excuses()

    async def run(self) -> None:
        plan = self._plan
        clients = Clients(plan.seed, self._members.values(), self._fabric, self._ledger, self._trace)
        async with trio.open_nursery() as lives:
            for member in self._members.values():
                member.start(lives)
            async with trio.open_nursery() as audience:
                for number in range(plan.subscribers):
                    audience.start_soon(clients.follow, f"s{number}", FANOUTS[number % len(FANOUTS)])
                for number in range(plan.consumers):
                    audience.start_soon(clients.consume, f"c{number}", plan.prefetch)
                if plan.quiet:
                    audience.start_soon(clients.listen, "l0", self._members[plan.nodes[-1]])
                await self._go_wrong(clients, lives)
                self._trace.note("healed")
                clients.settling = True
                await self._agree()
                audience.cancel_scope.cancel()
            self._judge()
            for member in self._members.values():
                await member.crash(silently=True)

    async def _go_wrong(self, clients: Clients, lives: trio.Nursery) -> None:
        """The phase of faults. On return every fault is healed and every node is up."""
        plan = self._plan
        async with trio.open_nursery() as busy:
            for number in range(plan.publishers):
                busy.start_soon(clients.publish, f"p{number}", plan.seconds)
            async with trio.open_nursery() as faults:
                for fault in plan.faults:
                    faults.start_soon(self._inject, fault, lives)
                await trio.sleep(plan.seconds)
                faults.cancel_scope.cancel()
        for one in self._members.values():
            self._fabric.thaw(one.host)
            for other in self._members.values():
                self._fabric.heal(one.host, other.host)
        for member in self._members.values():
            if member.disk_is_told_to_fail or member.is_stopping:
                await member.crash(silently=False)
            if not member.up:
                member.start(lives)

    async def _inject(self, fault: Fault, lives: trio.Nursery) -> None:
        await trio.sleep_until(fault.at)
        self._trace.note(f"fault: {fault}")
        fabric, member = self._fabric, self._members[fault.node]
        others = [other for other in self._members.values() if other is not member]
        match fault.kind:
            case Kind.CUT | Kind.CUT_ONE_WAY | Kind.ISOLATE:
                far = others if fault.kind is Kind.ISOLATE else [self._members[fault.other]]
                pairs = [(member.host, other.host) for other in far]
                if fault.kind is not Kind.CUT_ONE_WAY:
                    pairs += [(there, here) for here, there in pairs]
                for pair in pairs:
                    fabric.cut(*pair)
                await trio.sleep(fault.seconds)
                for pair in pairs:
                    fabric.heal(*pair)
            case Kind.BREAK:
                fabric.break_between(member.host, self._members[fault.other].host)
            case Kind.BREAK_CLIENTS:
                fabric.break_clients(member.host, {other.host for other in others})
            case Kind.FREEZE:
                fabric.freeze(member.host)
                await trio.sleep(fault.seconds)
                fabric.thaw(member.host)
            case Kind.POWER_ALL:
                await member.be_caught_at_work()
                for each in self._members.values():
                    await each.crash(silently=True)
                for each in self._members.values():
                    await trio.sleep(fault.seconds / 4)
                    self._start(each, lives)
            case Kind.WIPE:
                if member.up:
                    self._excuses.wiped(member, self._members.values())
                    await member.crash(silently=self._chance.random() < 0.5, wipe=True)
                    await self._start_later(member, fault, lives)
            case Kind.STOP:
                await member.stop()
                await self._start_later(member, fault, lives)
            case Kind.DISK:
                await member.fail_disk()
                await self._start_later(member, fault, lives)
            case Kind.CRASH | Kind.POWER:
                if self._chance.random() < 0.7:
                    await member.be_caught_at_work()
                await member.crash(silently=fault.kind is Kind.POWER)
                await self._start_later(member, fault, lives)

    async def _start_later(self, member: Member, fault: Fault, lives: trio.Nursery) -> None:
        await trio.sleep(fault.seconds)
        self._start(member, lives)

    def _start(self, member: Member, lives: trio.Nursery) -> None:
        if not member.up:  # another fault may have started it meanwhile
            member.start(lives)

    # The end

    async def _agree(self) -> None:
        """Wait until nothing is missing anywhere; note what still is after SETTLE_SECONDS."""
        began = trio.current_time()
        missing = ["never looked"]
        with trio.move_on_after(SETTLE_SECONDS):
            while missing:
                await trio.sleep(POLL_SECONDS)
                missing = self._missing()
        self._report.settled_seconds = trio.current_time() - began
        self._report.wrongs += [f"I13 after {SETTLE_SECONDS:g} s: {text}" for text in missing]

    def _missing(self) -> list[str]:
        members = list(self._members.values())
        down = [f"{member.name} is down" for member in members if not member.up]
        if down:
            return down
        vectors = [member.vector() for member in members]
        apart = [
            f"{member.name} lacks records: {_lacks(vector, other)}"
            for member, vector in zip(members, vectors, strict=True)
            for other in vectors
            if not covers(vector, other)
        ]
        if apart:
            return apart[:3]
        stuck = [
            f"{member.name} still has {queue.depth} messages of {name}"
            for member in members
            if member.node is not None
            for name, queue in member.node.broker.queues.by_name.items()
            if queue.depth
        ]
        if stuck:
            return stuck
        return checks.streams_against(checks.fanout_logs(members[0]), self._ledger, self._excuses)[:3]

    def _judge(self) -> None:
        report, ledger, excuses = self._report, self._ledger, self._excuses
        wrongs = report.wrongs
        members = list(self._members.values())
        for member in members:
            for error in member.escaped:
                wrongs.append(f"{member.name} ended: " + "".join(traceback.format_exception(error)))
        wrongs += ledger.wrongs
        logs = {member.name: checks.log_of(member) for member in members}
        for member in members:
            wrongs += checks.holes(member.name, logs[member.name], member.vector())
            wrongs += checks.lost_in_logs(member.name, checks.fanout_logs(member), ledger, excuses)
        wrongs += checks.differences(logs)
        records = checks.published(logs.values())
        wrongs += checks.inventions(records, ledger)
        if self._plan.journal_keep_bytes > KEEPS_ALL_BYTES:
            wrongs += checks.torn_transactions(records, ledger, excuses)
        wrongs += checks.unseen_topics(ledger)
        wrongs += checks.streams_against(checks.fanout_logs(members[0]), ledger, excuses)
        wrongs += checks.lost_from_queues(ledger, excuses)
        report.sent = len(ledger.sent)
        report.receipted = len(ledger.receipted)
        report.excused = sum(message.id in excuses.ids for message in ledger.receipted)
        report.lives = sum(member.lives for member in members)
        report.redelivered = sum(count - 1 for count in ledger.delivered.values())
        report.redelivered_after_ack = len(ledger.redelivered_after_ack)
        wiped = {fault.node for fault in self._plan.faults if fault.kind is Kind.WIPE}
        wrongs += [
            f"I7 same node: {node} gave {message_id} again after it had receipted the ACK"
            for node, message_id in ledger.again_at_same_node
            if node not in wiped
        ]
        if self._plan.quiet and ledger.redelivered_after_ack:
            wrongs.append(f"I7 without a fault: given again after a receipted ACK: {ledger.redelivered_after_ack}")


def _lacks(vector: Vector, other: Vector) -> str:
    behind = [(origin, vector.get(origin, 0), last) for origin, last in other.items() if vector.get(origin, 0) < last]
    return ", ".join(f"{origin} {have} of {last}" for origin, have, last in behind)
