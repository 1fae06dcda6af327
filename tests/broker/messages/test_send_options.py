import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.broker.messages.send_options import (
    MILLISECONDS_MAX,
    PRIORITY_DEFAULT,
    check_options,
    options_of,
    read_seconds,
    times_of,
)
from qmq.errors import Refused

NOW_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
MILLISECOND_HEADERS = ("expires", "expiration", "ttl", "delay", "AMQ_SCHEDULED_DELAY")


def refusal(headers: bytes) -> Refused:
    with pytest.raises(Refused) as refused:
        check_options(headers)
    return refused.value


@pytest.mark.parametrize("text", ["10", "-1", "", "high", "4.0", " 4", "٤", "44"])
def test_priority_that_is_no_digit_is_refused_and_the_message_says_what_is_allowed(text: str) -> None:
    refused = refusal(f"priority:{text}\n".encode())

    assert refused.code == "bad-priority"
    assert "0 to 9" in refused.message


@pytest.mark.parametrize("name", MILLISECOND_HEADERS)
@pytest.mark.parametrize("text", ["-1", "", "soon", "1.5", "1e3", " 1", "٤", str(MILLISECONDS_MAX + 1), "9" * 400])
def test_time_that_is_no_number_of_milliseconds_is_refused_by_name(name: str, text: str) -> None:
    refused = refusal(f"{name}:{text}\n".encode())

    assert refused.code == "bad-header"
    assert name in refused.message
    assert "milliseconds" in refused.message


@pytest.mark.parametrize("text", ["-1", "", ".", "1:30", "1e3", "0.0001", "1.2.3", "٤", "9" * 13, "3162240000.1"])
def test_ack_timeout_that_is_no_number_of_seconds_is_refused(text: str) -> None:
    refused = refusal(f"ack-timeout:{text}\n".encode())

    assert refused.code == "bad-header"
    assert "ack-timeout" in refused.message
    assert "seconds" in refused.message


@pytest.mark.parametrize("name", ["JMSXGroupID", "message_group"])
def test_group_name_that_is_too_long_is_refused(name: str) -> None:
    check_options(f"{name}:{'g' * 255}\n".encode())

    refused = refusal(f"{name}:{'g' * 256}\n".encode())

    assert refused.code == "bad-header"
    assert "255" in refused.message


def test_value_that_is_not_utf_8_is_refused_like_any_other() -> None:
    assert refusal(b"priority:\xff\n").code == "bad-priority"
    assert refusal(b"ttl:\xff\n").code == "bad-header"


@pytest.mark.parametrize("digit", range(10))
def test_every_priority_from_0_to_9_is_read(digit: int) -> None:
    headers = b"priority:%d\n" % digit
    check_options(headers)
    options = options_of(headers)

    assert options is not None
    assert options.priority == digit
    assert not options.is_timed


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [("30", 30_000_000), ("0.5", 500_000), (".5", 500_000), ("1.", 1_000_000), ("0.001", 1000), ("0", 0), ("0.0", 0)]
    + [("0.0015009", 1500), (" 2 ", 2_000_000), ("3162240000", 3_162_240_000_000_000)],
)
def test_ack_timeout_is_in_seconds_with_a_fraction(text: str, microseconds: int) -> None:
    options = options_of(f"ack-timeout:{text}\n".encode())

    assert options is not None
    assert options.ack_timeout_us == microseconds == read_seconds(text, "ack-timeout")


def test_expires_is_a_time_and_ttl_is_counted_from_the_acceptance() -> None:
    assert times_of(b"expires:1700000009000\n", NOW_US) == (0, 1_700_000_009_000_000)
    assert times_of(b"ttl:9000\n", NOW_US) == (0, NOW_US + 9 * SECOND_US)
    assert times_of(b"expiration:9000\n", NOW_US) == (0, NOW_US + 9 * SECOND_US)


def test_message_with_two_expiries_expires_at_the_earlier_one() -> None:
    early, late = b"expires:1700000001000\n", b"expires:1700000099000\n"

    assert times_of(early + b"ttl:9000\n", NOW_US) == (0, 1_700_000_001_000_000)
    assert times_of(late + b"ttl:9000\n", NOW_US) == (0, NOW_US + 9 * SECOND_US)


