"""Calls between nodes: each is generated from its struct, and is refused with one wrong value, wherever that is."""

import copy
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final, get_args

import msgspec
import pytest
from msgspec import inspect

from qmq.errors import Refused
from qmq.mesh.peers.calls import INVALID, CallTable, NamedCall, PeerCall
from qmq.node.peer_requests import CALLS
from qmq.protocols.beanstalk import calls as beanstalk
from qmq.protocols.http import pulls
from qmq.replication.protocol.frames import PeerRequest

ID: Final = "a-00000000000000ff-1"
"""Of a message."""

TEXTS: Final = ("a", "00000000000000ff00000000000000ff", "ready", "buried", "purge")
"""One of these fits each pattern."""

SPECIAL: Final[dict[str, Any]] = {
    "dot": ID,
    "about": "/queue/q",
    "incarnation": 1,
    "next": "a/1",
    "flat": ["a", 1],
    "versions": [["kind", "name", [1, 1, "a", 1, 1]]],
}
"""Field → a value, where `__post_init__` asks for more than the type does."""

ROW: Final = {"id": "a/1", "destination": "/queue/q", "at_us": 1}

Path = tuple[Any, ...]


def sample(type_: inspect.Type, name: str = "") -> Any:
    """A valid value, as JSON or msgpack has it."""
    if name in SPECIAL:
        return copy.deepcopy(SPECIAL[name])
    match type_:
        case inspect.IntType():
            return max(type_.ge or 0, 1 if type_.gt is not None else 0)
        case inspect.StrType():
            return next(text for text in TEXTS if re.search(type_.pattern or "", text))
        case inspect.BoolType():
            return True
        case inspect.FloatType():
            return 0.5
        case inspect.BytesType():
            return b"x"
        case inspect.LiteralType():
            return type_.values[0]
        case inspect.ListType():
            return [sample(type_.item_type)]
        case inspect.TupleType():
            return [sample(one) for one in type_.item_types]
        case inspect.DictType():
            is_row = isinstance(type_.value_type, inspect.AnyType)
            return dict(ROW) if is_row else {sample(type_.key_type): sample(type_.value_type)}
        case inspect.UnionType():
            return sample(next(one for one in type_.types if not isinstance(one, inspect.NoneType)))
        case inspect.StructType():
            return of_struct(type_)
        case _:
            return 1


def of_struct(type_: inspect.StructType) -> Any:
    fields = {one.encode_name: sample(one.type, one.encode_name) for one in type_.fields}
    if type_.cls.__name__ == "ControlRequest":
        fields["what"] = "/control/count-msgs"
    if type_.array_like:
        return [*([type_.tag] if type_.tag else []), *fields.values()]
    return {**({type_.tag_field: type_.tag} if type_.tag else {}), **fields}


def wrong(type_: inspect.Type, name: str = "") -> Iterator[tuple[Path, Any]]:
    """Where in a valid value, and what there makes it invalid: another type, and one over each bound."""
    match type_:
        case inspect.AnyType():
            return
        case inspect.IntType():
            yield from [((), one) for one in ("x", 0.5, None, True)]
            bounds = (type_.ge, -1), (type_.le, 1), (type_.gt, 0), (type_.lt, 0)
            yield from [((), bound + over) for bound, over in bounds if bound is not None]
            yield from [((), one) for one in (-1, 1 << 64) if name == "incarnation"]
        case inspect.StrType():
            yield from [((), one) for one in (5, ["x"], {})]
            yield from [((), "x" * (most + 1)) for most in [type_.max_length] if most is not None]
            yield from [((), "?\n") for pattern in [type_.pattern] if pattern]
        case inspect.BoolType():
            yield from [((), one) for one in (1, "true", None)]
        case inspect.FloatType() | inspect.BytesType():
            yield from [((), one) for one in ({}, [], True)]
        case inspect.LiteralType():
            yield from [((), one) for one in (5, "other")]
        case inspect.ListType():
            yield from [((), one) for one in (5, {"a": 1}, "x")]
            for most in [type_.max_length] if type_.max_length is not None else ():
                yield (), [sample(type_.item_type)] * (most + 1)
            if name not in SPECIAL:
                yield from [((0, *path), one) for path, one in wrong(type_.item_type)]
        case inspect.TupleType():
            yield from [((), one) for one in (5, [])]
            for at, item in enumerate(type_.item_types):
                yield from [((at, *path), one) for path, one in wrong(item)]
        case inspect.DictType():
            yield from [((), one) for one in (5, ["x"])]
            key = next(iter(sample(type_)))
            yield from [((key, *path), one) for path, one in wrong(type_.value_type)]
        case inspect.UnionType():
            accepts_none = any(isinstance(one, inspect.NoneType) for one in type_.types)
            kinds = [one for one in type_.types if not isinstance(one, inspect.NoneType)]
            found = wrong(kinds[0], name) if len(kinds) == 1 else iter([((), "x"), ((), {})])
            yield from [(path, one) for path, one in found if path or one is not None or not accepts_none]
        case inspect.StructType():
            yield from [((), one) for one in (5, "x", None)]
            before = 1 if type_.array_like and type_.tag else 0
            for at, field in enumerate(type_.fields, before):
                place = at if type_.array_like else field.encode_name
                yield from [((place, *path), one) for path, one in wrong(field.type, field.encode_name)]
        case _:
            raise NotImplementedError(type_)


