"""Bodies to send and to compare with received ones: each names what it belongs to, and its number."""

from collections.abc import Iterable, Iterator
from itertools import count

from .cluster_client import Message


def numbered(text: str, number: int) -> list[bytes]:
    """`number` bodies, in order."""
    return [f"{text} {each}".encode() for each in range(number)]


def endless(text: str) -> Iterator[bytes]:
    """As `numbered`, without end."""
    return (f"{text} {each}".encode() for each in count())


def bodies(messages: Iterable[Message]) -> list[bytes]:
    """The bodies of what came so far."""
    return [message.body for message in messages]
