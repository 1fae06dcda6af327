"""Heart-beat arithmetic (STOMP 1.2, "Heart-beating"). Milliseconds throughout; the timers are elsewhere."""

from qmq.errors import RemoteProtocolError
from qmq.wire.stomp.refusals import shown

HEARTBEAT_DIGITS_MAX = 10
"""Over a hundred days; more is a mistake."""


def parse_heartbeat(text: str) -> tuple[int, int]:
    """`heart-beat:x,y` as (every how many ms the sender can beat, every how many ms it wants a beat); 0 means never.

    Blanks around the numbers are accepted, because people write them.

    Raises:
        RemoteProtocolError: `bad-heart-beat`.
    """
    numbers = [number.strip() for number in text.split(",")]
    if len(numbers) != 2 or not all(is_number(number) for number in numbers):
        raise RemoteProtocolError(
            "bad-heart-beat",
            f"bad heart-beat {shown(text)}",
            "heart-beat is two numbers of milliseconds, such as 10000,10000.",
        )
    return int(numbers[0]), int(numbers[1])


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= HEARTBEAT_DIGITS_MAX


def negotiate_heartbeat(client: tuple[int, int], server: tuple[int, int]) -> tuple[int, int]:
    """(ms between beats from client to server, ms between beats from server to client); 0 where there are none.

    Both arguments are (can beat, wants beats) as in the `heart-beat` header of that side.
    """
    return agreed_interval(client[0], server[1]), agreed_interval(server[0], client[1])


def agreed_interval(sender_can: int, receiver_asks: int) -> int:
    if sender_can == 0 or receiver_asks == 0:
        return 0
    return max(sender_can, receiver_asks)
