"""Every request to a control destination: which principals may make it. A verb without a row here fails the test.

Some users have one right each to what they own, so that a right that contains another one is seen.
"""

import pytest

from qmq.access.rights import AccessTable
from qmq.access.rules import ACTIONS, ADMINISTRATOR, ROLES, Action, Permission, Principal
from qmq.admin.verbs import RESPOND
from qmq.verbs.table import VERBS, needs_of, verb_of
from qmq.verbs.verb import CONTROL, Effect

ROOT, NIGHT, GRAFANA, APP, ANN = "root", "night", "grafana", "app", "ann"
SENDS, READS, DECLARES, ADMINISTERS, OBSERVES = EACH = [f"only {action.value}" for action in ACTIONS]
"""Users with one right each to `own`, and with all rights to `mine`."""
KEEPER = "keeper"
"""Has all rights to both."""
GROUPS = {
    ROOT: frozenset({ADMINISTRATOR}),
    NIGHT: frozenset({"operator"}),
    GRAFANA: frozenset({"observer"}),
    APP: frozenset({"client"}),
    ANN: frozenset[str](),
    KEEPER: frozenset[str](),
    **dict.fromkeys(EACH, frozenset[str]()),
}
OWN = ("/queue/own", "/exchange/own", "/exchange/own/*")
MINE = ("/queue/mine", "/exchange/mine", "/exchange/mine/*", "/topic/mine")
ROWS = [
    Permission(ANN, None, True, frozenset({Action.ADMINISTER, Action.SUBSCRIBE}), ("/queue/own",)),
    Permission(APP, None, False, frozenset({Action.SUBSCRIBE}), ("/queue/own",)),
    Permission(KEEPER, None, True, frozenset(ACTIONS), (*OWN, *MINE)),
    *(Permission(f"only {one.value}", None, True, frozenset({one}), OWN) for one in ACTIONS),
    *(Permission(user, None, True, frozenset(ACTIONS), MINE) for user in EACH),
]
"""One user administers and reads a queue of its own, which another one may not read."""

OPERATORS = {ROOT, NIGHT}
OBSERVERS = {ROOT, NIGHT, GRAFANA}
SAME = Effect(is_change=False, is_replacing=True, is_taking=True, sends_to="/queue/any")

# Request → the principals that may make it. All others may not.
MAY: dict[str, set[str]] = {
    "purge/queue/jobs": OPERATORS,
    "purge/queue/own": OPERATORS | {ANN, KEEPER, ADMINISTERS},
    "move/queue/own": {ROOT, NIGHT, ANN, KEEPER},
    "redrive/queue/dead": OPERATORS,
    "redrive/queue/own": OPERATORS,
    "redrive/queue/*": OPERATORS,
    "pause/queue/jobs": OPERATORS,
    "pause/queue/own": OPERATORS | {ANN, KEEPER, ADMINISTERS},
    "resume/queue/jobs": OPERATORS,
    "resume/queue/own": OPERATORS | {ANN, KEEPER, ADMINISTERS},
    # Before the node has looked whether that is so already.
    "declare/queue/jobs": {ROOT, NIGHT, GRAFANA, APP},
    "declare/queue/own": {ROOT, NIGHT, GRAFANA, APP, ANN, KEEPER, *EACH},
    "declare/exchange/own": {ROOT, NIGHT, GRAFANA, APP, KEEPER, *EACH},
    "bind/queue/own": {ROOT, NIGHT, GRAFANA, APP, ANN, KEEPER, *EACH},
    "unbind/queue/own": {ROOT, NIGHT, GRAFANA, APP, ANN, KEEPER, *EACH},
    "bind/exchange/own": {ROOT, NIGHT, GRAFANA, APP, KEEPER, *EACH},
    "unbind/exchange/own": {ROOT, NIGHT, GRAFANA, APP, KEEPER, *EACH},
    "policies/queue/own": OBSERVERS | {KEEPER, "only observe"},
    "exchanges": OBSERVERS,
    "bindings": OBSERVERS,
    "delete/exchange/e": {ROOT, NIGHT, APP},
    "delete/exchange/own": {ROOT, NIGHT, APP, KEEPER},
    "delete/queue/jobs": OPERATORS,
    "delete/queue/own": OPERATORS | {ANN, KEEPER, ADMINISTERS},
    "delete/topic/t": OPERATORS,
    "delete/fanout/f": OPERATORS,
    "peek/queue/jobs": {ROOT, NIGHT, APP},
    "peek/queue/own": {ROOT, NIGHT, ANN, KEEPER, READS},
    "peek/topic/t": {ROOT, NIGHT, APP},
    "get/a-1-1": OPERATORS,
    "trace/a-1-1": OBSERVERS,
    "connections": OBSERVERS,
    "connections/a/7": OBSERVERS,
    "drain": {ROOT},
    "drain/a": {ROOT},
    "undrain": {ROOT},
    "undrain/a": {ROOT},
    "kick": OPERATORS,
    "kick/a/7": OPERATORS,
    "retire/c": {ROOT},
    "backup": {ROOT},
    "backup-piece/1": {ROOT},
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
    "queue-history/queue/jobs": OBSERVERS,
    "audit": {ROOT},
    "rights": {*GROUPS, "anonymous"},
    "password-hash": {ROOT},
    "definitions/list/policy": {ROOT},
    "definitions/keys/policy": {ROOT},
    "definitions/get/policy/queue/own": {ROOT},
    "definitions/put/policy/queue/own": {ROOT},
    "definitions/put/permission/user:ann allow administer /*": {ROOT},
    "definitions/delete/user/root": {ROOT},
    "definitions/export": {ROOT},
    "definitions/import": {ROOT},
    "added-later/queue/jobs": OPERATORS,
    "added-later": {ROOT},
}