def faults(call: type[PeerCall[Any]], type_: inspect.Type) -> Iterator[tuple[Path, Any]]:
    """Those that can be sent: msgpack has no integer of more than 64 bits."""
    for path, value in wrong(type_):
        if call.format is msgspec.json or type(value) is not int or -(1 << 63) <= value < 1 << 64:
            yield path, value


def with_value(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    changed = copy.copy(value)
    changed[path[0]] = with_value(value[path[0]], path[1:], new)
    return changed


def body_of(call: type[PeerCall[Any]], fields: Any) -> bytes:
    if issubclass(call, NamedCall):
        fields = {call.named_by: call.name, "wanted": fields}
    return call.format.encode(fields)  # type: ignore[no-any-return]


def types_in(module: ModuleType) -> list[type[PeerCall[Any]]]:
    """The calls that a protocol declares in a module."""
    found = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, PeerCall)]
    return [one for one in found if one.__module__ == module.__name__]


BEANSTALK = [call for call in types_in(beanstalk) if call.__struct_config__.tag]
TABLES = [CALLS, *[CallTable([one.by(print) for one in calls]) for calls in (BEANSTALK, types_in(pulls))]]
CALL_TYPES = sorted([call for table in TABLES for call in table.calls], key=lambda call: call.__name__)


def read(call: type[PeerCall[Any]], body: bytes) -> PeerCall[Any]:
    table = next(table for table in TABLES if call in table.calls)
    return table.read(PeerRequest(call.kind, body))


@pytest.mark.parametrize("call", CALL_TYPES)
def test_call_is_read_as_it_was_sent(call: type[PeerCall[Any]]) -> None:
    found = read(call, body_of(call, sample(inspect.type_info(call))))

    assert type(found) is call
    assert read(call, found.request().body) == found


@pytest.mark.parametrize("call", CALL_TYPES)
def test_call_with_one_wrong_value_is_refused(call: type[PeerCall[Any]]) -> None:
    type_ = inspect.type_info(call)
    valid = sample(type_)

    for path, value in faults(call, type_):
        with pytest.raises(Refused):
            found = read(call, body_of(call, with_value(valid, path, value)))
            raise AssertionError(f"{path} may be {value!r:.80}: {found}")


@pytest.mark.parametrize("call", CALL_TYPES)
def test_call_with_more_than_this_version_knows_is_read(call: type[PeerCall[Any]]) -> None:
    type_ = inspect.type_info(call)
    assert isinstance(type_, inspect.StructType)
    valid = sample(type_)
    longer = [*valid, "news"] if type_.array_like else {**valid, "news": {"of": "tomorrow"}}

    assert type(read(call, body_of(call, longer))) is call


PLAIN = [call for call in CALL_TYPES if "decode_reply" not in vars(call)]
"""Calls whose replies are what their type says."""


@pytest.mark.parametrize("call", PLAIN)
def test_reply_with_one_wrong_value_is_invalid(call: type[PeerCall[Any]]) -> None:
    (base,) = call.__orig_bases__  # type: ignore[attr-defined]
    type_ = inspect.type_info(get_args(base)[0])
    valid = sample(type_)
    call.decode_reply(call.format.encode(valid))

    for path, value in faults(call, type_):
        with pytest.raises(INVALID):
            found = call.decode_reply(call.format.encode(with_value(valid, path, value)))
            raise AssertionError(f"{path} may be {value!r:.80}: {found}")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 100_000, b"\x91" * 2000, b"\xff", b'"\\ud800"', b"1e999", b"9" * 5000]
)
@pytest.mark.parametrize("call", CALL_TYPES)
def test_what_is_no_call_is_refused(call: type[PeerCall[Any]], body: bytes) -> None:
    with pytest.raises(Refused):
        read(call, body)
    with pytest.raises(INVALID):
        call.decode_reply(body)