@pytest.mark.parametrize("name", ["delay", "AMQ_SCHEDULED_DELAY"])
def test_delay_is_counted_from_the_acceptance_and_does_not_prolong_a_ttl(name: str) -> None:
    headers = f"{name}:5000\nttl:2000\n".encode()

    assert times_of(headers, NOW_US) == (NOW_US + 5 * SECOND_US, NOW_US + 2 * SECOND_US)


@pytest.mark.parametrize("name", MILLISECOND_HEADERS)
def test_zero_asks_for_nothing(name: str) -> None:
    headers = f"{name}:0\n".encode()
    check_options(headers)
    options = options_of(headers)

    assert times_of(headers, NOW_US) == (0, 0)
    assert options is not None
    assert not options.is_timed


def test_of_two_names_for_the_same_thing_the_first_that_says_something_counts() -> None:
    assert times_of(b"ttl:1000\nexpiration:2000\n", NOW_US) == (0, NOW_US + SECOND_US)
    assert times_of(b"ttl:0\nexpiration:2000\n", NOW_US) == (0, NOW_US + 2 * SECOND_US)
    assert times_of(b"AMQ_SCHEDULED_DELAY:1000\ndelay:2000\n", NOW_US) == (NOW_US + SECOND_US, 0)
    options = options_of(b"message_group:one\nJMSXGroupID:two\n")
    assert options is not None
    assert options.group == b"one"


def test_first_of_repeated_headers_counts_also_when_it_is_wrong() -> None:
    options = options_of(b"priority:9\npriority:1\nttl:1000\nttl:x\n")
    assert options is not None
    assert (options.priority, options.ttl_us) == (9, SECOND_US)
    check_options(b"priority:9\npriority:x\n")

    assert refusal(b"priority:x\npriority:9\n").code == "bad-priority"


def test_what_was_accepted_and_is_not_understood_counts_as_not_said() -> None:
    options = options_of(b"priority:urgent\nttl:1h\ndelay:5000\nack-timeout:never\nJMSXGroupID:" + b"g" * 300 + b"\n")

    assert options is not None
    assert options.priority == PRIORITY_DEFAULT
    assert (options.ttl_us, options.delay_us, options.ack_timeout_us, options.group) == (0, 5 * SECOND_US, 0, b"")


@pytest.mark.parametrize(
    "headers",
    [b"", b"colour:red\n", b"x-priority:9\n", b"Priority:9\n", b"priority-x:9\n", b"note:ttl:5\n", b"a:priority:9\n"],
)
def test_headers_that_only_look_alike_are_no_terms(headers: bytes) -> None:
    check_options(headers)

    assert options_of(headers) is None
    assert times_of(headers, NOW_US) == (0, 0)


@given(st.binary(max_size=200).map(lambda noise: noise.replace(b"\n", b"")), st.sampled_from(MILLISECOND_HEADERS))
def test_no_value_breaks_either_reading(noise: bytes, name: str) -> None:
    headers = b"%b:%b\npriority:%b\nack-timeout:%b\n" % (name.encode(), noise, noise, noise)
    options = options_of(headers)
    assert options is not None
    assert 0 <= options.priority <= 9
    assert 0 <= options.expiry(NOW_US) <= NOW_US + MILLISECONDS_MAX * 1000
    assert 0 <= options.due(NOW_US) <= NOW_US + MILLISECONDS_MAX * 1000

    try:
        check_options(headers)
    except Refused as refused:
        assert refused.code in ("bad-header", "bad-priority")


@pytest.mark.parametrize("digits", ["0" * 20 + "9" * 30, "9" * 5000, "1" + "0" * 19])
def test_time_that_no_store_could_hold_is_refused_and_read_as_not_said(digits: str) -> None:
    headers = f"delay:{digits}\nexpires:{digits}\n".encode()

    with pytest.raises(Refused, match="milliseconds"):
        check_options(headers)
    options = options_of(headers)

    assert options is not None
    assert (options.due(NOW_US), options.expiry(NOW_US)) == (0, 0)
