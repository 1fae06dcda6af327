"""Every request to a control destination: which principals may make it. A verb without a row here fails the test."""

import pytest

from qmq.access.requests import VERBS as NOT_ADMINISTER
from qmq.access.requests import of_control
from qmq.access.rights import AccessTable
from qmq.access.rules import ADMINISTRATOR, ROLES, Action, Permission, Principal
from qmq.server.admin.control import QUESTIONS, STATUS
from qmq.server.admin.definitions import DEFINITIONS
from qmq.server.admin.verbs import CONTROL, VERBS

ROOT, NIGHT, GRAFANA, APP, ANN = "root", "night", "grafana", "app", "ann"
GROUPS = {
    ROOT: frozenset({ADMINISTRATOR}),
    NIGHT: frozenset({"operator"}),
    GRAFANA: frozenset({"observer"}),
    APP: frozenset({"client"}),
    ANN: frozenset[str](),
}
ROWS = [
    Permission(ANN, None, True, frozenset({Action.ADMINISTER, Action.SUBSCRIBE}), ("/queue/own",)),
    Permission(APP, None, False, frozenset({Action.SUBSCRIBE}), ("/queue/own",)),
]
"""One user administers and reads a queue of its own, which another one may not read."""

OPERATORS = {ROOT, NIGHT}
OBSERVERS = {ROOT, NIGHT, GRAFANA}

# Request → the principals that may make it. All others may not.
MAY: dict[str, set[str]] = {
    "purge/queue/jobs": OPERATORS,
    "purge/queue/own": OPERATORS | {ANN},
    "move/queue/jobs": OPERATORS,
    "move/queue/own": OPERATORS | {ANN},
    "redrive/queue/dead": OPERATORS,
    "redrive/queue/own": OPERATORS | {ANN},
    "redrive/queue/*": OPERATORS,
    "pause/queue/jobs": OPERATORS,
    "pause/queue/own": OPERATORS | {ANN},
    "resume/queue/jobs": OPERATORS,
    "resume/queue/own": OPERATORS | {ANN},
    "declare/queue/jobs": {ROOT, NIGHT, APP},
    "declare/queue/own": {ROOT, NIGHT, APP},
    "declare/exchange/e": {ROOT, NIGHT, APP},
    "bind/queue/jobs": {ROOT, NIGHT, APP},
    "bind/queue/own": {ROOT, NIGHT, APP},
    "bind/exchange/e": {ROOT, APP},
    "unbind/exchange/e": {ROOT, APP},
    "unbind/queue/jobs": {ROOT, NIGHT, APP},
    "unbind/queue/own": {ROOT, NIGHT, APP},
    "bind-source/topic/t": {ROOT, NIGHT, APP},
    "bind-source/exchange/e": {ROOT, NIGHT, APP},
    "exchanges": OBSERVERS,
    "bindings": OBSERVERS,
    "delete/exchange/e": {ROOT, NIGHT, APP},
    "delete/queue/jobs": OPERATORS,
    "delete/queue/own": OPERATORS | {ANN},
    "delete/topic/t": OPERATORS,
    "delete/fanout/f": OPERATORS,
    "peek/queue/jobs": {ROOT, NIGHT, APP},
    "peek/queue/own": {ROOT, NIGHT, ANN},
    "peek/topic/t": {ROOT, NIGHT, APP},
    "get/a-1-1": OPERATORS,
    "trace/a-1-1": OBSERVERS,
    "connections": OBSERVERS,
    "connections/a/7": OBSERVERS,
    "kick": OPERATORS,
    "kick/a/7": OPERATORS,
    "retire/c": {ROOT},
    "status": OBSERVERS,
    "conditions": OBSERVERS,
    "conditions/past": OBSERVERS,
    "count-msgs/queue/jobs": OBSERVERS,
    "count-subscribers/topic/t": OBSERVERS,
    "list/queue": OBSERVERS,
    "list-subscribers/fanout/f": OBSERVERS,
    "links": OBSERVERS,
    "overview": OBSERVERS,
    "history": OBSERVERS,
    "definitions/list/policy": {ROOT},
    "definitions/get/policy/queue/own": {ROOT},
    "definitions/put/policy/queue/own": {ROOT},
    "definitions/put/permission/user:ann allow administer /*": {ROOT},
    "definitions/delete/user/root": {ROOT},
    "definitions/export": {ROOT},
    "definitions/import": {ROOT},
    "added-later/queue/jobs": OPERATORS,
    "added-later": {ROOT},
}


def verb_of(request: str) -> str:
    return request.partition("/")[0]


@pytest.mark.parametrize("request_name", MAY)
def test_each_request_is_for_exactly_these_principals(request_name: str) -> None:
    access = AccessTable()
    access.change(GROUPS, ROWS)
    action, about = of_control(f"{CONTROL}{request_name}")

    may = {name for name in (*GROUPS, "anonymous") if access.rights_of(Principal(name)).allows(action, about)}

    assert may == MAY[request_name]


def test_every_verb_and_every_request_has_a_row() -> None:
    requests = {STATUS, DEFINITIONS.removesuffix("/"), *QUESTIONS}
    understood = {*VERBS, *NOT_ADMINISTER, *(verb_of(name.removeprefix(CONTROL)) for name in requests)}

    assert understood <= {verb_of(request) for request in MAY}


def test_a_verb_about_destinations_has_a_row_for_a_queue_that_one_user_administers() -> None:
    about_queues = {verb for verb, row in VERBS.items() if row.form.startswith(f"{verb}/queue")}

    assert about_queues == {verb_of(request) for request in MAY if request in (f"{verb}/queue/own" for verb in VERBS)}


def test_every_role_is_a_principal_of_the_table() -> None:
    assert set(ROLES) == {group for groups in GROUPS.values() for group in groups}
