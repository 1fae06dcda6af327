"""Tokens to one condition: SQL-92's precedence, and everything refused that could never match.

Loosest first: OR, AND, NOT, comparisons (which do not chain), + and -, * and /, signs. The parser climbs by
precedence, so a level of nesting is one call and not one per precedence; calls are counted, and so are the parts of
the result. Both bounds together bound what one evaluation may cost.
"""

from qmq.broker.selectors.conditions import (
    And,
    CompareNumbers,
    Condition,
    Fixed,
    HeaderIsTrue,
    IsNull,
    Like,
    Not,
    OneOfNumbers,
    OneOfTexts,
    Or,
    SameText,
    SameTruth,
)
from qmq.broker.selectors.lexer import END, NAME, NUMBER, QUOTED, TEXT, Token, shown, too_large, wrong
from qmq.broker.selectors.like import LIKE_STEPS_MAX, pattern_of
from qmq.broker.selectors.numbers import INTEGER_MAX, Number
from qmq.broker.selectors.values import (
    KIND_WORDS,
    Calculation,
    DeliveryMode,
    Header,
    Negative,
    NumberLiteral,
    SelectorValue,
    TextLiteral,
    ValueKind,
)
from qmq.errors import Refused

DEPTH_MAX = 64
"""Of brackets, NOTs, signs and operators inside one another; people nest five deep."""

PARTS_MAX = 500
"""Headers, literals and operators of one selector."""

OR_LEVEL, AND_LEVEL, NOT_LEVEL, COMPARE_LEVEL, SUM_LEVEL, PRODUCT_LEVEL, SIGN_LEVEL = range(1, 8)

# How tightly a token binds what stands on both sides of it. NOT is here for NOT IN, NOT LIKE and NOT BETWEEN.
LEVELS = {
    "OR": OR_LEVEL,
    "AND": AND_LEVEL,
    "=": COMPARE_LEVEL,
    "<>": COMPARE_LEVEL,
    "<": COMPARE_LEVEL,
    ">": COMPARE_LEVEL,
    "<=": COMPARE_LEVEL,
    ">=": COMPARE_LEVEL,
    "IS": COMPARE_LEVEL,
    "IN": COMPARE_LEVEL,
    "LIKE": COMPARE_LEVEL,
    "BETWEEN": COMPARE_LEVEL,
    "NOT": COMPARE_LEVEL,
    "+": SUM_LEVEL,
    "-": SUM_LEVEL,
    "*": PRODUCT_LEVEL,
    "/": PRODUCT_LEVEL,
}

# Names of JMS for what is a header here. JMSPriority is 4 where none is said, as in JMS.
JMS_HEADERS = {"JMSCorrelationID": "correlation-id", "JMSType": "type"}
JMS_PRIORITY_DEFAULT = "4"
JMS_KNOWN = "JMSPriority, JMSCorrelationID, JMSType, JMSDeliveryMode"


