import pytest

from qmq.broker.messages.lifecycle import COMES_BACK, TRANSITIONS, Back, MessageState, diagram


@pytest.mark.parametrize("why", Back)
def test_every_reason_to_come_back_leads_somewhere_and_is_in_the_picture(why: Back) -> None:
    assert why in COMES_BACK
    assert f": {why.name.lower().replace('_', ' ')}" in diagram()


@pytest.mark.parametrize("state", MessageState)
def test_every_state_is_in_the_picture_can_be_reached_and_is_left_or_final(state: MessageState) -> None:
    arrows = [line.strip().partition(" --> ") for line in diagram().splitlines() if " --> " in line]
    name = state.name.lower()

    assert any(target.partition(":")[0] == name for _, _, target in arrows)
    assert any(source == name for source, _, _ in arrows)


def test_picture_names_no_state_that_there_is_not() -> None:
    known = {state.name.lower() for state in MessageState} | {"[*]"}
    arrows = [line.strip().partition(" --> ") for line in diagram().splitlines() if " --> " in line]

    assert {source for source, _, _ in arrows} | {target.partition(":")[0] for _, _, target in arrows} == known


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
