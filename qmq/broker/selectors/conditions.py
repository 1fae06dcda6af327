"""What a selector asks, in three-valued logic: True, False, or None for unknown.

Unknown comes from a header that is not there or not of the right kind, stays unknown under NOT, and loses against
False in an AND and against True in an OR (SQL-92; JMS 2.0, section 3.8.1.2). A message matches only when the whole is
True. Chains of AND and OR are lists, so their length costs no depth.
"""

from qmq.broker.selectors.like import LikePattern
from qmq.broker.selectors.numbers import Number
from qmq.broker.selectors.values import Row, SelectorValue


class Condition:
    """Something that is True, False or unknown for each message."""

    __slots__ = ()

    def test(self, row: Row) -> bool | None:
        raise NotImplementedError


class Fixed(Condition):
    """TRUE or FALSE."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value

    def test(self, row: Row) -> bool | None:
        return self.value


class HeaderIsTrue(Condition):
    """A header that stands as a condition: true or false, in any case; every other text is unknown."""

    __slots__ = ("value",)

    def __init__(self, value: SelectorValue) -> None:
        self.value = value

    def test(self, row: Row) -> bool | None:
        text = self.value.text(row)
        if text is None:
            return None
        text = text.strip(" ").lower() if len(text) <= 16 else text
        if text == "true":
            return True
        return False if text == "false" else None


class Not(Condition):
    __slots__ = ("condition",)

    def __init__(self, condition: Condition) -> None:
        self.condition = condition

    def test(self, row: Row) -> bool | None:
        result = self.condition.test(row)
        return None if result is None else not result


class And(Condition):
    __slots__ = ("conditions",)

    def __init__(self, conditions: list[Condition]) -> None:
        self.conditions = conditions

    def test(self, row: Row) -> bool | None:
        result: bool | None = True
        for condition in self.conditions:
            one = condition.test(row)
            if one is None:
                result = None
            elif not one:
                return False
        return result


class Or(Condition):
    __slots__ = ("conditions",)

    def __init__(self, conditions: list[Condition]) -> None:
        self.conditions = conditions

    def test(self, row: Row) -> bool | None:
        result: bool | None = False
        for condition in self.conditions:
            one = condition.test(row)
            if one is None:
                result = None
            elif one:
                return True
        return result


class SameTruth(Condition):
    """Two conditions compared with `=`."""

    __slots__ = ("left", "right")

    def __init__(self, left: Condition, right: Condition) -> None:
        self.left = left
        self.right = right

    def test(self, row: Row) -> bool | None:
        left = self.left.test(row)
        right = self.right.test(row)
        return None if left is None or right is None else left is right


class SameText(Condition):
    __slots__ = ("left", "right")

    def __init__(self, left: SelectorValue, right: SelectorValue) -> None:
        self.left = left
        self.right = right

    def test(self, row: Row) -> bool | None:
        left = self.left.text(row)
        right = self.right.text(row)
        return None if left is None or right is None else left == right


class CompareNumbers(Condition):
    """`operator` is one of = < > <= >=; "not equal" is a Not around it."""

    __slots__ = ("left", "operator", "right")

    def __init__(self, left: SelectorValue, operator: str, right: SelectorValue) -> None:
        self.left = left
        self.operator = operator
        self.right = right

    def test(self, row: Row) -> bool | None:
        left = self.left.number(row)
        if left is None:
            return None
        right = self.right.number(row)
        if right is None:
            return None
        operator = self.operator
        if operator == "=":
            return left == right
        if operator == "<":
            return left < right
        if operator == ">":
            return left > right
        if operator == "<=":
            return left <= right
        return left >= right


class OneOfTexts(Condition):
    __slots__ = ("choices", "value")

    def __init__(self, value: SelectorValue, choices: frozenset[str]) -> None:
        self.value = value
        self.choices = choices

    def test(self, row: Row) -> bool | None:
        text = self.value.text(row)
        return None if text is None else text in self.choices


class OneOfNumbers(Condition):
    __slots__ = ("choices", "value")

    def __init__(self, value: SelectorValue, choices: frozenset[Number]) -> None:
        self.value = value
        self.choices = choices

    def test(self, row: Row) -> bool | None:
        number = self.value.number(row)
        return None if number is None else number in self.choices


class Like(Condition):
    __slots__ = ("pattern", "value")

    def __init__(self, value: SelectorValue, pattern: LikePattern) -> None:
        self.value = value
        self.pattern = pattern

    def test(self, row: Row) -> bool | None:
        text = self.value.text(row)
        return None if text is None else self.pattern.matches(text, row.steps)


class IsNull(Condition):
    """The one condition that is never unknown."""

    __slots__ = ("value",)

    def __init__(self, value: SelectorValue) -> None:
        self.value = value

    def test(self, row: Row) -> bool | None:
        return self.value.text(row) is None
