"""The selector language: the cases of JMS, our additions, and the texts of refusals."""

from collections.abc import Mapping

import pytest

from qmq.broker.selectors import Selector, compile_filter, compile_selector
from qmq.broker.selectors.selector import SELECTOR_CHARS_MAX
from qmq.errors import Refused

HEADERS: Mapping[str, str] = {
    "age": "18",
    "city": "Paris",
    "content-type": "text/plain",
    "app.version": "2.5",
    "empty": "",
    "flag": "true",
    "off": "false",
    "letters": "it's 100%",
    "blank": " 7 ",
    "big": "9223372036854775807",
    "small": "-9223372036854775808",
    "bigger": "9223372036854775808",
    "exponent": "1e3",
    "minus": "-4",
    "under_score": "a_b",
    "1st": "one",
    "priority": "7",
    "type": "order",
    "correlation-id": "c1",
    "persistent": "true",
}

MATCHES = [
    # =, <> on text
    "city = 'Paris'",
    "'Paris' = city",
    "city <> 'Rome'",
    "empty = ''",
    "letters = 'it''s 100%'",
    "city = city",
    # numbers, and the text of a header as a number
    "age = 18",
    "age = 18.0",
    "age = '18'",
    "age <> 19",
    "age > 17 AND age >= 18 AND age < 19 AND age <= 18",
    "18 <= age",
    "blank = 7",
    "minus < 0",
    "minus = -4",
    "exponent = 1000",
    "big = 9223372036854775807",
    "small = -9223372036854775808",
    "small = - 9223372036854775808L",
    "small = -0x8000000000000000",
    "small + 1 = -9223372036854775807",
    "small BETWEEN -9223372036854775808 AND -9223372036854775808",
    "small IN (1, -9223372036854775808)",
    "-9223372036854775808 < -9223372036854775807",
    "minus <> -9223372036854775808 / 2",
    "age = 0x12",
    "age = 18L",
    "age > 17.5d",
    "age = 1.8E1",
    "age > 18. - .5",
    # two headers: = compares text, < numbers
    "age <> big",
    "age < big",
    # arithmetic
    "age + 2 = 20",
    "age - 20 = -2",
    "age * 2 - 6 = 30",
    "2 + 3 * 4 = 14",
    "(2 + 3) * 4 = 20",
    "10 - 3 - 2 = 5",
    "7 / 2 = 3",
    "-7 / 2 = -3",
    "7 / 2.0 = 3.5",
    "- age = -18",
    "-(age) = -18",
    "+age = 18",
    "- - 3 = 3",
    "age-1 = 17",
    # names
    "content-type = 'text/plain'",
    "app.version > 2",
    "under_score LIKE 'a\\_b' ESCAPE '\\'",
    "\"1st\" = 'one'",
    "\"content-type\" LIKE 'text/%'",
    # BETWEEN, IN
    "age BETWEEN 15 AND 19",
    "age BETWEEN 18 AND 18",
    "age NOT BETWEEN 19 AND 20",
    "NOT age BETWEEN 19 AND 20",
    "age BETWEEN 9 + 9 AND 2 * 9",
    "city IN ('Rome', 'Paris')",
    "city NOT IN ('Rome')",
    "age IN (17, 18)",
    "minus IN (-4, +5)",
    # LIKE
    "city LIKE 'P%'",
    "city LIKE 'P_r_s'",
    "city LIKE '%'",
    "empty LIKE '%'",
    "empty LIKE ''",
    "city NOT LIKE 'p%'",
    "letters LIKE '%100!%' ESCAPE '!'",
    "letters LIKE 'it''s%'",
    # NULL
    "absent IS NULL",
    "city IS NOT NULL",
    "empty IS NOT NULL",
    # truths
    "flag",
    "NOT off",
    "flag = TRUE",
    "off <> TRUE",
    "flag <> off",
    "(age > 1) = flag",
    "TRUE",
    "NOT FALSE",
    # precedence and words in any case
    "FALSE AND FALSE OR TRUE",
    "NOT FALSE AND TRUE",
    "NOT (city = 'Rome')",
    "NOT city = 'Rome'",
    "city = 'Paris' and not age in (1) or absent is null",
    "\n city\t=\r\n'Paris' ",
    # names of JMS
    "JMSPriority >= 7",
    "JMSType = 'order'",
    "JMSCorrelationID = 'c1'",
    "JMSDeliveryMode = 'PERSISTENT'",
    # what others need in front
    "convert_string_expressions:age > 17",
    "hyphenated_props:content-type = 'text/plain'",
]

