"""The administrative verbs: `/control/VERB/…`, one function each, and the table that finds them.

A verb changes something, or shows what no count shows. It is refused as a whole, or its response says what it did. Each
one that changes something is an event of `/system/audit`, a dry run included.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from qmq.broker.messages.destination import DestinationKind, is_pattern, kind_of
from qmq.broker.selectors import compile_selector
from qmq.errors import Refused
from qmq.gateways.headers import is_said
from qmq.server.admin.bulk_jobs import HAS_CONSUMERS, NOT_SERVING, BulkJob, Facts
from qmq.server.admin.deletion import DeleteContext, delete_fanout, delete_retained
from qmq.server.admin.mesh_jobs import MeshJobs
from qmq.server.admin.system import SystemTopics
from qmq.server.membership.decommission import Decommission
from qmq.server.peers.control_response import ControlResponse

CONTROL: Final = "/control/"
COUNT_MAX: Final = 10**12

log = logging.getLogger("qmq.admin")


class VerbRequest(NamedTuple):
    """One SEND to `/control/VERB/…`. `about` is what follows the verb, with its slash; `user` None: without login."""

    verb: str
    about: str
    headers: Mapping[str, str]
    user: str | None
    address: str

    @property
    def is_mesh(self) -> bool:
        """Whether all nodes are asked. Raises Refused for a scope that is none."""
        scope = self.headers.get("scope", "node")
        if scope not in ("node", "mesh"):
            raise Refused("bad-scope", "The header scope is node or mesh.")
        return scope == "mesh"

    @property
    def is_dry_run(self) -> bool:
        """Whether the response says what would happen, and nothing changes."""
        return is_said(self.headers, "dry-run")


class VerbContext(DeleteContext, Protocol):
    """What verbs need of the node."""

    decommission: Decommission
    mesh_jobs: MeshJobs
    system: SystemTopics


async def _purge(context: VerbContext, asked: VerbRequest) -> Facts:
    return await _in_bulk(context, asked, "")


async def _move(context: VerbContext, asked: VerbRequest) -> Facts:
    target = asked.headers.get("to", "")
    _check_queue(target, "The header to")
    if target == asked.about:
        raise Refused("bad-destination", f"{target} is moved to itself.")
    return {"to": target, **await _in_bulk(context, asked, target)}


async def _redrive(context: VerbContext, asked: VerbRequest) -> Facts:
    return await _in_bulk(context, asked, "")


async def _in_bulk(context: VerbContext, asked: VerbRequest, target: str) -> Facts:
    _check_queue(asked.about, asked.verb)
    selector = asked.headers.get("selector", "").strip()
    if selector:
        compile_selector(selector)
    jobs = context.mesh_jobs
    job = BulkJob(
        verb=asked.verb,
        queue=asked.about,
        id=jobs.new_id(),
        target=target,
        selector=selector,
        count=_count(asked.headers),
        is_dry_run=asked.is_dry_run,
    )
    facts = await (jobs.everywhere(job) if asked.is_mesh else jobs.here(job))
    if not asked.is_mesh and facts["reason"].startswith(NOT_SERVING):
        raise Refused(NOT_SERVING, facts["reason"].partition(": ")[2])
    return facts


def _check_queue(destination: str, what: str) -> None:
    is_queue = destination.startswith("/queue/") and kind_of(destination) is DestinationKind.QUEUE
    if not is_queue or is_pattern(destination):
        raise Refused("bad-destination", f"{what} names one queue, /queue/NAME.")


def _count(headers: Mapping[str, str]) -> int:
    text = headers.get("count")
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 13 and 1 <= int(text) <= COUNT_MAX):
        raise Refused("bad-count", f"The header count is a number of messages from 1 to {COUNT_MAX}.")
    return int(text)


async def _delete(context: VerbContext, asked: VerbRequest) -> Facts:
    if is_pattern(asked.about):
        raise Refused("bad-pattern", "A destination is deleted by its name; patterns are not supported.")
    delete = DELETIONS.get(kind_of(asked.about))
    if delete is None:
        raise Refused("not-supported", f"Only queues, topics and fanouts can be deleted, not {asked.about}.")
    return await delete(context, asked)


async def _delete_fanout(context: VerbContext, asked: VerbRequest) -> Facts:
    return await delete_fanout(context, asked.about, is_dry_run=asked.is_dry_run)


async def _delete_topic(context: VerbContext, asked: VerbRequest) -> Facts:
    return await delete_retained(context, asked.about, is_dry_run=asked.is_dry_run)


async def _delete_queue(context: VerbContext, asked: VerbRequest) -> Facts:
    """On all nodes. Raises Refused if the queue has consumers on one of them, unless the request is forced."""
    jobs = context.mesh_jobs
    is_forced = is_said(asked.headers, "force")
    job = BulkJob(verb="delete", queue=asked.about, id=jobs.new_id(), is_dry_run=True, is_forced=is_forced)
    facts = await jobs.everywhere(job)
    code, _, message = facts["reason"].partition(": ")
    if code == HAS_CONSUMERS:
        raise Refused(HAS_CONSUMERS, message)
    return facts if asked.is_dry_run else await jobs.everywhere(replace(job, id=jobs.new_id(), is_dry_run=False))


DELETIONS: Final[Mapping[DestinationKind, Callable[[VerbContext, VerbRequest], Awaitable[Facts]]]] = {
    DestinationKind.FANOUT: _delete_fanout,
    DestinationKind.TOPIC: _delete_topic,
    DestinationKind.QUEUE: _delete_queue,
}


async def _retire(context: VerbContext, asked: VerbRequest) -> Facts:
    name = asked.about.removeprefix("/")
    if is_said(asked.headers, "majority-lost"):
        return await context.decommission.retire_lost({one for one in name.split(",") if one})
    return await context.decommission.retire(name, force=is_said(asked.headers, "force"))


class Verb(NamedTuple):
    """How to use it, and the function that does it."""

    form: str
    run: Callable[[VerbContext, VerbRequest], Awaitable[Facts]]


VERBS: Final[Mapping[str, Verb]] = {
    "purge": Verb("purge/queue/NAME", _purge),
    "move": Verb("move/queue/NAME", _move),
    "redrive": Verb("redrive/queue/NAME", _redrive),
    "delete": Verb("delete/queue|topic|fanout/NAME", _delete),
    "retire": Verb("retire/NODE", _retire),
}


def verb_of(destination: str) -> str | None:
    """The verb that a control destination names; None for another request."""
    verb, slash, _ = destination.removeprefix(CONTROL).partition("/")
    return verb if slash and verb in VERBS else None


async def run_verb(context: VerbContext, asked: VerbRequest) -> ControlResponse:
    """Do what a verb asks for. Raises Refused; then nothing has changed."""
    facts = await VERBS[asked.verb].run(context, asked)
    if asked.verb != "retire":
        facts = {"destination": asked.about, **facts, "dry_run": asked.is_dry_run}
    said = {"destination": asked.about, "count": facts.get("messages", 0), "dry_run": asked.is_dry_run}
    said |= {name: facts[name] for name in ("to", "reason", "nodes_missing") if facts.get(name)}
    context.system.audit(asked.verb, user=asked.user, address=asked.address, **said)
    log.info("= user %s at %s: %s %s: %s", asked.user or "-", asked.address, asked.verb, asked.about, facts)
    return ControlResponse(
        {name.replace("_", "-"): _text(fact) for name, fact in facts.items()}, json.dumps(facts).encode()
    )


def _text(fact: Any) -> str:
    if type(fact) is str:
        return fact
    return ",".join(fact) if isinstance(fact, list) and all(type(one) is str for one in fact) else json.dumps(fact)
