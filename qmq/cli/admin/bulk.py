"""`qmq purge`, `move` and `redrive` settle messages of a queue that wait; `pause` and `resume` hold a queue back."""

import click

from qmq.verbs.queues import MoveMessages, PauseQueue, Purge, Redrive, ResumeQueue

from ..options import check_kind, together
from ..output import counted, print_json, printable
from .request import show_missing, show_unknown
from .verb import Asked, verb_command

DONE = {"purge": "purged", "move": "moved", "redrive": "redriven"}


def _show_job(asked: Asked) -> None:
    """Ask for a bulk job and show its result. Exit code 1 if nodes are missing or messages were left for a reason."""
    to = asked.given.get("to")
    if to is not None:
        check_kind(to)
    queue, facts = asked.about, asked.outcome()
    messages = facts.get("messages", 0)
    if asked.as_json:
        shown = {"destination": queue, **({} if to is None else {"to": to}), "messages": messages}
        shown |= {"dry_run": asked.is_dry_run, "reason": facts.get("reason", "")}
        shown |= {"nodes_missing": facts.get("nodes_missing", []), "known": facts.get("known", True)}
        print_json({**shown, "taken_over": facts.get("taken_over", {})})
    else:
        done = f"{'would be ' * asked.is_dry_run}{DONE[asked.verb.word()]}{'' if to is None else f' to {to}'}"
        click.echo(printable(f"{queue}: {counted(messages, 'message')} {done}"))
    show_unknown(queue, facts)
    show_missing(facts)


purge, move, redrive = (verb_command(verb)(_show_job) for verb in (Purge, MoveMessages, Redrive))


def _show_parts(asked: Asked, delivery: bool, acceptance: bool) -> None:
    asked.given["part"] = (
        "both" if delivery and acceptance else "delivery" if delivery else "acceptance" if acceptance else None
    )
    facts = asked.facts()
    if asked.as_json:
        print_json(facts)
        return
    paused = " and ".join([name for name in ("delivery", "acceptance") if facts.get(name)])
    would = "would be" if asked.is_dry_run else "are" if " and " in paused else "is"
    done = f"{paused} {would} paused" if paused else "would be resumed" if asked.is_dry_run else "resumed"
    click.echo(printable(f"{asked.about}: {done}"))


part_options = together(
    click.option("--delivery", is_flag=True, help="Only the delivery to consumers."),
    click.option("--acceptance", is_flag=True, help="Only the acceptance of SENDs."),
)
pause, resume = (verb_command(verb, "part", more=part_options)(_show_parts) for verb in (PauseQueue, ResumeQueue))
