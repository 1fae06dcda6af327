"""What a selector computes with: headers, literals and arithmetic.

A header is text, and becomes a number only where it is compared with one; `kind` says which of the three a value is,
so the parser can refuse what could never match. None is SQL's NULL: a header that is not there, or a text that is no
number where a number is needed.
"""

from collections.abc import Mapping
from enum import IntEnum

from qmq.broker.selectors.like import Steps
from qmq.broker.selectors.numbers import Number, calculated, in_range, number_of


class ValueKind(IntEnum):
    """What is known of a value before there is a message."""

    HEADER = 0
    TEXT = 1
    NUMBER = 2


KIND_WORDS = {ValueKind.HEADER: "a header", ValueKind.TEXT: "text", ValueKind.NUMBER: "a number"}


class Row:
    """One message while it is asked about."""

    __slots__ = ("properties", "steps")

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = properties
        self.steps = Steps()


class SelectorValue:
    """Something that has a text or a number for each message."""

    __slots__ = ("kind",)

    def __init__(self, kind: ValueKind) -> None:
        self.kind = kind

    def text(self, row: Row) -> str | None:
        return None

    def number(self, row: Row) -> Number | None:
        text = self.text(row)
        return None if text is None else number_of(text)


class Header(SelectorValue):
    """The header with this name, or `default` where a message has none."""

    __slots__ = ("default", "name")

    def __init__(self, name: str, default: str | None = None) -> None:
        super().__init__(ValueKind.HEADER)
        self.name = name
        self.default = default

    def text(self, row: Row) -> str | None:
        return row.properties.get(self.name, self.default)


class DeliveryMode(SelectorValue):
    """JMSDeliveryMode, in the words of JMS, from the header `persistent`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(ValueKind.HEADER)

    def text(self, row: Row) -> str | None:
        persistent = row.properties.get("persistent")
        if persistent is None:
            return None
        return "PERSISTENT" if persistent == "true" else "NON_PERSISTENT"


class TextLiteral(SelectorValue):
    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        super().__init__(ValueKind.TEXT)
        self.value = value

    def text(self, row: Row) -> str | None:
        return self.value


class NumberLiteral(SelectorValue):
    __slots__ = ("value",)

    def __init__(self, value: Number) -> None:
        super().__init__(ValueKind.NUMBER)
        self.value = value

    def number(self, row: Row) -> Number | None:
        return self.value


class Negative(SelectorValue):
    __slots__ = ("operand",)

    def __init__(self, operand: SelectorValue) -> None:
        super().__init__(ValueKind.NUMBER)
        self.operand = operand

    def number(self, row: Row) -> Number | None:
        number = self.operand.number(row)
        return None if number is None else in_range(-number)


class Calculation(SelectorValue):
    """Sums or products from left to right: a chain, because a tree of it would be as deep as the chain is long."""

    __slots__ = ("first", "operations")

    def __init__(self, first: SelectorValue, operations: list[tuple[str, SelectorValue]]) -> None:
        super().__init__(ValueKind.NUMBER)
        self.first = first
        self.operations = operations

    def number(self, row: Row) -> Number | None:
        result = self.first.number(row)
        for operator, operand in self.operations:
            if result is None:
                return None
            number = operand.number(row)
            if number is None:
                return None
            result = calculated(result, operator, number)
        return result
