"""Every pair of state and command is either a row of the table or refused with nothing changed."""

import pytest

from qmq.errors import RemoteProtocolError
from qmq.wire.stomp import NEXT_STATE, Head, Role, State, Version
from qmq.wire.stomp.states import COMMANDS, Dialogue

EVERY_COMMAND = sorted(COMMANDS[Role.SERVER] | COMMANDS[Role.CLIENT] | {"PING", "send", ""})
EVERY_PAIR = [(role, state, command) for role in Role for state in State for command in EVERY_COMMAND]


def dialogue_in(role: Role, state: State) -> Dialogue:
    dialogue = Dialogue(role)
    steps = {
        (Role.SERVER, State.OPEN): ["STOMP"],
        (Role.SERVER, State.CLOSING): ["CONNECT", "DISCONNECT"],
        (Role.CLIENT, State.OPEN): ["CONNECTED"],
        (Role.CLIENT, State.CLOSING): ["ERROR"],
    }
    for command in steps.get((role, state), []):
        dialogue.check(command)
        dialogue.advance(Head(command, {}, Version.V10))
    if state is State.BROKEN:
        dialogue.break_off()
    assert dialogue.state is state
    return dialogue


@pytest.mark.parametrize(("role", "state", "command"), EVERY_PAIR)
def test_command_moves_as_listed_or_is_refused_with_nothing_changed(role: Role, state: State, command: str) -> None:
    dialogue = dialogue_in(role, state)
    following = NEXT_STATE[role][state].get(command)

    if following is None:
        with pytest.raises(RemoteProtocolError):
            dialogue.check(command)
        assert (dialogue.state, dialogue.version) == (state, Version.V10)
    else:
        dialogue.check(command)
        assert dialogue.advance(Head(command, {}, Version.V10)) is (following is not state)
        assert dialogue.state is following


@pytest.mark.parametrize(
    ("role", "state", "command", "code"),
    [
        (Role.SERVER, State.EXPECT_CONNECT, "SEND", "not-connected"),
        (Role.SERVER, State.EXPECT_CONNECT, "DISCONNECT", "not-connected"),
        (Role.SERVER, State.OPEN, "CONNECT", "already-connected"),
        (Role.SERVER, State.OPEN, "STOMP", "already-connected"),
        (Role.SERVER, State.OPEN, "MESSAGE", "unknown-command"),
        (Role.SERVER, State.OPEN, "send", "unknown-command"),
        (Role.SERVER, State.CLOSING, "SEND", "after-disconnect"),
        (Role.CLIENT, State.EXPECT_CONNECT, "MESSAGE", "not-connected"),
        (Role.CLIENT, State.OPEN, "CONNECTED", "already-connected"),
        (Role.CLIENT, State.OPEN, "SEND", "unknown-command"),
        (Role.CLIENT, State.CLOSING, "MESSAGE", "after-error"),
    ],
)
def test_refusal_says_what_is_wrong(role: Role, state: State, command: str, code: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        dialogue_in(role, state).check(command)

    assert refused.value.code == code
    assert refused.value.message
    assert refused.value.detail


def test_unknown_command_is_refused_with_the_known_commands() -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        dialogue_in(Role.SERVER, State.OPEN).check("PUBLISH")

    assert "'PUBLISH'" in refused.value.message
    assert all(command in refused.value.detail for command in COMMANDS[Role.SERVER])


def test_failed_negotiation_changes_nothing() -> None:
    dialogue = Dialogue(Role.SERVER)

    with pytest.raises(RemoteProtocolError, match="version-unsupported"):
        dialogue.advance(Head("CONNECT", {"accept-version": "9.9"}, Version.V10))

    assert (dialogue.state, dialogue.version) == (State.EXPECT_CONNECT, Version.V10)


def test_table_covers_every_state_of_both_roles() -> None:
    assert all(set(NEXT_STATE[role]) == set(State) for role in Role)