UNKNOWN = [
    "absent = 'x'",
    "absent <> 'x'",
    "absent > 1",
    "absent + 1 = 1",
    "absent IN ('x')",
    "absent NOT IN ('x')",
    "absent LIKE '%'",
    "absent NOT LIKE '%'",
    "absent BETWEEN 1 AND 2",
    "absent NOT BETWEEN 1 AND 2",
    "absent",
    "absent = TRUE",
    "absent = absent",
    # text that is no number where one is needed
    "city > 1",
    "city = 1",
    "city <> 1",
    "city IN (1, 2)",
    "empty = 0",
    "-city = 1",
    "city < age",
    "bigger > 1",
    # text that is no truth
    "city",
    "age = TRUE",
    # no result
    "1 / 0 = 1",
    "1 / 0 <> 1",
    "age / (age - 18) = 1",
    "1.0 / 0 = 1",
    "big + 1 > 0",
    "big * big > 0",
    "1E308 * 10 > 0",
    "-1E308 * 10 < 0",
    "absent IS NULL AND city = 1",
]

DOES_NOT_MATCH = [
    "city = 'paris'",
    "City IS NOT NULL",
    "age = '18.0'",
    "age > 18",
    "city LIKE 'p%'",
    "city LIKE 'Pari'",
    "city LIKE 'aris'",
    "city LIKE '%x%'",
    "empty IS NULL",
    "JMSDeliveryMode = 'NON_PERSISTENT'",
    "NOT age IN (17, 18)",
    '"JMSPriority" IS NOT NULL',
]


@pytest.mark.parametrize("text", MATCHES)
def test_it_matches(text: str) -> None:
    assert compile_selector(text).matches(HEADERS)


@pytest.mark.parametrize("text", MATCHES)
def test_what_matches_does_not_match_negated(text: str) -> None:
    prefix, colon, rest = text.partition("props:") if text.startswith("hyph") else text.partition("expressions:")

    assert not compile_selector(f"{prefix}{colon}NOT ({rest})" if colon else f"NOT ({text})").matches(HEADERS)


@pytest.mark.parametrize("text", UNKNOWN)
def test_unknown_matches_neither_as_it_is_nor_negated(text: str) -> None:
    assert not compile_selector(text).matches(HEADERS)
    assert not compile_selector(f"NOT ({text})").matches(HEADERS)


@pytest.mark.parametrize("text", DOES_NOT_MATCH)
def test_it_does_not_match(text: str) -> None:
    assert not compile_selector(text).matches(HEADERS)
    assert compile_selector(f"NOT ({text})").matches(HEADERS)


WORDS = {"T": "TRUE", "F": "FALSE", "U": "absent"}


@pytest.mark.parametrize(
    ("operator", "table"),
    [
        ("AND", "TT=T TF=F TU=U FT=F FF=F FU=F UT=U UF=F UU=U"),
        ("OR", "TT=T TF=T TU=T FT=T FF=F FU=U UT=T UF=U UU=U"),
        ("=", "TT=T TF=F TU=U FT=F FF=T FU=U UT=U UF=U UU=U"),
        ("<>", "TT=F TF=T TU=U FT=T FF=F FU=U UT=U UF=U UU=U"),
    ],
)
def test_truth_tables_of_three_values(operator: str, table: str) -> None:
    for row in table.split():
        left, right, _, result = row
        # A header in brackets and compared is a condition, so that absent = absent is about truths.
        text = f"((TRUE AND {WORDS[left]}) {operator} (TRUE AND {WORDS[right]}))"

        assert truth_of(text) == result, row


def truth_of(text: str) -> str:
    if compile_selector(text).matches({}):
        return "T"
    return "F" if compile_selector(f"NOT {text}").matches({}) else "U"


def test_not_of_unknown_is_unknown() -> None:
    assert [truth_of(f"(NOT {word})") for word in WORDS.values()] == ["F", "T", "U"]


