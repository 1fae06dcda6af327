"""One seed from its plan to its verdict.

First the faults, with publishers at work. Then publishers are silent, everything is healed and started, in some seeds
a majority first, and the mesh has a bounded virtual time to agree and to run its queues dry. What is wrong is
collected, never raised, so that one report shows all of it.
"""

import traceback
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import trio

from tests.simulation import checks, nemeses, workloads
from tests.simulation.checks import reports
from tests.simulation.determinism import run_seeded
from tests.simulation.faults import NEMESES, Fault
from tests.simulation.operations import observed
from tests.simulation.plan import Family, Plan, draw_plan
from tests.simulation.reports.trace import Trace
from tests.simulation.stage import Stage

assert nemeses.__all__, "imported for what they register"

SETTLE_SECONDS = 30.0
"""Virtual time, from the last fault healed to every vector equal, every subscriber complete and every queue dry."""

CORE_SECONDS = 20.0
"""As SETTLE_SECONDS, for a majority whose other nodes stay down."""

POLL_SECONDS = 0.1
WRONGS_SHOWN = 12

InstallBug = Callable[[], AbstractContextManager[None]]
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
    takeovers: int = 0
    """How often a node began to serve another one's queue messages."""
    redelivered: int = 0
    acks: int = 0
    """Queue messages of which an ACK was receipted, at the level `edge` and at no more."""
    again: int = 0
    """How often one of these was given after that."""
    quorum_acks: int = 0
    """Queue messages of which an ACK was receipted at the level `quorum`."""
    quorum_again: int = 0
    """How often one of these was given after that; also what was handed out before."""
    settled_seconds: float = 0.0
    """Virtual time that it took to agree after the last fault."""

    def __str__(self) -> str:
        shown = self.wrongs[:WRONGS_SHOWN]
        more = len(self.wrongs) - len(shown)
        lines = [str(self.plan), *(f"! {wrong}" for wrong in shown)]
        if more:
            lines.append(f"! and {more} more")
        return "\n".join([*lines, "the last that happened:", *self.tail, f"again: {self.plan.replay}"])


def simulate(
    seed: int,
    bug: InstallBug = nullcontext,
    family: Family | None = None,
    kept: Collection[int] | None = None,
    size: int = 0,
) -> Report:
    """Run `seed` and judge it. `family` asks for other faults than the seed draws, `kept` for only some of them, `size`
    for a mesh of so many nodes."""
    plan = draw_plan(seed, family, kept, size)
    report = Report(seed, plan)
    trace = Trace()
    try:
        with bug():
            stage = Stage(plan, trace)
            with observed(stage.ledger.operations) if plan.family is Family.OPERATORS else nullcontext():
                errors = run_seeded(seed, Simulation(stage, report).run)
        report.wrongs += [f"logged: {error}" for error in reports.unexplained(errors, stage.allowed_losses)]
    except Exception:
        report.wrongs.append("the simulation failed:\n" + traceback.format_exc())
    report.digest = trace.digest
    report.tail = trace.tail()
    return report


class Simulation:
    """The phases of one seed."""

    def __init__(self, stage: Stage, report: Report) -> None:
        self._stage = stage
        self._report = report

    async def run(self) -> None:
        stage = self._stage
        async with trio.open_nursery() as lives:
            stage.open(lives)
            async with trio.open_nursery() as audience:
                workloads.start_audience(stage, audience)
                workloads.start_insistent(stage, audience)
                await self._go_wrong()
                stage.settling = True
                if stage.plan.core:
                    await self._finish_without_the_rest()
                await stage.heal()
                stage.trace.note("healed")
                if stage.leaving is not None:
                    with trio.move_on_after(SETTLE_SECONDS):
                        await nemeses.members.until_retired(stage, stage.leaving)
                await self._agree()
                self._report.wrongs += await workloads.call_the_roll(stage)
                audience.cancel_scope.cancel()
            self._judge()
            for member in stage.members:
                await member.crash(silently=True)
            lives.cancel_scope.cancel()

    async def _go_wrong(self) -> None:
        """The phase of faults."""
        plan = self._stage.plan
        async with trio.open_nursery() as busy:
            workloads.start_publishers(self._stage, busy)
            async with trio.open_nursery() as faults:
                for fault in plan.script:
                    faults.start_soon(self._inject, fault)
                await trio.sleep(plan.seconds)
                faults.cancel_scope.cancel()

    async def _inject(self, fault: Fault) -> None:
        await trio.sleep_until(fault.at)
        self._stage.trace.note(f"fault: {fault}")
        await NEMESES[fault.name].inject(self._stage, fault)

    async def _finish_without_the_rest(self) -> None:
        """I21: a healthy majority finishes its work although the others are down for good."""
        stage = self._stage
        core = [stage.by_name[name] for name in stage.plan.core]
        rest = [member for member in stage.members if member not in core]
        for member in rest:
            await member.crash(silently=True)
        await stage.heal(but=rest)
        stage.trace.note("only the core is healed")
        missing = ["never looked"]
        with trio.move_on_after(CORE_SECONDS):
            while missing:
                await trio.sleep(POLL_SECONDS)
                missing = checks.unfinished_in(stage, core)
        self._report.wrongs += [f"I21 core after {CORE_SECONDS:g} s: {text}" for text in missing]

    async def _agree(self) -> None:
        """Wait until nothing is missing anywhere; note what still is after SETTLE_SECONDS."""
        began = trio.current_time()
        missing = ["never looked"]
        with trio.move_on_after(SETTLE_SECONDS):
            while missing:
                await trio.sleep(POLL_SECONDS)
                missing = checks.unfinished(self._stage)
        self._report.settled_seconds = trio.current_time() - began
        self._report.wrongs += [f"I13 after {SETTLE_SECONDS:g} s: {text}" for text in missing]

    def _judge(self) -> None:
        stage, report = self._stage, self._report
        for member in stage.members:
            for error in member.escaped:
                report.wrongs.append(f"{member.name} ended: " + "".join(traceback.format_exception(error)))
        report.wrongs += checks.broken(stage)
        ledger = stage.ledger
        report.sent = len(ledger.sent)
        report.receipted = len(ledger.receipted)
        report.excused = sum(message.id in stage.allowed_losses.ids for message in ledger.receipted)
        report.lives = sum(member.lives for member in stage.members)
        report.takeovers = stage.observer.takeovers
        report.redelivered = sum(count - 1 for count in ledger.delivered.values())
        report.acks = len(ledger.ack_receipted.keys() - ledger.settled_for_good.keys())
        report.again = len(ledger.again_after_edge)
        report.quorum_acks = len(ledger.settled_for_good)
        report.quorum_again = len(ledger.again_after_quorum)
