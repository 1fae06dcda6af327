"""`qmq pause` and `qmq resume`: what they ask of the node, and what they print."""

import pytest

from tests.cli.admin.test_connections import answers, sent
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("command", "asked", "facts", "said"),
    [
        (("pause",), {}, {"delivery": True, "acceptance": False}, "delivery is paused"),
        (("pause", "--acceptance"), {"part": "acceptance"}, {"acceptance": True}, "acceptance is paused"),
        (
            ("pause", "--acceptance", "--delivery", "--dry-run"),
            {"part": "both", "dry-run": "true"},
            {"delivery": True, "acceptance": True},
            "delivery and acceptance would be paused",
        ),
        (("resume",), {}, {"delivery": False, "acceptance": False}, "resumed"),
    ],
)
def test_it_asks_for_the_part_and_says_what_is_paused(
    run: Run, command: tuple[str, ...], asked: dict[str, str], facts: dict[str, bool], said: str
) -> None:
    verb, *options = command
    with answers(**facts) as node:
        result = run(verb, "/queue/q", *options, "--at", node.at)

    assert (result.exit_code, result.output) == (0, f"/queue/q: {said}\n")
    assert sent(node) == {"destination": f"/control/{verb}/queue/q", **asked}
