"""Requests and replies between nodes as they were sent before calls were typed (8c8d0a53).

A node of that version and this one work in one mesh: each reads what the other sends.
"""

from typing import Any

import msgpack
import msgspec
import pytest

from qmq.mesh.peers.calls import PeerCall
from tests.node.test_peer_requests import CALL_TYPES, read

BY_NAME = {call.__name__: call for call in CALL_TYPES}

REQUESTS: dict[str, Any] = {
    "DedupCall": {"dedup": ["0" * 32], "node": "a", "at": 1},
    "OpinionCall": {"hears": "c"},
    "HeldCall": {"holds": "c"},
    "QuarantineCall": {"aside": [["a", (1 << 64) - 1, 5]]},
    "DefinitionsCall": {"digest": "00000000000000ff", "after": ["", ""], "versions": [["policy", "/queue/q", None]]},
    "ConnectionsCall": {"query": "connections", "wanted": {"user": "ann", "limit": 5, "after": "a/1"}},
    "KickCall": {"query": "kick", "wanted": {"id": "a/1", "reason": "why", "but": "b/2", "is_dry_run": True}},
    "LinksCall": {"query": "links", "wanted": {}},
    "MemoryMessagesCall": {"query": "memory-messages", "wanted": {"queue": "/queue/q", "count": 1}},
    "WhereaboutsCall": {"query": "whereabouts", "wanted": {"id": "a-00000000000000ff-1", "records": []}},
    "UseCall": {"query": "queue-use", "wanted": {"queues": ["/queue/q"]}},
    "OverviewCall": {"part": "overview", "wanted": {}},
    "FirstsCall": {"part": "firsts", "wanted": {"sort": "depth", "is_reversed": True, "text": "", "count": 51}},
    "RowsCall": {"part": "rows", "wanted": {"names": ["/queue/q"]}},
    "ControlRequest": {"what": "/control/list", "about": "/queue/", "after": "", "limit": 100, "oldest": False},
    "MessageCall": {"what": "trace", "id": "a-00000000000000ff-1"},
    "PullAcksCall": {"user": None, "acks": [["token", "a", 1, "key", 2, "ack", True]]},
    "JobCall": {
        "job": {
            "verb": "purge",
            "queue": "/queue/q",
            "id": "a-1",
            "target": "",
            "selector": "",
            "count": 0,
            "is_dry_run": False,
            "is_forced": False,
        },
        "origin": "",
        "stop": False,
    },
    "FindJob": {"do": "find", "job": 1 << 62},
    "FirstJob": {"do": "first", "tube": "default", "state": "ready"},
    "DeleteJob": {"do": "delete", "dot": "a-00000000000000ff-1", "id": "a-00000000000000ff/1"},
    "KickTube": {"do": "kick-tube", "tube": "default", "bound": 1, "what": "buried", "id": "a-00000000000000ff/1"},
    "PauseTube": {"do": "pause", "tube": "default", "seconds": 3},
    "TubeCounts": {"do": "tube", "tube": "default"},
    "ServerCounts": {"do": "server"},
    "TubeNames": {"do": "tubes"},
    "SnapshotCall": ["rest", "a", 1, 0, 5, ""],
    "SettledCall": ["settled", [["a", 1, [1, -2]]]],
    "SealsCall": ["seals", ["a", 1, "b", 2]],
    "DurablesCall": ["durables", ["/fanout/f", "client", "name"]],
}

REPLIES: dict[str, Any] = {
    "DedupCall": [[0, "a", 1, -1]],
    "OpinionCall": {"hears": True, "agrees_in": None},
    "HeldCall": {"holds": None},
    "QuarantineCall": {"aside": [0]},
    "DefinitionsCall": {"rows": [["policy", "/queue/q", "{}", [1, 0, "a", 1, 1], None]], "next": None}
    | {"is_same": False, "stable": {"a-00000000000000ff": 1}},
    "ConnectionsCall": {"connections": 1, "rows": [{"id": "a/1", "node": "a"}]},
    "LinksCall": {"links": 0, "rows": []},
    "MemoryMessagesCall": {"rows": [], "more": False, "held": 0},
    "WhereaboutsCall": {"has_record": True, "in_flight": [], "settled_by": {}},
    "UseCall": {"queues": {"/queue/q": [True, 0.5, False]}},
    "FirstsCall": {"names": ["/queue/q"], "values": [3], "queues": 1, "age_seconds": 0.0},
    "RowsCall": {"rows": [{"destination": "/queue/q", "messages": 1}]},
    "ControlRequest": {"destinations": [{"destination": "/queue/q"}], "next": "/queue/q"},
    "PullAcksCall": ["acknowledged"],
    "JobCall": {"running": True, "origin": "a-00000000000000ff"},
    "FindJob": {"found": False},
    "DeleteJob": {"done": None},
    "KickTube": {"count": 1},
    "PauseTube": {},
    "TubeCounts": {"ready": 1, "is_known": 1},
    "TubeNames": {"tubes": ["default"]},
    "SnapshotCall": [5, 0, 0, [], [["/queue/q", 3, 1]]],
    "SettledCall": [[["a", 1, [1]]], msgpack.packb([])],
    "SealsCall": [["a", 1, 5, False, ""]],
    "DurablesCall": [[]],
}


def has(found: Any, wanted: Any) -> bool:
    """Whether `found` says all that `wanted` does; an object may say more."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(name in found and has(found[name], one) for name, one in wanted.items())
    return bool(found == wanted)


def pack(call: type[PeerCall[Any]], value: Any) -> bytes:
    # With the libraries that earlier versions used, which put a space behind commas and colons.
    return msgpack.packb(value) if call.format is msgspec.msgpack else msgspec.json.format(msgspec.json.encode(value))


@pytest.mark.parametrize("name", REQUESTS)
def test_request_of_an_earlier_version_is_read_and_sent_as_it_was(name: str) -> None:
    call = BY_NAME[name]

    found = read(call, pack(call, REQUESTS[name]))

    assert type(found) is call
    assert has(call.format.decode(found.request().body), REQUESTS[name])


@pytest.mark.parametrize("name", REPLIES)
def test_reply_of_an_earlier_version_is_read_and_given_as_it_was(name: str) -> None:
    call = BY_NAME[name]
    asked = read(call, pack(call, REQUESTS[name]))

    reply = call.decode_reply(pack(call, REPLIES[name]))

    asked.check(reply)
    assert has(call.format.decode(call.encode_reply(reply)), REPLIES[name])


def test_call_about_a_row_has_one_field_more_than_one_about_a_range() -> None:
    row = ["rest", "a", 1, 4, 5, "", 5]

    found = read(BY_NAME["SnapshotCall"], msgpack.packb(row))

    assert msgpack.unpackb(found.request().body) == row


def test_page_of_definitions_and_word_about_later_ones_have_the_fields_of_earlier_versions_only() -> None:
    call = BY_NAME["DefinitionsCall"]

    later, page = (msgspec.json.decode(call.encode_reply(call.decode_reply(one))) for one in (b'{"later":true}', PAGE))

    assert later == {"later": True}
    assert page == msgspec.json.decode(PAGE)


PAGE = b'{"rows":[],"next":["kind","name"],"is_same":true,"stable":{}}'
