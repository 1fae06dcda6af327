"""Record how a real RabbitMQ routes: what it exports, and which queues each of many messages goes to.

    apt-get install --no-install-recommends rabbitmq-server
    python -m tests.definitions.record_rabbitmq

It starts the broker of the Debian package on loopback, in a directory that goes with it, declares what stands below,
sends each case by STOMP, and writes `rabbitmq.json`. `tests/settings/definitions/test_rabbitmq_import.py` imports what
was exported into a node, and sends the same.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.others import OTHERS, started_in
from qmq.client.connection import NodeConnection
from qmq.wire.stomp import Frame

RECORDED = Path(__file__).with_name("rabbitmq.json")
PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmqctl"

QUIET_SECONDS = 2.0
"""Without a message for so long, all have come: longer than any queue below keeps one."""

Case = tuple[str, dict[str, str]]


def _exchange(name: str, type: str, **arguments: Any) -> dict[str, Any]:
    found = {key.replace("_", "-"): value for key, value in arguments.items()}
    return {"name": name, "vhost": "/", "type": type, "durable": True, "auto_delete": False, "arguments": found}


def _queue(name: str, **arguments: Any) -> dict[str, Any]:
    found = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": found}


def _binding(source: str, to: str, key: str = "", kind: str = "queue", **arguments: Any) -> dict[str, Any]:
    found = {name.replace("_", "-"): value for name, value in arguments.items()}
    said = {"destination": to, "destination_type": kind, "routing_key": key, "arguments": found}
    return {"source": source, "vhost": "/", **said}


# Queues are named after their bindings. `other.…` are those of bindings that QMQ has no counterpart of.
DIRECT = [("d.a", "a"), ("d.b", "b"), ("d.ab", "a"), ("d.ab", "b"), ("d.empty", ""), ("d.A", "A"), ("d.a.b", "a.b")]
TOPIC = ["#", "*", "", "eu", "eu.*", "eu.#", "#.new", "*.new", "*.*.new", "eu.*.new", "#.#", "*.#", "#.a.#", "*.*"]
TOPIC += ["a..b", "a.*.b", ".*", "*.", "app*", "eu.#.new.#"]
HEADERS: list[tuple[str, dict[str, Any]]] = [
    ("h.all", {"x-match": "all", "a": "1", "b": "2"}),
    ("h.any", {"x-match": "any", "a": "1", "b": "2"}),
    ("h.default", {"a": "1", "b": "2"}),
    ("h.one", {"x-match": "all", "a": "1"}),
    ("h.all.nothing", {"x-match": "all"}),
    ("h.any.nothing", {"x-match": "any"}),
    ("h.all.x", {"x-match": "all", "x-a": "1", "b": "2"}),
    ("h.any.x", {"x-match": "any", "x-a": "1", "b": "2"}),
    ("h.all.only.x", {"x-match": "all", "x-a": "1"}),
    ("h.any.only.x", {"x-match": "any", "x-a": "1"}),
    ("h.empty.value", {"x-match": "all", "a": ""}),
    ("h.number", {"x-match": "all", "n": 5}),
    ("other.all-with-x", {"x-match": "all-with-x", "x-a": "1"}),
    ("other.any-with-x", {"x-match": "any-with-x", "x-a": "1"}),
]
# An argument without value: in AMQP only, because an import refuses it. (queue, x-match, header)
PRESENT = [("h.all.present", "all", "a"), ("h.any.present", "any", "c")]

EXCHANGES = [
    _exchange("direct", "direct"),
    _exchange("topic", "topic"),
    _exchange("fanout", "fanout"),
    _exchange("headers", "headers"),
    _exchange("first", "direct", alternate_exchange="second"),
    _exchange("second", "topic", alternate_exchange="third"),
    _exchange("third", "fanout"),
    _exchange("to-nowhere", "direct", alternate_exchange="nowhere"),
    _exchange("without-alternate", "topic"),
    _exchange("behind", "fanout"),
    _exchange("dead", "topic", alternate_exchange="dead-rest"),
    _exchange("dead-rest", "fanout"),
    _exchange("dead-none", "direct"),
    _exchange("in", "direct"),
]

QUEUES = [
    *(_queue(name) for name in sorted({name for name, _ in DIRECT} | {name for name, _ in HEADERS})),
    *(_queue(f"t.{pattern}".replace("*", "STAR").replace("#", "HASH")) for pattern in TOPIC),
    *(_queue(name) for name, _, _ in PRESENT),
    *map(_queue, ["f.1", "f.2", "f.3", "alt.first", "alt.second", "alt.third", "plain", "Plain", "p.d", "p.t"]),
    *map(_queue, ["p.f", "p.h", "t.twice", "dead.all", "dead.jobs", "dead.own", "dead.rest", "other.behind"]),
    _queue("kept", max_length=1000, max_length_bytes=1_000_000, overflow="reject-publish", max_priority=9),
    _queue("lazy", queue_mode="lazy", single_active_consumer=True, expires=3_600_000),
    {**_queue("transient"), "durable": False},
    {**_queue("fleeting"), "auto_delete": True},
    _queue("x.fixed", message_ttl=100, dead_letter_exchange="dead", dead_letter_routing_key="jobs.fixed"),
    _queue("x.own", message_ttl=100, dead_letter_exchange="dead"),
    _queue("x.default", message_ttl=100, dead_letter_exchange="", dead_letter_routing_key="plain"),
    _queue("x.none", message_ttl=100, dead_letter_exchange="dead-none", dead_letter_routing_key="x"),
    _queue("x.missing", message_ttl=100, dead_letter_exchange="nowhere", dead_letter_routing_key="x"),
    _queue("x.chain", message_ttl=100, dead_letter_exchange="in", dead_letter_routing_key="next"),
    _queue("x.next", message_ttl=100, dead_letter_exchange="dead", dead_letter_routing_key="jobs.next"),
    _queue("x.round", message_ttl=100, dead_letter_exchange="in", dead_letter_routing_key="round"),
    _queue("x.long", max_length=1, dead_letter_exchange="dead", dead_letter_routing_key="long"),
]

BINDINGS = [
    *(_binding("direct", name, key) for name, key in DIRECT),
    *(_binding("topic", f"t.{key}".replace("*", "STAR").replace("#", "HASH"), key) for key in TOPIC),
    *(_binding("topic", "t.twice", key) for key in ("eu.#", "#.new", "eu.new")),
    *(_binding("headers", name, **arguments) for name, arguments in HEADERS),
    *(_binding("fanout", name, key) for name, key in [("f.1", ""), ("f.2", "k"), ("f.2", "l"), ("f.3", "m")]),
    _binding("first", "alt.first", "one"),
    _binding("second", "alt.second", "one.#"),
    _binding("second", "alt.second", "two"),
    _binding("third", "alt.third"),
    _binding("to-nowhere", "alt.first", "one"),
    _binding("without-alternate", "alt.second", "*.two"),
    _binding("direct", "behind", "a", kind="exchange"),
    _binding("behind", "other.behind"),
    _binding("amq.direct", "p.d", "k"),
    _binding("amq.topic", "p.t", "a.*"),
    _binding("amq.fanout", "p.f"),
    _binding("amq.headers", "p.h", a="1"),
    _binding("dead", "dead.all", "jobs.#"),
    _binding("dead", "dead.jobs", "jobs.fixed"),
    _binding("dead", "dead.jobs", "*.next"),
    _binding("dead", "dead.own", "own.key"),
    _binding("dead", "dead.own", "x.own"),
    _binding("dead-rest", "dead.rest"),
    *(
        _binding("in", name, key)
        for name, key in [("x.own", "own.key"), ("x.fixed", "to.fixed"), ("x.next", "next"), ("x.round", "round")]
    ),
]

USERS = {"ann": "administrator", "bob": "monitoring", "cy": "management", "di": "policymaker", "eve": "", "fay": ""}
"""User → its tags."""

PERMISSIONS = {
    "ann": (".*", ".*", ".*"),
    "bob": ("^$", "^$", "^t\\..*"),
    "cy": ("", r"^amq\.default$", r"^(plain|kept)$"),
    "di": (r"^jobs\.", r"^(topic|direct)$|^in$", "^f.*"),
    "eve": ("^own-.*$", "^[a-z]+$", "plain"),
    "fay": (".*", ".*", ".*"),
}
"""User → what it may configure, write and read."""

TOPIC_PERMISSIONS = [{"user": "fay", "vhost": "/", "exchange": "topic", "write": "^eu", "read": ".*"}]

POLICIES = [
    {"name": "long", "pattern": r"^jobs\.", "apply-to": "queues", "priority": 1, "definition": {"max-length": 100}},
    {
        "name": "dead",
        "pattern": "^(bad|worse)$",
        "apply-to": "queues",
        "priority": 0,
        "definition": {"dead-letter-exchange": "dead", "dead-letter-routing-key": "policy"},
    },
    {"name": "odd", "pattern": "[0-9]$", "apply-to": "all", "priority": 0, "definition": {"max-length": 5}},
]

PASSWORD = "a password of a test"  # noqa: S105


def _made() -> dict[str, Any]:
    """What is declared, as an import of RabbitMQ reads it."""
    permissions = [
        {"user": user, "vhost": "/", "configure": configure, "write": write, "read": read}
        for user, (configure, write, read) in PERMISSIONS.items()
    ]
    guest = {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    names = [*USERS.items(), ("guest", "administrator")]
    return {
        "users": [
            {"name": name, "password": "guest" if name == "guest" else PASSWORD, "tags": tags} for name, tags in names
        ],
        "vhosts": [{"name": "/"}, {"name": "second"}],
        "permissions": [*permissions, guest],
        "topic_permissions": TOPIC_PERMISSIONS,
        "policies": [{"vhost": "/", **policy} for policy in POLICIES],
        "exchanges": EXCHANGES,
        "queues": [*QUEUES, {**_queue("elsewhere"), "vhost": "second"}],
        "bindings": BINDINGS,
    }


def cases() -> list[Case]:
    """(destination, headers) of each message, with keys as they are."""
    found: list[Case] = [(f"/exchange/direct/{key}", {}) for key in ("a", "b", "", "A", "a.b", "missing")]
    topics = ["", "eu", "eu.new", "eu.de.new", "eu.de.old", "new", "a", "x.a.y", "a.a", "a..b", "a.x.b", ".", ".a"]
    topics += ["a.", "..", "apple", "eu.", "eu..new", "eu.x.new.y", "x.new"]
    found += [(f"/exchange/topic/{key}", {}) for key in topics]
    found += [(f"/exchange/fanout/{key}", {}) for key in ("", "k", "other")]
    sent: list[dict[str, str]] = [
        {},
        {"a": "1"},
        {"b": "2"},
        {"a": "1", "b": "2"},
        {"a": "1", "b": "3"},
        {"a": "2", "b": "2"},
        {"a": ""},
        {"a": "other"},
        {"c": "3"},
        {"A": "1", "B": "2"},
        {"x-a": "1"},
        {"x-a": "1", "b": "2"},
        {"x-a": "2", "b": "2"},
        {"a": "1", "b": "2", "c": "3", "d": "4"},
        {"n": "5"},
    ]
    found += [("/exchange/headers", headers) for headers in sent]
    found += [(f"/exchange/first/{key}", {}) for key in ("one", "one.more", "two", "three", "")]
    found += [(f"/exchange/second/{key}", {}) for key in ("one", "three")]
    found += [(f"/exchange/to-nowhere/{key}", {}) for key in ("one", "two")]
    found += [(f"/exchange/without-alternate/{key}", {}) for key in ("one.two", "one", "")]
    found += [(f"/exchange/amq.direct/{key}", {}) for key in ("k", "l")]
    found += [(f"/exchange/amq.topic/{key}", {}) for key in ("a.b", "a", "b.a")]
    found += [("/exchange/amq.fanout/any", {}), ("/exchange/amq.headers", {"a": "1"}), ("/exchange/amq.headers", {})]
    found += [(f"/amq/queue/{name}", {}) for name in ("plain", "Plain", "d.a", "kept", "transient")]
    # Messages that expire, or do not fit: dead letters.
    found += [
        (f"/amq/queue/x.{name}", {})
        for name in ("fixed", "own", "default", "none", "missing", "chain", "next", "round")
    ]
    found += [("/exchange/in/own.key", {}), ("/exchange/in/to.fixed", {}), ("/exchange/in/next", {})]
    found += [("/amq/queue/x.long", {}), ("/amq/queue/x.long", {}), ("/amq/queue/x.long", {})]
    return found


class _Client(NodeConnection):
    """As `host`, RabbitMQ takes the virtual host."""

    def _log_in(self, login: str | None, passcode: str | None) -> None:
        self.host = "/"
        super()._log_in(login, passcode)

    def refusal(self, frame: Frame) -> Exception:
        return SystemExit(f"{dict(frame.head.headers)}: {frame.body.decode()}")


def _escaped(destination: str) -> str:
    return quote(destination, safe="/")


def _record(client: NodeConnection) -> list[list[str]]:
    """The queues that each case goes to, in order of names."""
    sinks = [queue["name"] for queue in QUEUES if not queue["name"].startswith("x.")] + ["x.long"]
    outcomes: list[list[str]] = []
    for number, (destination, headers) in enumerate(cases()):
        named = [("destination", _escaped(destination)), ("persistent", "true"), *headers.items()]
        client.request("SEND", named, b"%d" % number)
        outcomes.append([])
    for name in sinks:
        client.write(client.frame("SUBSCRIBE", [("destination", f"/amq/queue/{quote(name, safe='')}"), ("id", name)]))
    while frame := client.receive(QUIET_SECONDS):
        outcomes[int(frame.body)].append(frame.head.headers["subscription"])
    return [sorted(found) for found in outcomes]


def _ctl(environment: Mapping[str, str], *arguments: str) -> str:
    loopback = {"RABBITMQ_CTL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}"}
    done = subprocess.run(
        [PROGRAM, *arguments],
        env={**environment, **loopback, "PATH": "/usr/sbin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"rabbitmqctl {arguments[0]}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _bind_present(queue: str, match: str, header: str) -> str:
    """Erlang that binds `queue` to the headers exchange, for messages that have `header`."""
    exchange, to = (
        f'{{resource, <<"/">>, {kind}, <<"{name}">>}}' for kind, name in [("exchange", "headers"), ("queue", queue)]
    )
    arguments = f'[{{<<"x-match">>, longstr, <<"{match}">>}}, {{<<"{header}">>, void, undefined}}]'
    return f'rabbit_binding:add({{binding, {exchange}, <<>>, {to}, {arguments}}}, <<"guest">>).'


def main() -> None:
    """Record everything."""
    other = OTHERS[0]
    if not other.is_installed():
        raise SystemExit(f"{other.name} is not installed: apt-get install --no-install-recommends {other.package}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        place = Path(name)
        with started_in(place, other, None) as (address, _, environment):
            _ctl(environment, "await_startup")
            # Else it is the name of this machine.
            _ctl(environment, "set_cluster_name", "recorded")
            made, exported = place / "made.json", place / "exported.json"
            made.write_text(json.dumps(_made()))
            _ctl(environment, "import_definitions", str(made))
            for queue, match, header in PRESENT:
                _ctl(environment, "eval", _bind_present(queue, match, header))
            _ctl(environment, "export_definitions", str(exported))
            with _Client(address, login="guest", passcode="guest") as client:
                outcomes = _record(client)
            definitions = json.loads(exported.read_text())
    recorded = {
        "definitions": definitions,
        "cases": [
            {"destination": destination, "headers": headers, "queues": queues}
            for (destination, headers), queues in zip(cases(), outcomes, strict=True)
        ],
    }
    RECORDED.write_text(_text(recorded))
    print(f"{definitions['rabbit_version']}: {len(outcomes)} cases", file=sys.stderr)


def _text(recorded: Mapping[str, Any]) -> str:
    """With one line for each entry, so that a difference can be read."""
    definitions = ",\n".join(
        f"  {json.dumps(part)}: "
        + (_lines(sorted(found, key=str), "    ") if isinstance(found, list) else json.dumps(found))
        for part, found in sorted(recorded["definitions"].items())
    )
    return f'{{"definitions": {{\n{definitions}\n}},\n"cases": {_lines(recorded["cases"], "  ")}\n}}\n'


def _lines(found: list[Any], indent: str) -> str:
    return "[\n" + ",\n".join(indent + json.dumps(one, sort_keys=True) for one in found) + "]"


if __name__ == "__main__":
    main()
