import pytest

from qmq.errors import RemoteProtocolError
from qmq.wire.stomp import negotiate_heartbeat, parse_heartbeat


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0,0", (0, 0)), ("10000,5000", (10000, 5000)), (" 4000 , 0 ", (4000, 0)), ("9999999999,1", (9999999999, 1))],
)
def test_heartbeat_header_is_two_numbers(text: str, numbers: tuple[int, int]) -> None:
    assert parse_heartbeat(text) == numbers


@pytest.mark.parametrize("text", ["", "1", "1,2,3", "-1,0", "a,b", "1.5,1", ",", "12345678901,0", "\u0661,0", "+1,0"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        parse_heartbeat(text)

    assert refused.value.code == "bad-heart-beat"
    assert refused.value.message.isascii()


@pytest.mark.parametrize(
    ("client", "server", "agreed"),
    [
        ((0, 0), (1000, 1000), (0, 0)),
        ((100, 100), (1000, 1000), (1000, 1000)),
        ((5000, 300), (1000, 1000), (5000, 1000)),
        ((0, 4000), (1000, 1000), (0, 4000)),
        ((4000, 0), (1000, 1000), (4000, 0)),
        ((4000, 4000), (0, 0), (0, 0)),
    ],
)
def test_each_direction_beats_at_the_slower_of_can_and_wants(
    client: tuple[int, int], server: tuple[int, int], agreed: tuple[int, int]
) -> None:
    assert negotiate_heartbeat(client, server) == agreed
