"""What holds for every stream: cut anywhere it means the same, repeated it means the same, and nothing is raised."""

from hypothesis import given, settings
from hypothesis import strategies as st

from qmq.wire.stomp import (
    Connection,
    HeadCaches,
    Limits,
    Role,
    Version,
    convert_headers,
    encode_frame,
    encode_headers,
)
from tests.wire.support import GREETINGS, LOGINS, Value, code, fed, value, values

VERSIONS = st.sampled_from(list(Version))
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
# What 1.0 can carry; a CR at the end of a line belongs to the line in 1.0 and 1.1.
PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r:\\"), max_size=12)
NAMES = PLAIN.filter(lambda name: name not in ("", "receipt", "content-length"))
BODIES = st.binary(max_size=40)
SMALL = Limits(
    command_bytes_max=16,
    header_line_bytes_max=40,
    header_count_max=4,
    header_bytes_max=90,
    body_bytes_max=30,
    login_bytes_max=120,
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[Version, bytes]:
    """A valid stream of a client: few different heads in any order, so that they repeat, cut up by heart-beats."""
    version = draw(VERSIONS)
    line_ends = st.sampled_from([b"\n", b"\r\n"])
    heads = draw(
        st.lists(
            st.sampled_from(
                [
                    [b"destination:/queue/a"],
                    [b"destination:/queue/a", b"k:v"],
                    [b"destination:/queue/a:b", b"k:  v "],
                    [b"k:1", b"k:2"],
                    [b"receipt:x", b"destination:/queue/a"],
                    [],
                ]
            ),
            min_size=1,
            max_size=3,
        )
    )
    parts = [LOGINS[version]]
    for number in range(draw(st.integers(0, 12))):
        end = draw(st.one_of(st.just(b"\n"), line_ends))
        kind = draw(st.sampled_from(["send", "send", "counted", "ack", "other"]))
        if kind in ("send", "counted"):
            lines = [b"SEND", *draw(st.sampled_from(heads))]
            body = draw(st.sampled_from([b"", b"x", b"\n\nx", b"\r\n", b"hello" * 5]))
            if kind == "counted":
                body = draw(st.one_of(st.just(b"a\0b"), BODIES))
                lines.insert(draw(st.integers(1, len(lines))), b"content-length:%d" % len(body))
            if draw(st.booleans()):
                lines.insert(draw(st.integers(1, len(lines))), b"receipt:r-%d" % number)
        elif kind == "ack":
            lines = draw(
                st.sampled_from(
                    [
                        [b"ACK", b"id:%d" % number],
                        [b"NACK", b"id:a\\c%d" % number],
                        [b"ACK", b"message-id:%d" % number, b"subscription:0"],
                        [b"ACK", b"subscription:0", b"message-id:%d" % number],
                        [b"ACK", b"id:%d" % number, b"message-id:%d" % number],
                        [b"ACK", b"id:%d" % number, b"receipt:%d" % number],
                        [b"ACK", b"id:%d" % number, b"content-length:0"],
                    ]
                )
            )
            body = b""
        else:
            lines = draw(st.sampled_from([[b"BEGIN", b"transaction:1"], [b"SUBSCRIBE", b"id:0"], [b"UNSUBSCRIBE"]]))
            body = b""
        parts.append(end.join([*lines, b"", b""]) + body + b"\0")
        parts.append(draw(st.sampled_from([b"", b"\n", b"\r\n", b"\n\n\n"])))
    return version, b"".join(parts)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:stop] for start, stop in zip(edges, edges[1:], strict=False)]


PLACES = st.lists(st.integers(0, 10_000), max_size=12)


@given(streams(), PLACES)
def test_valid_stream_means_the_same_however_it_is_cut(stream: tuple[Version, bytes], places: list[int]) -> None:
    version, data = stream
    whole, pieces, bytewise = (Connection(Role.SERVER) for _ in range(3))

    expected = values(whole.receive(data))

    assert whole.error is None
    assert whole.version is version
    assert values(fed(pieces, cut(data, places))) == expected
    assert values(fed(bytewise, cut(data, list(range(len(data)))))) == expected
    assert pieces.error is None
    assert bytewise.error is None


