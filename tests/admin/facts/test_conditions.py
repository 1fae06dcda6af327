"""Conditions begin and end, events only happen; both are counted, and logged when they are new."""

import logging

import pytest

from qmq.admin.facts.conditions import CONDITIONS_MAX, PAST_KEPT, REFUSALS, RULES, Condition, Conditions

MINUTE_US = 60_000_000


def codes(rows: list[Condition]) -> list[str]:
    return [row.code for row in rows]


def test_a_condition_is_present_until_it_is_cleared() -> None:
    conditions = Conditions()

    assert conditions.raise_condition("disk-full", "no space", 5)
    assert conditions.present()[0].since_us == 5
    assert conditions.clear("disk-full", "no space", 9)

    assert conditions.present() == []
    assert not conditions.clear("disk-full", "no space", 9)


def test_a_condition_that_lasts_is_counted_and_keeps_its_beginning() -> None:
    conditions = Conditions()

    assert [conditions.raise_condition("clock", "ahead", now) for now in (1, 2, 3)] == [True, False, False]

    (one,) = conditions.present()
    assert (one.count, one.since_us, one.last_us) == (3, 1, 3)


def test_a_condition_that_returns_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    conditions = Conditions()

    for now in (1, 2):
        conditions.raise_condition("shortage", "no files", now)
        conditions.raise_condition("shortage", "no files", now)
        conditions.clear("shortage", "no files", now)

    assert caplog.text.count("CONDITION shortage") == 2


def test_the_most_severe_conditions_are_shown_first_then_the_oldest() -> None:
    conditions = Conditions()
    for now, code in enumerate(("reload", "takeover", "disk-full", "wrong-mesh")):
        conditions.raise_condition(code, "", now)

    assert codes(conditions.present()) == ["disk-full", "wrong-mesh", "reload", "takeover"]


def test_beyond_the_bound_the_least_severe_and_newest_goes() -> None:
    conditions = Conditions()
    conditions.raise_condition("disk-full", "", 0)
    for number in range(CONDITIONS_MAX):
        conditions.raise_condition("reload", f"{number}", 1 + number)

    messages = [one.message for one in conditions.present() if one.code == "reload"]

    assert len(conditions.present()) == CONDITIONS_MAX
    assert codes(conditions.present())[0] == "disk-full"
    assert messages == [f"{number}" for number in range(CONDITIONS_MAX) if number != CONDITIONS_MAX - 2]


def test_clearing_one_condition_leaves_another_of_the_same_code() -> None:
    conditions = Conditions()
    conditions.raise_condition("takeover", "of b", 0)
    conditions.raise_condition("takeover", "of c", 0)

    conditions.clear("takeover", "of b", 1)

    assert [one.message for one in conditions.present()] == ["of c"]


def test_events_stay_the_newest_first_up_to_a_bound() -> None:
    conditions = Conditions()
    for number in range(PAST_KEPT + 2):
        conditions.add_event("gap", f"{number}", number)

    found = [one.message for one in conditions.past()]

    assert found == [f"{number}" for number in range(PAST_KEPT + 1, 1, -1)]
    assert conditions.present() == []


def test_a_condition_that_is_over_is_history_with_its_end() -> None:
    conditions = Conditions()
    conditions.raise_condition("clock", "ahead", 3)

    conditions.clear("clock", "ahead", 8)

    (one,) = conditions.past()
    assert (one.code, one.since_us, one.until_us) == ("clock", 3, 8)


def test_weather_does_not_push_losses_out() -> None:
    conditions = Conditions()
    conditions.add_event("lost", "a message", 0)
    for number in range(2 * PAST_KEPT):
        conditions.raise_condition("takeover", "of b", 2 * number)
        conditions.clear("takeover", "of b", 2 * number + 1)

    assert codes(conditions.past())[-1] == "lost"
    assert len(conditions.past()) == PAST_KEPT


def test_an_event_that_repeats_is_counted_and_logged_again_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    conditions = Conditions()
    times = (0, MINUTE_US - 1, 2 * MINUTE_US - 2, 3 * MINUTE_US - 2)

    assert [conditions.add_event("memory", "full", now) for now in times] == [True, False, False, True]

    assert caplog.text.count("EVENT memory") == 2
    assert conditions.past()[0].count == 4


def test_a_message_that_is_too_long_is_cut_and_still_cleared() -> None:
    conditions = Conditions()
    conditions.raise_condition("reload", "x" * 1000, 0)

    assert len(conditions.present()[0].message) == 300
    assert conditions.clear("reload", "x" * 1000, 1)


@pytest.mark.parametrize("code", sorted(RULES))
def test_every_code_says_what_to_do_unless_it_is_good_news(code: str) -> None:
    rule = RULES[code]

    assert rule.advice.endswith(".") == (rule.severity != "info")


def test_good_news_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Conditions().add_event("returned", "this node serves its own messages again", 0)

    assert [record.levelno for record in caplog.records] == [logging.INFO]


@pytest.mark.parametrize("code", REFUSALS)
def test_both_sides_of_a_refused_link_get_the_advice_for_its_code(code: str) -> None:
    conditions = Conditions()

    conditions.raise_condition(code, "here", 1)
    conditions.raise_condition(f"refused-{code}", "there", 1)

    assert [one.advice for one in conditions.present()] == [REFUSALS[code]] * 2
