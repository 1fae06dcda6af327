"""The header of a dead letter that says each time it became one."""

import json

from qmq.broker.queues.deaths import HISTORY, HISTORY_BYTES_MAX, ROWS_MAX, Death, came_through, deaths_of, history_after

FIRST = {"dead-letter-reason": "rejected", "dead-letter-from": "/queue/work", "exchange": "orders", "routing-key": "eu"}


def died(headers: dict[str, str], reason: str, queue: str, through: str = "") -> dict[str, str]:
    """The headers of the letter that follows."""
    history = history_after(headers, reason, queue)
    letter = {**headers, "dead-letter-reason": reason, "dead-letter-from": queue}
    letter.pop("dead-letter-through", None)
    if history is not None:
        letter[HISTORY] = history
    return {**letter, "dead-letter-through": through} if through else letter


def test_what_never_died_has_no_deaths() -> None:
    assert deaths_of({"exchange": "orders"}) is None
    assert history_after({"exchange": "orders"}, "rejected", "/queue/work") is None


def test_the_first_death_is_in_the_headers_that_each_letter_has() -> None:
    deaths = deaths_of(FIRST)

    assert deaths is not None
    assert deaths.rows == [deaths.first] == [Death("rejected", "/queue/work", 1, "orders", "eu")]


def test_each_queue_and_reason_is_one_row_with_the_latest_first() -> None:
    letter = FIRST
    for _ in range(3):
        letter = died(letter, "expired", "/queue/wait", through="/exchange/again/eu.x/y")
        letter = died(letter, "rejected", "/queue/work")

    deaths = deaths_of(letter)

    assert deaths is not None
    assert deaths.rows == [
        Death("rejected", "/queue/work", 4, "orders", "eu"),
        Death("expired", "/queue/wait", 3, "", "wait"),
    ]
    assert deaths.first == Death("rejected", "/queue/work", 1, "orders", "eu")


def test_the_oldest_rows_are_left_out_at_either_bound() -> None:
    letter = FIRST
    for number in range(ROWS_MAX + 5):
        letter = died(letter, "rejected", f"/queue/{number}")
    deaths = deaths_of(letter)
    assert deaths is not None
    assert [one.queue for one in deaths.rows] == [f"/queue/{number}" for number in range(ROWS_MAX + 4, 4, -1)]
    assert deaths.first.queue == "/queue/work"

    for number in range(ROWS_MAX):
        letter = died(letter, "rejected", f"/queue/{number}" + "ü" * 100)
        assert len(letter[HISTORY].encode()) <= HISTORY_BYTES_MAX


def test_a_letter_says_by_which_exchange_it_came() -> None:
    letter = {**FIRST, "dead-letter-through": "/exchange/x/a.b"}
    assert came_through(letter, "/queue/q") == ("x", "a.b")
    assert came_through(FIRST, "/queue/q") == ("", "q")
    assert came_through({"exchange": "orders", "routing-key": "eu"}, "/queue/q") == ("orders", "eu")


def test_the_header_is_json_without_blanks() -> None:
    text = history_after(FIRST, "expired", "/queue/wait")

    assert text is not None
    assert json.loads(text)[1] == ["expired", "/queue/wait", 1, "", "wait"]
    assert " " not in text