def test_priority_is_four_where_none_is_said() -> None:
    assert compile_selector("JMSPriority = 4").matches({})
    assert not compile_selector("priority = 4").matches({})


def test_delivery_mode_is_known_only_with_its_header() -> None:
    selector = compile_selector("JMSDeliveryMode = 'NON_PERSISTENT'")

    assert selector.matches({"persistent": "false"})
    assert not selector.matches({})


@pytest.mark.parametrize(
    ("header", "is_a_number"),
    [("1_000", False), ("nan", False), ("infinity", False), ("1e999", False), ("١٢", False), ("0x10", False)]
    + [("1e5", True), ("+1", True), ("1.", True), (".5", True), ("007", True), ("1" * 19, True), ("1" * 41, False)]
    + [("", False), ("-", False), (".", False), ("1 2", False), ("e5", False), ("--1", False), ("1e", False)],
)
def test_which_headers_are_numbers(header: str, is_a_number: bool) -> None:
    assert compile_selector("n > 0").matches({"n": header}) == is_a_number
    assert not compile_selector("n <= 0").matches({"n": header})


WRONG = {
    "": ("column 1: expected a header name, a value or (", "found the end"),
    "a =": ("column 4: expected a header name, a value or (", "found the end"),
    "a = 'x": ("column 5: expected a closing '", "the end"),
    '"a = 1': ('column 1: expected a closing "', "the end"),
    '"" = 1': ("column 1: expected a header name between the quotes", "nothing"),
    "a b": ("column 3: expected AND, OR or the end", "'b'"),
    "a = 1 = 2": ("column 7", "comparisons do not chain", "'='"),
    "(a = 1": ("column 7: expected ) or an operator", "the end"),
    "a = 1)": ("column 6: expected AND, OR or the end", "')'"),
    "a != 1": ("column 3: expected <>", "'!='"),
    "a == 1": ("column 4: expected a header name", "'='"),
    "5": ("column 1: expected a condition", "only a number"),
    "'x' OR a": ("column 1: expected a condition", "only text"),
    "a AND 5": ("column 7: expected a condition", "only a number"),
    "NOT 'x'": ("column 5: expected a condition", "only text"),
    "'a' < 5": ("column 1: expected a number or a header", "text"),
    "a < 'b'": ("column 5: expected a number or a header", "text"),
    "a > TRUE": ("column 5: expected a number or a header", "a condition"),
    "5 = 'five'": ("column 5: expected a number or a header", "text"),
    "5 = TRUE": ("column 1: expected a condition", "a number"),
    "a + 'x' = 1": ("column 5: expected a number or a header", "text"),
    "-'x' = 1": ("column 2: expected a number or a header", "text"),
    "a BETWEEN 1": ("column 12: expected AND", "the end"),
    "a BETWEEN 'x' AND 'y'": ("column 11: expected a number or a header", "text"),
    "'x' BETWEEN 1 AND 2": ("column 1: expected a number or a header", "text"),
    "a IN 1": ("column 6: expected (", "'1'"),
    "a IN ()": ("column 7: expected text in quotes or a number", "')'"),
    "a IN ('x', 1)": ("column 12: expected text in quotes, as before", "'1'"),
    "a IN (1, 'x')": ("column 10: expected a number", "'x'"),
    "a IN (b)": ("column 7: expected text in quotes or a number", "'b'"),
    "5 IN (5)": ("column 1: expected a header before IN", "a number"),
    "a LIKE b": ("column 8: expected a pattern in quotes", "'b'"),
    "a LIKE 'x' ESCAPE 'ab'": ("column 19: expected one character in quotes", "'ab'"),
    "a LIKE '!x' ESCAPE '!'": ("column 8: expected %, _ or ! after each !", "'!x'"),
    "a LIKE 'x!' ESCAPE '!'": ("column 8: expected %, _ or ! after each !", "'x!'"),
    "'x' LIKE 'x'": ("column 1: expected a header before LIKE", "text"),
    "a IS": ("column 5: expected NULL or NOT NULL", "the end"),
    "a IS NOT 5": ("column 10: expected NULL", "'5'"),
    "5 IS NULL": ("column 1: expected a header before IS NULL", "a number"),
    "a NOT = 5": ("column 7: expected IN, LIKE or BETWEEN", "'='"),
    "a = NOT b": ("column 5: expected a header name, a value or (", "'NOT'"),
    "a = AND": ("column 5: expected a header name, a value or (", "'AND'"),
    "a = 9223372036854775808": ("column 5: expected a number up to 9223372036854775807",),
    "a = +9223372036854775808": ("column 6: expected a number up to 9223372036854775807",),
    "a = 0 - 9223372036854775808": ("column 9: expected a number up to 9223372036854775807",),
    "a = -(9223372036854775808)": ("column 7: expected a number up to 9223372036854775807",),
    "a IN (9223372036854775808)": ("column 7: expected a number up to 9223372036854775807",),
    "a = -9223372036854775809": ("column 6: expected a number up to 9223372036854775807",),
    "a = -0x8000000000000001": ("column 6: expected a number up to 9223372036854775807",),
    "a = 99999999999999999999999": ("column 5: expected a number up to",),
    "a = 0x8000000000000000": ("column 5: expected a number up to",),
    "a = 0x": ("column 5: expected a number up to",),
    "a = 1E999": ("column 5: expected a number below 1.8E308",),
    "a = 007": ("column 5: expected a number without leading zeros",),
    "a = 5x": ("column 6: expected the end of the number", "'x'"),
    "a = 1.2.3": ("column 8: expected AND, OR or the end",),
    "a ? b": ("column 3: expected a header name, a value or an operator", "'?'"),
    "a ; b": ("column 3: expected a header name, a value or an operator", "';'"),
    "JMSMessageID = 'x'": ("column 1: expected one of JMSPriority", "'JMSMessageID'"),
    "a = 1 AND JMSRedelivered": ("column 11: expected one of JMSPriority",),
    "JMSTimestamp > 1": ("column 1",),
    "JMSXDeliveryCount > 1": ("column 1",),
    "convert_string_expressions:a": (),
    "convert_string_expressions:a b": ("column 30",),
}


