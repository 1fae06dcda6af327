"""Users and permissions that RabbitMQ exported, in the words of QMQ."""

import json
from typing import Any

import pytest

from qmq.access.rights import AccessTable
from qmq.access.rules import Action, Principal
from qmq.config.definition_values import permission_values, read_permission, read_user, user_values
from qmq.definitions.document import read_document
from qmq.definitions.rabbitmq import ImportTarget
from tests.definitions.test_rabbitmq import convert


def user(name: str, *tags: str, **more: Any) -> dict[str, Any]:
    hashed = {"password_hash": "c2VjcmV0", "hashing_algorithm": "rabbit_password_hashing_sha256"}
    return {"name": name, "tags": list(tags), "limits": {}, **hashed, **more}


def permission(user: str = "ann", configure: str = "^$", write: str = "^$", read: str = "^$") -> dict[str, Any]:
    return {"user": user, "vhost": "/", "configure": configure, "write": write, "read": read}


def test_tags_are_groups_and_passwords_stay_behind() -> None:
    values, left_out = convert(
        users=[
            user("ann", "administrator"),
            user("bob", "monitoring", "management"),
            user("cy", "policymaker"),
            user("di", "custom"),
            user("eve", password_hash=""),
            {**user("fay"), "tags": "administrator, management"},
        ]
    )

    assert values["user"] == {
        "ann": {"groups": ["administrator"]},
        "bob": {"groups": ["observer"]},
        "cy": {"groups": ["observer"]},
        "di": {},
        "eve": {},
        "fay": {"groups": ["administrator", "observer"]},
    }
    for name, value in values["user"].items():
        assert user_values(read_user(name, value)) == value
    set_one = "its password; set one: qmq users add"
    assert left_out == [
        f"users: ann: {set_one} ann --passcode-stdin --group administrator",
        f"users: bob: {set_one} bob --passcode-stdin --group observer",
        f"users: cy: {set_one} cy --passcode-stdin --group observer",
        "users: cy: the tag 'policymaker' is group observer, which may not change policies",
        f"users: di: {set_one} di --passcode-stdin",
        "users: di: the tag 'custom' has no counterpart",
        f"users: eve: {set_one} eve --passcode-stdin",
        f"users: fay: {set_one} fay --passcode-stdin --group administrator --group observer",
    ]
    assert "c2VjcmV0" not in json.dumps([values, left_out])


def test_a_name_is_quoted_in_the_command_that_gives_it_a_password() -> None:
    _, left_out = convert(users=[user("al & bo")])

    assert left_out == ["users: al & bo: its password; set one: qmq users add 'al & bo' --passcode-stdin"]


def test_a_user_that_exists_keeps_its_password_and_groups() -> None:
    data = json.dumps({"rabbit_version": "3", "users": [user("ann")], "permissions": [permission(read=".*")]}).encode()

    values, left_out = read_document(data, ImportTarget({"user": {"ann": {}}}))

    assert "user" not in values and len(values["permission"]) == 3
    assert left_out == ["users: ann: is a user already, and stays as it is"]


@pytest.mark.parametrize(
    ("found", "allowed"),
    [
        (permission(), []),
        (permission("ann", "", "", ""), []),
        (
            permission("ann", ".*", ".*", ".*"),
            ["send,subscribe,declare /exchange/*", "send,subscribe /topic/*", "send,subscribe,declare /queue/*"],
        ),
        (permission(configure="^a$"), ["declare /exchange/a", "declare /queue/a"]),
        (permission(configure="^a"), ["declare /exchange/a*", "declare /queue/a*"]),
        (permission(write="^x$"), ["send /exchange/x", "send /exchange/x/*"]),
        (permission(write="^jobs.*"), ["send /exchange/jobs*"]),
        (
            permission(write=r"^amq\.default$"),
            ["send /exchange/amq.default", "send /exchange/amq.default/*", "send /queue/*"],
        ),
        (permission(write="^amq"), ["send /exchange/amq*", "send /queue/*", "send /topic/*"]),
        (permission(read="^q$"), ["subscribe /exchange/q", "subscribe /exchange/q/*", "subscribe /queue/q"]),
        (permission(read="q"), None),
        (permission(configure="^a$", write="[a-z]", read="^a$"), None),
        ({**permission(), "read": 5}, None),
        (permission("nobody", ".*", ".*", ".*"), None),
        ({**permission("ann", ".*", ".*", ".*"), "vhost": "other"}, None),
    ],
)
def test_a_permission_is_imported_as_a_whole_or_listed(found: dict[str, Any], allowed: list[str] | None) -> None:
    values, left_out = convert(users=[user("ann")], permissions=[found])

    names = list(values.get("permission", {}))
    assert sorted(names) == sorted(f"user:ann allow {one}" for one in allowed or [])
    assert [line.partition(":")[0] for line in left_out] == ["users"] + ["permissions"] * (allowed is None)
    for name, value in values.get("permission", {}).items():
        assert permission_values(read_permission(name, value)) == value


def test_permissions_of_a_user_whose_topics_are_narrowed_are_left_out() -> None:
    narrow = {"user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^a", "read": ".*"}
    wide = {**narrow, "user": "bob", "write": ".*"}

    values, left_out = convert(
        users=[user("ann"), user("bob")],
        permissions=[permission("ann", read="^a$"), permission("bob", configure="^a$")],
        topic_permissions=[narrow, wide],
    )

    assert list(values["permission"]) == ["user:bob allow declare /queue/a", "user:bob allow declare /exchange/a"]
    assert [line.partition(": ")[0] for line in left_out if not line.startswith("users")] == [
        "permissions",
        "topic_permissions",
        "topic_permissions",
    ]


def test_imported_rights_allow_what_they_allowed() -> None:
    values, _ = convert(users=[user("ann")], permissions=[permission("ann", r"^own\.", "^(orders|eu)$", "^own|^rest$")])
    table = AccessTable()
    rows = [read_permission(name, value).permission for name, value in values["permission"].items()]
    table.change({"ann": frozenset()}, rows)
    rights = table.rights_of(Principal("ann"))

    allowed = {
        (Action.DECLARE, "/queue/own.a"): True,
        (Action.DECLARE, "/queue/own"): False,
        (Action.SEND, "/exchange/orders/any.key"): True,
        (Action.SEND, "/exchange/orders2/any.key"): False,
        (Action.SEND, "/queue/orders"): False,
        (Action.SUBSCRIBE, "/queue/own"): True,
        (Action.SUBSCRIBE, "/queue/rest"): True,
        (Action.SUBSCRIBE, "/queue/rest.more"): False,
        (Action.SUBSCRIBE, "/topic/own"): False,
        (Action.ADMINISTER, "/queue/own"): False,
    }
    assert {one: rights.allows(*one) for one in allowed} == allowed