# The same of requests with headers, and with the effect that the node has found.
WITH_EFFECT: list[tuple[str, dict[str, str], Effect | None, set[str]]] = [
    ("move/queue/jobs", {"to": "/queue/other"}, None, {ROOT}),
    ("move/queue/own", {"to": "/queue/mine"}, None, {ROOT, KEEPER}),
    ("move/queue/mine", {"to": "/queue/own"}, None, {ROOT, KEEPER}),
    ("declare/queue/jobs", {}, SAME, {ROOT, NIGHT, GRAFANA, APP}),
    ("declare/queue/own", {}, SAME, {ROOT, NIGHT, GRAFANA, APP, ANN, KEEPER, *EACH}),
    ("declare/queue/own", {}, Effect(), {ROOT, NIGHT, APP, KEEPER, DECLARES}),
    ("declare/queue/own", {}, Effect(is_replacing=True), {ROOT, NIGHT, KEEPER}),
    ("declare/queue/own", {}, Effect(is_taking=True), {ROOT, NIGHT, KEEPER}),
    ("declare/queue/own", {}, Effect(is_taking=True, sends_to="/queue/mine"), {ROOT, KEEPER}),
    ("declare/queue/mine", {}, Effect(is_taking=True, sends_to="/queue/own"), {ROOT, APP, KEEPER, SENDS}),
    ("declare/exchange/own", {}, SAME, {ROOT, NIGHT, GRAFANA, APP, KEEPER, *EACH}),
    ("declare/exchange/own", {}, Effect(), {ROOT, NIGHT, APP, KEEPER, DECLARES}),
    ("declare/exchange/own", {}, Effect(is_taking=True, sends_to="/exchange/mine/*"), {ROOT, APP, KEEPER}),
    ("declare/exchange/mine", {}, Effect(is_taking=True, sends_to="/exchange/own/*"), {ROOT, APP, KEEPER, SENDS}),
    ("bind/queue/own", {"source": "/exchange/mine"}, SAME, {ROOT, NIGHT, GRAFANA, APP, KEEPER, *EACH}),
    ("bind/queue/own", {"source": "/exchange/mine"}, Effect(), {ROOT, APP, KEEPER}),
    ("bind/queue/own", {"source": "/exchange/mine"}, Effect(is_private=True), {ROOT, NIGHT, APP, KEEPER, DECLARES}),
    ("bind/queue/mine", {"source": "/exchange/own"}, Effect(), {ROOT, APP, KEEPER, READS}),
    ("bind/queue/mine", {"source": "/topic/mine"}, Effect(), {ROOT, APP, KEEPER, *EACH}),
    ("unbind/queue/own", {"source": "/exchange/mine"}, Effect(), {ROOT, APP, KEEPER}),
    ("unbind/queue/mine", {"source": "/exchange/own"}, Effect(), {ROOT, APP, KEEPER, READS}),
    ("bind/exchange/own", {"source": "/exchange/mine"}, Effect(), {ROOT, APP, KEEPER, SENDS}),
    ("bind/exchange/mine", {"source": "/exchange/own"}, Effect(), {ROOT, APP, KEEPER, READS}),
    ("unbind/exchange/own", {"source": "/exchange/mine"}, Effect(), {ROOT, APP, KEEPER, SENDS}),
    ("get/a-1-1", {}, Effect(found="/queue/own"), {ROOT, NIGHT, ANN, KEEPER, READS}),
    ("trace/a-1-1", {}, Effect(found="/queue/own"), {ROOT, NIGHT, GRAFANA, KEEPER, OBSERVES}),
]


def those_that_may(request: str, headers: dict[str, str], effect: Effect | None) -> set[str]:
    access = AccessTable()
    access.change(GROUPS, ROWS)
    needs = needs_of(f"{CONTROL}{request}", headers, effect)
    return {name for name in (*GROUPS, "anonymous") if all(map(access.rights_of(Principal(name)).has, needs))}


def word_of(request: str) -> str:
    verb, _ = verb_of(f"{CONTROL}{request}")
    return "" if verb is None else verb.word()


@pytest.mark.parametrize("request_name", MAY)
def test_each_request_is_for_exactly_these_principals(request_name: str) -> None:
    assert those_that_may(request_name, {}, None) == MAY[request_name]


@pytest.mark.parametrize(("request_name", "headers", "effect", "may"), WITH_EFFECT)
def test_each_effect_is_for_exactly_these_principals(
    request_name: str, headers: dict[str, str], effect: Effect | None, may: set[str]
) -> None:
    assert those_that_may(request_name, headers, effect) == may


def test_each_verb_whose_need_depends_on_the_node_has_rows_with_an_effect() -> None:
    looked_at = {word_of(request) for request, _, effect, _ in WITH_EFFECT if effect is not None}
    any_right = {word_of(request) for request in MAY if any(need.or_any for need in needs_of(f"{CONTROL}{request}"))}

    assert looked_at == {*any_right, "get", "trace"}


def test_every_verb_has_a_row_and_a_function() -> None:
    assert set(VERBS) <= {word_of(request) for request in MAY}
    assert set(VERBS) == set(RESPOND)


def test_a_verb_about_destinations_has_a_row_for_a_queue_that_one_user_administers() -> None:
    about_queues = {word for word, verb in VERBS.items() if verb.changes and verb.form.startswith(f"{word}/queue")}

    assert about_queues <= {word_of(request) for request in MAY if request.endswith("/queue/own")}


def test_every_role_is_a_principal_of_the_table() -> None:
    assert set(ROLES) == {group for groups in GROUPS.values() for group in groups}
