"""So many seconds of an exchange: warm up, measure, wait for the rest. The same for one node and across several."""

from collections.abc import Callable, Sequence

from qmq.bench.connection import LoadConnection
from qmq.bench.exchange import Exchange
from qmq.bench.plan import BenchPlan, Meter, Report


def timed(
    plan: BenchPlan,
    report: Report,
    exchange: Exchange,
    counted: Sequence[LoadConnection] = (),
    rate_of: Callable[[list[int]], int] = sum,
) -> list[int]:
    """Run `exchange` and close it. Returns what came on each of `counted` (none: on all) in the measured seconds.

    `rate_of` makes of that what `per_second` and the CPU time of each message count. Raises nothing when the node ends
    a connection: `report` says so, and the list is empty.
    """

    def received() -> list[int]:
        return [line.received for line in counted] or [exchange.received]

    meter = Meter(plan.pids)
    came: list[int] = []
    try:
        plan.progress.phase("warming up")
        exchange.run(plan.warmup_seconds)
        plan.progress.phase("measuring")
        meter.begin()
        before = received()
        exchange.run(plan.seconds)
        came = [now - had for now, had in zip(received(), before, strict=True)]
        report.figures.update(meter.end(rate_of(came)))
        plan.progress.phase("waiting for the rest")
        exchange.finish()
    except OSError as error:
        report.failed(error)
    finally:
        exchange.close()
    for wanted, got in exchange.expected_and_received():
        report.compare(wanted, got)
    return came