@given(streams())
def test_frame_among_others_means_the_same_as_alone(stream: tuple[Version, bytes]) -> None:
    """Nothing that is remembered, by this connection or another, changes what a frame says."""
    version, data = stream
    caches = HeadCaches()
    for _ in range(2):
        Connection(Role.SERVER, caches=caches).receive(data)

    together = values(Connection(Role.SERVER, caches=caches).receive(data))

    isolated_mode: list[Value] = []
    start = 0
    for end in range(1, len(data) + 1):
        # A frame alone is the shortest piece that a fresh connection finds one frame in.
        if data[end - 1] != 0:
            continue
        login = b"" if start == 0 else LOGINS[version]
        frames = Connection(Role.SERVER).receive(login + data[start:end])
        if len(frames) == (1 if start == 0 else 2):
            isolated_mode.append(value(frames[-1]))
            start = end
    assert together == isolated_mode


MUTATIONS = st.lists(
    st.tuples(st.integers(0, 10_000), st.sampled_from([b"", b"\0", b"\n", b":", b"\\", b"\\t", b"\xff", b"9", b"\r"])),
    max_size=3,
)


def mutated(data: bytes, mutations: list[tuple[int, bytes]]) -> bytes:
    for place, insertion in mutations:
        at = place % (len(data) + 1)
        data = data[:at] + insertion + data[at + (place % 3) :]
    return data


@given(streams(), MUTATIONS, PLACES, st.sampled_from([Limits(), SMALL]))
@settings(max_examples=300)
def test_damaged_stream_gives_the_same_frames_and_one_error_however_it_is_cut(
    stream: tuple[Version, bytes], mutations: list[tuple[int, bytes]], places: list[int], limits: Limits
) -> None:
    data = mutated(stream[1], mutations)
    whole = Connection(Role.SERVER, limits)
    pieces = Connection(Role.SERVER, limits)

    expected = values(whole.receive(data))
    found = values(fed(pieces, cut(data, places)))

    assert found == expected
    assert (whole.error is None) == (pieces.error is None), (code(whole), code(pieces))


@given(
    st.sampled_from(list(Role)),
    st.sampled_from([b"", *LOGINS.values(), *GREETINGS.values()]),
    st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([b"SEND\n", b"\n\n", b"\0", b"content-length:3\n"]))),
)
def test_any_bytes_give_frames_or_one_error_and_never_an_exception(
    role: Role, start: bytes, pieces: list[bytes]
) -> None:
    connection = Connection(role, SMALL)

    connection.receive(start)
    for piece in pieces:
        broken = connection.error
        frames = connection.receive(piece)
        if broken is not None:
            assert frames == []
            assert connection.error is broken

    if connection.error is not None:
        assert connection.error.message.isascii()
        assert connection.error.message.isprintable()


HEADERS = {
    Version.V10: st.lists(st.tuples(NAMES, PLAIN), max_size=5),
    Version.V11: st.lists(st.tuples(NAMES, TEXT.filter(lambda text: not text.endswith("\r"))), max_size=5),
    Version.V12: st.lists(
        st.tuples(TEXT.filter(lambda name: name not in ("", "receipt", "content-length")), TEXT), max_size=5
    ),
}


def first_wins(headers: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    first: dict[str, str] = {}
    for name, text in headers:
        first.setdefault(name, text)
    return tuple(first.items())


@given(st.data(), VERSIONS, BODIES, st.one_of(st.none(), PLAIN))
def test_what_one_side_writes_the_other_reads(
    data: st.DataObject, version: Version, body: bytes, receipt: str | None
) -> None:
    headers = data.draw(HEADERS[version])
    receipts = [] if receipt is None else [("receipt", receipt)]
    server = Connection(Role.SERVER)
    client = Connection(Role.CLIENT)
    server.receive(LOGINS[version])
    client.receive(GREETINGS[version])

    sent = server.receive(encode_frame("SEND", headers + receipts, body, version=version))
    told = client.receive(encode_frame("MESSAGE", headers, body, version=version))

    assert values(sent) == [("SEND", first_wins(headers), body, receipt)]
    assert values(told) == [("MESSAGE", first_wins(headers), body, None)]


@given(HEADERS[Version.V11])
def test_canonical_headers_reach_an_older_receiver_unharmed(headers: list[tuple[str, str]]) -> None:
    block = encode_headers(headers, Version.V12)
    client = Connection(Role.CLIENT)
    client.receive(GREETINGS[Version.V11])

    frames = client.receive(b"MESSAGE\n" + convert_headers(block, Version.V12, Version.V11) + b"\n\0")

    assert values(frames) == [("MESSAGE", first_wins(headers), b"", None)]
    for version in Version:
        assert convert_headers(block, Version.V12, version).count(b"\n") == len(headers)