@pytest.mark.parametrize(("text", "said"), [(text, said) for text, said in WRONG.items() if said])
def test_what_is_no_selector_is_refused_with_where_and_what(text: str, said: tuple[str, ...]) -> None:
    with pytest.raises(Refused) as refused:
        compile_selector(text)

    assert refused.value.code == "bad-selector"
    for words in said:
        assert words in refused.value.message


def test_what_the_message_shows_of_the_text_is_short_and_on_one_line() -> None:
    with pytest.raises(Refused) as refused:
        compile_selector("a = 1 'line\nand\0more" + "x" * 100 + "'")

    assert "\n" not in refused.value.message and "\0" not in refused.value.message
    assert len(refused.value.message) < 140


def test_jmsx_names_and_quoted_names_are_plain_headers() -> None:
    headers = {"JMSXGroupID": "g", "JMSMessageID": "mine", "JMS_vendor": "v"}

    for text in ("JMSXGroupID = 'g'", "\"JMSMessageID\" = 'mine'", "JMS_vendor = 'v'"):
        assert compile_selector(text).matches(headers)


def test_equal_texts_make_equal_selectors_and_one_object() -> None:
    one, same, other = compile_selector("a = 1"), compile_selector("a = 1"), compile_selector("a = 2")

    assert one is same
    assert one != other and one != "a = 1"
    assert len({one, other, Selector("a = 1", one._condition, one.cost)}) == 2


def test_what_is_refused_stays_refused() -> None:
    for _ in range(2):
        with pytest.raises(Refused):
            compile_selector("a =")


def test_xtomps_filter_is_equality_of_one_header() -> None:
    selector = compile_filter("room=a=b 'c'")

    assert selector.text == "\"room\" = 'a=b ''c'''"
    assert selector.matches({"room": "a=b 'c'"})
    assert not selector.matches({"room": "a"})
    assert not selector.matches({})
    assert compile_filter("JMSPriority=x").matches({"JMSPriority": "x"})
    assert compile_filter('a"b=').matches({'a"b': ""})


@pytest.mark.parametrize("text", ["", "room", "=x", "x" * SELECTOR_CHARS_MAX + "=1"])
def test_a_filter_without_a_name_and_a_value_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        compile_filter(text)

    assert refused.value.code == "bad-selector"
