"""Fanouts: what their logs hold and what their subscribers got.

I1   what was receipted is in the log of every node, and was delivered to every subscriber
I4   a log has the records of one incarnation in their order
I5   a subscriber that resumes by vector gets exactly what the logs hold, once, and gaps for what no node has
I13  in the end the logs of all nodes hold the same
"""

from collections.abc import Mapping

from qmq.model.dots import Dot, Vector
from tests.simulation.evidence import AllowedLosses, Rows
from tests.simulation.ledger import Ledger


def lost_in_logs(name: str, logs: Rows, ledger: Ledger, allowed_losses: AllowedLosses) -> list[str]:
    """I1, I2 and I4 for the fanout logs of one node."""
    wrong: list[str] = []
    for destination, rows in logs.items():
        ids = {message_id for _, message_id in rows}
        if len(ids) != len(rows):
            wrong.append(f"I5 log: {name} holds a message of {destination} twice")
        last: Vector = {}
        for dot, message_id in rows:
            if dot.sequence <= last.get(dot.origin, 0):
                wrong.append(f"I4 fanout: {name} has {dot} after {last[dot.origin]} in {destination}")
            last[dot.origin] = dot.sequence
            if message_id not in ledger.sent:
                wrong.append(f"I2 fanout: {name} holds {message_id}, which nobody sent")
        for message in ledger.receipted:
            if message.destination == destination and message.id not in ids and message.id not in allowed_losses.ids:
                wrong.append(f"I1 log: {message.id}, receipted by {message.receipted_by}, is not in the log of {name}")
    return wrong


def unlike(rows: Mapping[str, Rows], allowed_losses: AllowedLosses) -> list[str]:
    """I13 for the logs of all nodes, by name: what one of them holds, all hold."""
    wrong: list[str] = []
    for destination in next(iter(rows.values())):
        held = {name: {dot for dot, _ in logs[destination]} - allowed_losses.dots for name, logs in rows.items()}
        every = set[Dot]().union(*held.values())
        for name, dots in held.items():
            if dots != every:
                missing_ranges = sorted(every - dots)[:3]
                wrong.append(
                    f"I13 log: {name} lacks {', '.join(map(str, missing_ranges))} of {destination}, which others hold"
                )
    return wrong


def gaps_that_are_none(rows: Mapping[str, Rows], ledger: Ledger) -> list[str]:
    """I5: what a gap notice says is missing, no log has; of all nodes, by name."""
    return [
        f"I5 gap: {gap.subscriber} got a notice of {gap.origin} {gap.first}–{gap.last}, but {name} has {dot}"
        for gap in ledger.gaps
        for name, logs in rows.items()
        for dot, _ in logs[gap.destination]
        if dot.origin == gap.origin and gap.first <= dot.sequence <= gap.last
    ]


def streams_against(logs: Rows, ledger: Ledger, allowed_losses: AllowedLosses) -> list[str]:
    """I1 and I5: every subscriber got exactly the log of its fanout."""
    wrong: list[str] = []
    for stream in ledger.streams:
        kept = dict(logs[stream.destination])
        for dot, message_id in kept.items():
            if dot not in stream.seen and dot not in allowed_losses.dots:
                sent = ledger.sent.get(message_id)
                outcome = "receipted" if sent is not None and sent.receipted_by else "unknown"
                wrong.append(f"I1 subscriber: {stream.subscriber} never got {dot} ({message_id}, {outcome})")
        for dot, message_id in stream.seen.items():
            if dot not in kept and dot not in allowed_losses.dots:
                wrong.append(f"I5 ghost: {stream.subscriber} got {dot} ({message_id}), which no log holds")
    return wrong
