"""Numbers of selectors: how the text of a header is read as one, and arithmetic that never fails.

Whole numbers have 64 bits, as in JMS, and others are floats. Whatever has no such result (a division by zero, an
overflow) is None, which is SQL's NULL, so the comparison it stands in is unknown and a hostile header costs nothing.
"""

from math import isfinite

Number = int | float

INTEGER_MAX = (1 << 63) - 1
INTEGER_MIN = -(1 << 63)
INTEGER_DIGITS_MAX = 19
NUMBER_CHARS_MAX = 40
"""Of a header's value that is read as a number: no 64-bit float needs more."""

BLANKS_MAX = 256
"""Around a number: nothing longer is looked through for one."""

FLOAT_CHARS = frozenset("0123456789.eE+-")


def number_of(text: str) -> Number | None:
    """A header's value as a number, or None when it is none. Blanks around it do not count: some clients send them."""
    if len(text) > NUMBER_CHARS_MAX + BLANKS_MAX:
        return None
    text = text.strip(" ")
    if not text or len(text) > NUMBER_CHARS_MAX or not text.isascii():
        return None
    digits = text[1:] if text[0] in "+-" else text
    if digits.isdigit():
        return in_range(int(text)) if len(digits) <= INTEGER_DIGITS_MAX else None
    # float() also takes names (nan, infinity) and underscores, which are no numbers here.
    if not FLOAT_CHARS.issuperset(text):
        return None
    try:
        return in_range(float(text))
    except ValueError:
        return None


def in_range(number: Number) -> Number | None:
    """`number`, or None when 64 bits do not hold it."""
    if isinstance(number, int):
        return number if INTEGER_MIN <= number <= INTEGER_MAX else None
    return number if isfinite(number) else None


def calculated(left: Number, operator: str, right: Number) -> Number | None:
    """One step of arithmetic; None when there is no result. Whole numbers are divided as in Java, towards zero."""
    if operator == "+":
        return in_range(left + right)
    if operator == "-":
        return in_range(left - right)
    if operator == "*":
        return in_range(left * right)
    if right == 0:
        return None
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return in_range(quotient if (left < 0) == (right < 0) else -quotient)
    try:
        return in_range(left / right)
    except OverflowError:
        return None
