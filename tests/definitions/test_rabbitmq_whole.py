"""Files of RabbitMQ as a whole: each entry is imported or named, and what is imported is what a node takes."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from qmq.broker.routing.binding import read_binding, read_exchange
from qmq.config.definition_values import read_permission, read_policy, read_queue, read_user
from qmq.definitions.definition import NAME_BYTES_MAX, Key, text_of
from qmq.definitions.document import read_document
from qmq.definitions.rabbitmq import MARKS, ImportTarget
from qmq.definitions.rabbitmq_patterns import parts_of
from qmq.definitions.rabbitmq_topology import IMPLIED
from qmq.definitions.rabbitmq_users import CLEAR_PASSWORDS_MAX, clear_passwords
from qmq.errors import Refused
from qmq.model.routing_names import TYPES
from tests.definitions.rabbitmq_files import file

HASH = "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$RdescudvJCsgt3ub+b2bWRWJTmaaZ5oZ4CaNd2SbtjQ"
MESH = ImportTarget({"vhost": {"there": {}}, "user": {"here": {}}, "queue": {"/queue/there": {}}}, {"secret": HASH})
READERS: dict[str, Any] = {
    "user": read_user,
    "permission": read_permission,
    "policy": read_policy,
    "queue": read_queue,
    "exchange": read_exchange,
    "binding": lambda name, value: read_binding(value),
    "vhost": lambda name, value: None,
}


def read(found: dict[str, Any], target: ImportTarget = MESH) -> tuple[Any, list[str]]:
    return read_document(json.dumps(found).encode(), target)


def prefix_of(entry: dict[str, Any]) -> str:
    vhost = str(entry.get("vhost", "/"))
    return "" if vhost == "/" else f"{vhost.removeprefix('/')}~"


def is_imported(part: str, entry: dict[str, Any], values: Any) -> bool:
    """Whether the mesh will have what this entry says, as far as its name shows it."""
    prefix, name = prefix_of(entry), entry.get("name")
    match part:
        case "vhosts":
            return name == "/" or str(name).removeprefix("/") in {**values.get("vhost", {}), **MESH.present["vhost"]}
        case "users":
            return name in values.get("user", {})
        case "permissions":
            asked = {entry.get(right, "") for right in ("configure", "write", "read")}
            mine = [one for one in values.get("permission", {}).values() if one["user"] == entry.get("user")]
            return asked <= {"", "^$"} or bool(mine)
        case "policies":
            said = entry.get("definition")
            parts = parts_of(entry.get("pattern", "")) or []
            patterns = {f"/{kind}/{prefix}{part.pattern}" for kind in ("queue", "exchange") for part in parts}
            asks_nothing = not said or (isinstance(said, dict) and set(said) <= set(IMPLIED))
            return asks_nothing or not patterns.isdisjoint(values.get("policy", {}))
        case "queues":
            return f"/queue/{prefix}{name}" in values.get("queue", {})
        case "exchanges":
            is_there = name in ["", *(f"amq.{type}" for type in TYPES)]
            return is_there or f"{prefix}{name}" in values.get("exchange", {})
        case "bindings":
            ends = [f"/exchange/{prefix}{entry.get('source')}", prefix + str(entry.get("destination"))]
            made = [one for one in values.get("binding", {}).values() if one["source"] == ends[0]]
            ours = [one for one in made if (one.get("queue") or one.get("exchange")).endswith(ends[1])]
            return entry.get("source") == "" or bool(ours)
    return part == "global_parameters" and name == "cluster_name"


def neither(found: dict[str, Any], values: Any, left_out: list[str]) -> Iterator[str]:
    for part, entries in found.items():
        for entry in entries if isinstance(entries, list) else ():
            if not isinstance(entry, dict):
                named = any(line.startswith(f"{part}: ") for line in left_out)
            else:
                said = entry.get("name") or entry.get("user") or entry.get("source")
                starts = (f"{part}: {said}", f"{part}: {said!r}") if said else (f"{part}: ",)
                named = any(line.startswith(starts) for line in left_out) or is_imported(part, entry, values)
            if not named:
                yield f"{part}: {entry}"


def test_every_entry_is_imported_or_named_and_a_node_takes_what_is_imported() -> None:
    imported = 0
    for seed in range(2000):
        found = file(seed)
        values, left_out = read(found)

        assert list(neither(found, values, left_out)) == [], f"seed {seed}"
        for kind, of_kind in values.items():
            for name, value in of_kind.items():
                try:
                    READERS[kind](name, value)
                    text_of(Key(kind, name), value)
                except Exception as error:
                    raise AssertionError(f"seed {seed}: {kind} {name}") from error
                assert len(name.encode()) <= NAME_BYTES_MAX and name.isprintable(), f"seed {seed}: {kind} {name}"
                queues = [name if kind == "queue" else "", value.get("queue", ""), value.get("dead_letter", "")]
                assert all(len(queue.encode()) <= 255 for queue in queues), f"seed {seed}: {kind} {name}"
                imported += 1
    assert imported > 5000


@pytest.mark.parametrize("mark", MARKS)
def test_a_file_needs_no_version(mark: str) -> None:
    values, left_out = read({mark: []})

    assert (values, left_out) == ({}, [])


@pytest.mark.parametrize("found", [{}, [], 5, {"definitions": {}}, {"version": 3}])
def test_what_has_no_part_of_a_file_is_none(found: Any) -> None:
    with pytest.raises(Refused, match="one of RabbitMQ some of vhosts, users"):
        read(found)


def queue(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "vhost": "/", **more}


def test_a_name_that_is_too_long_is_left_out_and_the_others_are_imported() -> None:
    long = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d" * 249}
    vhost = "v" * 60
    values, left_out = read(
        {
            "vhosts": [{"name": vhost}],
            "queues": [
                queue("ok", arguments=long),
                queue("q" * 249),
                queue("q" * 200, vhost=vhost),
                queue("q" * 187, vhost=vhost),
            ],
            "exchanges": [{"name": "e", "type": "topic"}],
            "bindings": [
                {"source": "e", "destination": "q" * 249, "routing_key": "k"},
                {"source": "e", "destination": "ok", "routing_key": " " * 255, "arguments": {"h": "v" * 500}},
            ],
        }
    )

    assert values["queue"] == {"/queue/ok": {}, f"/queue/{vhost}~{'q' * 187}": {}}
    assert "binding" not in values
    limit = "must have at most 255 bytes (limits.destination_bytes_max)"
    assert [limit in line for line in left_out] == [True, True, True, False, False]
    assert "ok: dead-letter-exchange" in left_out[0]
    assert "its name here has more than 1024 bytes" in left_out[4]


def test_a_password_in_clear_is_hashed_and_any_other_user_gets_its_password_from_an_operator() -> None:
    users = [
        {"name": "ann", "password": "secret", "tags": "administrator"},
        {"name": "bob", "password_hash": "abcd", "tags": ""},
        {"name": "cy", "password_hash": ""},
        {"name": "di", "password": "of another file"},
        {"name": "eve", "password": ""},
        {"name": "here", "password": "secret"},
        {"password": "secret"},
    ]

    values, left_out = read({"users": users})

    assert values["user"].pop("ann") == {"groups": ["administrator"], "password_hash": HASH}
    assert values["user"] == {"bob": {}, "cy": {}, "di": {}, "eve": {}}
    commands = [
        f"users: {name}: its password; set one: qmq users add {name} --passcode-stdin" for name in values["user"]
    ]
    assert left_out == [
        *commands,
        "users: here: is a user already, and stays as it is",
        "users: an entry without a name: its name or tags cannot be read",
    ]
    assert "secret" not in json.dumps([values, left_out])


def test_the_passwords_in_clear_are_found_none_twice_and_only_so_many() -> None:
    users: list[Any] = [{"name": str(n), "password": f"p{n}"} for n in range(CLEAR_PASSWORDS_MAX + 5)]
    odd = [{"password": ""}, {"password": 5}, 7, {"name": "x"}, users[0]]

    found = clear_passwords(json.dumps({"users": odd + users}).encode())

    assert found == [f"p{n}" for n in range(CLEAR_PASSWORDS_MAX)]
    for other in (b"{", b'["password"]', b'{"users": {"password": "x"}}', b'{"password": 1}'):
        assert clear_passwords(other) == []


def test_what_the_mesh_has_need_not_be_in_the_file() -> None:
    present = {
        "vhost": {"shop": {}},
        "exchange": {"shop~out": {}},
        "queue": {"/queue/shop~inbox": {}},
        "policy": {"/queue/shop~*": {}},
    }
    values, left_out = read(
        {
            "queues": [queue("jobs", vhost="shop"), queue("lost", vhost="nowhere"), queue("shop~a")],
            "exchanges": [
                {"name": "e", "vhost": "/shop", "type": "fanout", "arguments": {"alternate-exchange": "out"}}
            ],
            "bindings": [
                {"source": "out", "vhost": "shop", "destination": "inbox"},
                {"source": "amq.topic", "vhost": "shop", "destination": "e", "destination_type": "exchange"},
            ],
            "policies": [{"name": "p", "pattern": ".*", "definition": {"max-length": 5}}],
        },
        ImportTarget(present),
    )

    assert list(values["queue"]) == ["/queue/shop~jobs"] and list(values["policy"]) == ["/queue/*"]
    assert values["exchange"] == {"shop~e": {"type": "fanout", "alternate": "shop~out"}}
    assert list(values["binding"]) == [
        "/exchange/shop~out /queue/shop~inbox",
        "/exchange/shop~amq.topic /exchange/shop~e",
    ]
    assert left_out == [
        "queues: lost: its virtual host 'nowhere' is neither in the file nor in the mesh",
        "queues: shop~a: names in / that begin so are those of another virtual host here",
    ]


def test_a_user_of_the_mesh_keeps_what_it_may_do_in_virtual_hosts_of_which_the_file_says_nothing() -> None:
    rights = {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    found = {
        "users": [{"name": "ann"}],
        "permissions": [{"user": "ann", **rights}, {"user": "old", **rights}],
    }

    values, _ = read(found, ImportTarget({"vhost": {"shop": {}}, "user": {"old": {}}}))

    denied = {value["user"] for value in values["permission"].values() if "deny" in value}
    assert denied == {"ann"}


def test_what_a_virtual_host_says_of_itself_is_named() -> None:
    metadata = {"description": "ours", "tags": ["x"], "default_queue_type": "quorum", "protected_from_deletion": True}
    default = {"name": "/", "description": "Default virtual host", "metadata": {"description": "Default virtual host"}}

    _, left_out = read({"vhosts": [default, {"name": "shop", "description": "ours", "tags": [], "metadata": metadata}]})

    assert left_out == [
        "vhosts: shop: description = 'ours' has no counterpart",
        "vhosts: shop: tags = ['x'] has no counterpart",
        "vhosts: shop: protected_from_deletion = True has no counterpart",
    ]


def test_exchanges_whose_names_are_reserved_are_named_unless_they_are_predefined_here() -> None:
    types = {"amq.topic": "topic", "amq.mycompany": "direct", "amq.rabbitmq.trace": "topic", "amq.fanout": "direct"}

    _, left_out = read({"exchanges": [{"name": name, "type": type} for name, type in types.items()]})

    reserved = "names that begin with amq. are predefined, and this is none of them"
    assert left_out == [f"exchanges: {name}: {reserved}" for name in list(types)[1:]]


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ({"durable": "false"}, {"durable": False}),
        ({"durable": "true", "auto_delete": "True"}, {"auto_delete": True}),
        ({"durable": None}, {}),
        ({"durable": 0}, None),
        ({"auto_delete": "no"}, None),
        ({"arguments": {"x-consumer-timeout": 90_000}}, {"ack_timeout_seconds": 90.0}),
    ],
)
def test_flags_of_a_queue_may_be_text_and_its_consumer_timeout_is_its_ack_timeout(
    entry: dict[str, Any], value: dict[str, Any] | None
) -> None:
    values, left_out = read({"queues": [queue("q", **entry)]})

    assert values.get("queue", {}).get("/queue/q") == value
    assert len(left_out) == (value is None), left_out


def test_of_two_entries_with_one_name_the_first_counts_and_the_other_is_named() -> None:
    rights = {"user": "here", "vhost": "/", "configure": "^a$", "write": "", "read": ""}
    found = {
        "queues": [queue("q", durable=False), queue("q"), queue("q", durable=False)],
        "exchanges": [{"name": "e", "type": "topic"}, {"name": "e", "type": "fanout"}],
        "permissions": [rights, {**rights, "read": "^a$"}],
    }

    values, left_out = read(found)

    assert values["queue"] == {"/queue/q": {"durable": False}} and values["exchange"] == {"e": {"type": "topic"}}
    assert {tuple(one["allow"]) for one in values["permission"].values()} == {("declare",)}
    again = "another entry before it has this name, and counts"
    assert left_out == [f"permissions: here: {again}", f"queues: q: {again}", f"exchanges: e: {again}"]


def test_the_seeds_make_files_that_differ() -> None:
    assert len({json.dumps(file(seed)) for seed in random.Random(0).sample(range(2000), 50)}) == 50
