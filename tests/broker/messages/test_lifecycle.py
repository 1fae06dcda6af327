from pathlib import Path

import pytest

from qmq.broker.messages.lifecycle import COMES_BACK, TRANSITIONS, Back, MessageState, page

HELD = (MessageState.IN_FLIGHT, MessageState.LENT)
FINAL = (MessageState.SETTLED, MessageState.DEAD)


PAGE = (Path(__file__).parents[3] / "docs/queues.md").read_text("utf-8")


def test_page_of_queues_has_every_transition() -> None:
    assert page() in PAGE, "python -m qmq.broker.messages.lifecycle prints these rows"


@pytest.mark.parametrize("why", Back)
def test_every_reason_to_come_back_leads_somewhere_and_is_on_the_page(why: Back) -> None:
    assert why in COMES_BACK
    assert f"| {why.name.lower().replace('_', ' ')} |" in page()


@pytest.mark.parametrize("state", MessageState)
def test_every_state_can_be_reached_and_is_left_or_final(state: MessageState) -> None:
    moves = [(here, there) for here, _, there in TRANSITIONS]
    moves += [(here, there) for pair in COMES_BACK.values() for there in pair for here in HELD]

    assert any(there is state for _, there in moves)
    assert any(here is state for here, _ in moves) == (state not in FINAL)


def test_settled_and_dead_messages_stay_so() -> None:
    assert not {here for here, _, _ in TRANSITIONS} & {MessageState.SETTLED, MessageState.DEAD}


def test_limit_of_deliveries_spares_only_what_no_client_has_seen_and_what_one_has_left_in_order() -> None:
    assert [why for why in Back if COMES_BACK[why][1] is not MessageState.DEAD] == [Back.UNSEEN, Back.LEFT]


def test_numbers_that_travel_between_peers_stay_what_they_are() -> None:
    assert {why.name: int(why) for why in Back} == {
        "UNSEEN": 0,
        "RELEASED": 1,
        "TIMED_OUT": 2,
        "FAILED": 3,
        "REJECTED": 4,
        "LEFT": 5,
    }