class Parser:
    """Reads one list of tokens once."""

    __slots__ = ("_at", "_depth", "_parts", "_steps_max", "_token", "_tokens", "scans")

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._token = tokens[0]
        self._depth = 0
        self._parts = 0
        self._steps_max = 0
        self.scans = 0
        """LIKEs, each of which may read a value to its end."""

    def whole(self) -> Condition:
        """The condition that all tokens together are. Raises Refused."""
        column = self._token.column
        condition = _condition(self._expression(OR_LEVEL), column)
        if self._token.kind != END:
            raise self._unexpected("AND, OR or the end")
        return condition

    @property
    def cost(self) -> int:
        """What one answer of the condition costs at most, in parts that are looked at and steps of LIKEs."""
        return self._parts + min(self._steps_max, LIKE_STEPS_MAX)

    # Tokens

    def _advance(self) -> Token:
        token = self._token
        self._at += 1
        self._token = self._tokens[self._at]
        return token

    def _accept(self, kind: str) -> bool:
        if self._token.kind != kind:
            return False
        self._advance()
        return True

    def _expect(self, kind: str, expected: str) -> Token:
        if self._token.kind != kind:
            raise self._unexpected(expected)
        return self._advance()

    def _unexpected(self, expected: str) -> Refused:
        return wrong(self._token.column, expected, self._token.shown)

    def _count_part(self) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise wrong(self._token.column, f"at most {PARTS_MAX} headers, values and operators", "more")

    # Expressions

    def _expression(self, level: int) -> SelectorValue | Condition:
        """What comes next, with every operator that binds at least as tightly as `level`."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise wrong(self._token.column, f"at most {DEPTH_MAX} levels inside one another", "more")
        column = self._token.column
        left = self._operand(level)
        compared = False
        while True:
            own_level = LEVELS.get(self._token.kind, 0)
            if own_level == 0 or own_level < level:
                break
            if own_level == OR_LEVEL:
                left = Or(self._chain(left, column, "OR", AND_LEVEL))
            elif own_level == AND_LEVEL:
                left = And(self._chain(left, column, "AND", NOT_LEVEL))
            elif own_level == COMPARE_LEVEL:
                if compared:
                    raise self._unexpected("AND, OR or the end (comparisons do not chain)")
                compared = True
                left = self._comparison(left, column)
            elif own_level == SUM_LEVEL:
                left = self._calculation(left, column, "+", "-", PRODUCT_LEVEL)
            else:
                left = self._calculation(left, column, "*", "/", SIGN_LEVEL)
        self._depth -= 1
        return left

    def _operand(self, level: int) -> SelectorValue | Condition:
        """A header, a literal, something in brackets, or a NOT or sign with what it belongs to."""
        self._count_part()
        token = self._token
        kind = token.kind
        if kind == "NOT" and level <= NOT_LEVEL:
            self._advance()
            column = self._token.column
            return Not(_condition(self._expression(NOT_LEVEL), column))
        if kind in ("+", "-"):
            self._advance()
            column = self._token.column
            if kind == "-" and is_only_negative(self._token):
                return NumberLiteral(-self._advance().number)
            operand = _numeric(self._expression(SIGN_LEVEL), column)
            return Negative(operand) if kind == "-" else Calculation(operand, [])
        if kind not in (NAME, QUOTED, TEXT, NUMBER, "TRUE", "FALSE", "("):
            raise self._unexpected("a header name, a value or (")
        self._advance()
        if kind == NAME:
            return _header(token)
        if kind == QUOTED:
            return Header(token.text)
        if kind == TEXT:
            return TextLiteral(token.text)
        if kind == NUMBER:
            if is_only_negative(token):
                raise too_large(token)
            return NumberLiteral(token.number)
        if kind == "(":
            inner = self._expression(OR_LEVEL)
            self._expect(")", ") or an operator")
            return inner
        return Fixed(kind == "TRUE")

    def _chain(self, first: SelectorValue | Condition, column: int, keyword: str, level: int) -> list[Condition]:
        conditions = [_condition(first, column)]
        while self._accept(keyword):
            self._count_part()
            column = self._token.column
            conditions.append(_condition(self._expression(level), column))
        return conditions

    def _calculation(
        self, first: SelectorValue | Condition, column: int, one: str, other: str, level: int
    ) -> SelectorValue:
        value = _numeric(first, column)
        operations: list[tuple[str, SelectorValue]] = []
        while self._token.kind == one or self._token.kind == other:
            self._count_part()
            operator = self._advance().kind
            column = self._token.column
            operations.append((operator, _numeric(self._expression(level), column)))
        return Calculation(value, operations)

    # Comparisons

    def _comparison(self, left: SelectorValue | Condition, column: int) -> Condition:
        self._count_part()
        operator = self._advance()
        kind = operator.kind
        if kind == "NOT":
            if self._token.kind not in ("IN", "LIKE", "BETWEEN"):
                raise self._unexpected("IN, LIKE or BETWEEN")
            return Not(self._comparison(left, column))
        if kind == "IS":
            is_not = self._accept("NOT")
            self._expect("NULL", "NULL" if is_not else "NULL or NOT NULL")
            is_null = IsNull(_header_only(left, column, "IS NULL"))
            return Not(is_null) if is_not else is_null
        if kind == "IN":
            return self._one_of(_header_only(left, column, "IN"))
        if kind == "LIKE":
            return self._like(_header_only(left, column, "LIKE"))
        if kind == "BETWEEN":
            value = _numeric(left, column)
            low = self._number_expression()
            self._expect("AND", "AND")
            high = self._number_expression()
            return And([CompareNumbers(value, ">=", low), CompareNumbers(value, "<=", high)])
        right_column = self._token.column
        right = self._expression(SUM_LEVEL)
        return _compared(left, column, operator, right, right_column)

    def _number_expression(self) -> SelectorValue:
        column = self._token.column
        return _numeric(self._expression(SUM_LEVEL), column)

    def _one_of(self, value: SelectorValue) -> Condition:
        """The list of IN: all of one kind, because a header is read as either."""
        self._expect("(", "(")
        texts: list[str] = []
        numbers: list[Number] = []
        while True:
            self._count_part()
            if self._token.kind == TEXT and not numbers:
                texts.append(self._advance().text)
            elif texts:
                raise self._unexpected("text in quotes, as before")
            else:
                negative = self._accept("-")
                if not negative:
                    self._accept("+")
                token = self._expect(NUMBER, "a number" if numbers else "text in quotes or a number")
                if is_only_negative(token) and not negative:
                    raise too_large(token)
                numbers.append(-token.number if negative else token.number)
            if not self._accept(","):
                break
        self._expect(")", ", or )")
        return OneOfTexts(value, frozenset(texts)) if texts else OneOfNumbers(value, frozenset(numbers))

    def _like(self, value: SelectorValue) -> Condition:
        token = self._expect(TEXT, "a pattern in quotes")
        escape = ""
        if self._accept("ESCAPE"):
            column = self._token.column
            escape = self._expect(TEXT, "one character in quotes").text
            if len(escape) != 1:
                raise wrong(column, "one character in quotes", shown(escape))
        pattern = pattern_of(token.text, escape)
        if pattern is None:
            raise wrong(token.column, f"%, _ or {escape} after each {escape}", shown(token.text))
        self._steps_max += pattern.steps_max
        self.scans += 1
        return Like(value, pattern)


def is_only_negative(token: Token) -> bool:
    """Whether 64 bits hold this whole number below 0 only."""
    return token.kind == NUMBER and isinstance(token.number, int) and token.number > INTEGER_MAX


def _header(token: Token) -> SelectorValue:
    """A name that is not quoted: JMS has reserved some of them (JMS 2.0, section 3.8.1.1)."""
    name = token.text
    if (
        not name.startswith("JMS")
        or name.startswith("JMS_")
        or (name.startswith("JMSX") and name != "JMSXDeliveryCount")
    ):
        return Header(name)
    if name == "JMSPriority":
        return Header("priority", JMS_PRIORITY_DEFAULT)
    if name == "JMSDeliveryMode":
        return DeliveryMode()
    header = JMS_HEADERS.get(name)
    if header is None:
        raise wrong(token.column, f"one of {JMS_KNOWN}, or a header name in double quotes", shown(name))
    return Header(header)


def _words(operand: SelectorValue | Condition) -> str:
    return "a condition" if isinstance(operand, Condition) else KIND_WORDS[operand.kind]


def _condition(operand: SelectorValue | Condition, column: int) -> Condition:
    """A header may stand where a condition is needed."""
    if isinstance(operand, Condition):
        return operand
    if operand.kind != ValueKind.HEADER:
        raise wrong(column, "a condition", f"only {_words(operand)}")
    return HeaderIsTrue(operand)


def _numeric(operand: SelectorValue | Condition, column: int) -> SelectorValue:
    if isinstance(operand, Condition) or operand.kind == ValueKind.TEXT:
        raise wrong(column, "a number or a header", _words(operand))
    return operand


def _header_only(operand: SelectorValue | Condition, column: int, keyword: str) -> SelectorValue:
    if isinstance(operand, Condition) or operand.kind != ValueKind.HEADER:
        raise wrong(column, f"a header before {keyword}", _words(operand))
    return operand


def _compared(
    left: SelectorValue | Condition,
    left_column: int,
    operator: Token,
    right: SelectorValue | Condition,
    right_column: int,
) -> Condition:
    """= and <> compare truths, texts or numbers, the others numbers only (JMS 2.0, section 3.8.1.2)."""
    kind = operator.kind
    if kind not in ("=", "<>"):
        return CompareNumbers(_numeric(left, left_column), kind, _numeric(right, right_column))
    same: Condition
    if isinstance(left, Condition) or isinstance(right, Condition):
        same = SameTruth(_condition(left, left_column), _condition(right, right_column))
    elif left.kind == ValueKind.NUMBER or right.kind == ValueKind.NUMBER:
        same = CompareNumbers(_numeric(left, left_column), "=", _numeric(right, right_column))
    else:
        same = SameText(left, right)
    return same if kind == "=" else Not(same)
