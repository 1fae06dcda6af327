"""The retained values of topics by name, as plain data: what `retained` decides about and `retained_sync` reads."""

from qmq.broker.messages.message import Message, Retain


class RetainedValue:
    """What is kept of one topic: its last message, or the mark that it was removed; and when that happened here."""

    __slots__ = ("change", "message")

    def __init__(self, message: Message, change: int) -> None:
        self.message = message
        self.change = change

    @property
    def is_removed(self) -> bool:
        return self.message.envelope.retain is Retain.REMOVE


class RetainedTable:
    """Values and removal marks by the name of their topic."""

    def __init__(self) -> None:
        self.values: dict[str, RetainedValue] = {}
        self.names: list[str] = []
        """All names in `values`, sorted."""
