"""Selector text to tokens, by hand: one look at each character, so that no text can make it slow.

Words are read greedily, and a hyphen or a dot inside a word belongs to it where a letter follows (`content-type`,
`app.version`), because that is how STOMP headers are named; `a - b` and `a-1` are subtractions. Keywords are known in
any case, header names only as they are written. A header name that is not a word stands in double quotes.
"""

from qmq.broker.selectors.numbers import INTEGER_MAX, INTEGER_MIN, Number
from qmq.errors import Refused

KEYWORDS = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"})
SYMBOLS = ("<>", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "(", ")", ",")

NAME = "name"
QUOTED = "quoted"
TEXT = "text"
NUMBER = "number"
END = "end"

BLANKS = " \t\r\n\f"
TOO_LARGE = 1 << 64
"""Stands for whole numbers that are not even read."""
DIGITS = "0123456789"
SHOWN_CHARS_MAX = 20


class Token:
    """`kind` is a keyword, a symbol, or one of the five above; `column` counts characters from 1.

    `text` is the name or the text without its quotes, and for everything else what was written.
    """

    __slots__ = ("column", "kind", "number", "text")

    def __init__(self, kind: str, text: str, column: int, number: Number = 0) -> None:
        self.kind = kind
        self.text = text
        self.column = column
        self.number = number

    @property
    def shown(self) -> str:
        """For an error message."""
        if self.kind == END:
            return "the end"
        return shown(self.text)


def shown(text: str) -> str:
    """A piece of the client's text as an error message may carry it: short, and nothing that breaks a header line."""
    return repr(text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "…")


def wrong(column: int, expected: str, found: str) -> Refused:
    """Why a selector is none."""
    return Refused("bad-selector", f"The selector is wrong at column {column}: expected {expected}, found {found}.")


def too_large(token: Token) -> Refused:
    """Why a whole number is none: 64 bits hold one more below 0 than above it, so its sign decides."""
    return wrong(token.column, f"a number up to {INTEGER_MAX}", shown(token.text))


def tokens_of(text: str, start: int) -> list[Token]:
    """Every token from index `start` on, and END. Raises Refused."""
    tokens: list[Token] = []
    at = start
    while at < len(text):
        character = text[at]
        if character in BLANKS:
            at += 1
        elif character in "'\"":
            at = _quoted(text, at, tokens)
        elif character in DIGITS or (character == "." and _digits(text, at + 1) > at + 1):
            at = _number(text, at, tokens)
        elif begins_name(character):
            at = _word(text, at, tokens)
        else:
            at = _symbol(text, at, tokens)
    tokens.append(Token(END, "", len(text) + 1))
    return tokens


def begins_name(character: str) -> bool:
    """Letters of any script, `_` and `$`, as in JMS."""
    return character.isalpha() or character in "_$"


def continues_name(character: str) -> bool:
    """What may follow in a name, besides the hyphen and the dot."""
    return character.isalnum() or character in "_$"


def _word(text: str, at: int, tokens: list[Token]) -> int:
    end = at + 1
    while end < len(text):
        character = text[end]
        following = text[end + 1 : end + 2]
        joins = (character == "-" and following != "" and begins_name(following)) or (
            character == "." and following != "" and continues_name(following)
        )
        if not joins and not continues_name(character):
            break
        end += 1
    word = text[at:end]
    keyword = word.upper()
    tokens.append(Token(keyword if keyword in KEYWORDS else NAME, word, at + 1))
    return end


def _quoted(text: str, at: int, tokens: list[Token]) -> int:
    """Text in single quotes, or a header name in double quotes; the quote itself is written twice inside."""
    quote = text[at]
    parts: list[str] = []
    begin = at + 1
    while True:
        end = text.find(quote, begin)
        if end < 0:
            raise wrong(at + 1, f"a closing {quote}", "the end")
        parts.append(text[begin:end])
        if text[end + 1 : end + 2] != quote:
            break
        begin = end + 2
    value = quote.join(parts)
    if quote == '"' and not value:
        raise wrong(at + 1, "a header name between the quotes", "nothing")
    tokens.append(Token(TEXT if quote == "'" else QUOTED, value, at + 1))
    return end + 1


def _number(text: str, at: int, tokens: list[Token]) -> int:
    """Java's literals as JMS wants them, without octal: 57, 57L, 0x1F, 7., .5, 7E3, 7.5d."""
    if text[at : at + 2] in ("0x", "0X"):
        end = at + 2
        while end < len(text) and text[end] in "0123456789abcdefABCDEF":
            end += 1
        value: Number = int(text[at:end], 16) if end - at <= 18 and end > at + 2 else TOO_LARGE
        whole = True
    else:
        end = _digits(text, at)
        whole = True
        if text[end : end + 1] == ".":
            whole = False
            end = _digits(text, end + 1)
        if text[end : end + 1] in ("e", "E"):
            exponent = end + 1
            if text[exponent : exponent + 1] in ("+", "-"):
                exponent += 1
            if _digits(text, exponent) > exponent:
                whole = False
                end = _digits(text, exponent)
        written = text[at:end]
        if whole and written[0] == "0" and len(written) > 1:
            raise wrong(at + 1, "a number without leading zeros", shown(written))
        if whole:
            value = int(written) if len(written) <= 19 else TOO_LARGE
        else:
            value = float(written)
    suffix = text[end : end + 1]
    if suffix in ("l", "L") and whole:
        end += 1
    elif suffix in ("d", "D", "f", "F"):
        value = float(value)
        end += 1
        whole = False
    if end < len(text) and continues_name(text[end]):
        raise wrong(end + 1, "the end of the number", shown(text[end]))
    token = Token(NUMBER, text[at:end], at + 1, value)
    if whole and value > -INTEGER_MIN:
        raise too_large(token)
    if value == float("inf"):
        raise wrong(at + 1, "a number below 1.8E308", shown(token.text))
    tokens.append(token)
    return end


def _digits(text: str, at: int) -> int:
    """Index after the digits that begin at `at`."""
    while at < len(text) and text[at] in DIGITS:
        at += 1
    return at


def _symbol(text: str, at: int, tokens: list[Token]) -> int:
    for symbol in SYMBOLS:
        if text.startswith(symbol, at):
            tokens.append(Token(symbol, symbol, at + 1))
            return at + len(symbol)
    if text.startswith("!=", at):
        raise wrong(at + 1, "<> for 'not equal'", shown("!="))
    raise wrong(at + 1, "a header name, a value or an operator", shown(text[at]))
