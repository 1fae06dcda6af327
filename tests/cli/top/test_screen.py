"""The screen of `qmq top`: what fits into a terminal, and what each key changes."""

from typing import Any

import pytest

from qmq.cli.top.samples import Sample, per_second
from qmq.cli.top.screen import KEYS, KEYS_OPEN, draw
from qmq.cli.top.view import DOWN, ENTER, ESCAPE, UP, View

AT_US = 1_700_000_000_000_000


def node(seconds: int = 0, **changes: Any) -> dict[str, Any]:
    links = [{"peer": peer, "out": "caught-up", "in": "up", "lag": 2} for peer in "bc"]
    totals = {"accepted": 100 * seconds, "delivered": 5 * seconds, "acknowledged": 0}
    return {
        "at_us": AT_US + seconds * 1_000_000,
        "totals": totals,
        "connections": 7,
        "links": links,
        "disk_free_bytes": 3 << 30,
        "fsync": {"last_us": 1234},
        **changes,
    }


def queue(number: int, seconds: int = 0) -> dict[str, Any]:
    counts = {"messages": 50 - number, "in_flight": 1, "consumers": 2, "accepted": 10 * seconds}
    return {"destination": f"/queue/q{number}", **counts, "oldest_age_us": 61_000_000}


def sample(seconds: int = 0, **changes: Any) -> Sample:
    of_node = node(seconds, waiting=6)
    plain = Sample(float(seconds), {"a": of_node, "b": of_node}, ["c"], [], [queue(0, seconds)], 1, [])
    return plain._replace(**changes)


def test_nodes_and_queues_have_their_rates_since_the_sample_before() -> None:
    lines = draw(sample(2), sample(0), View(), 100, 12)

    assert lines[0] == "qmq top  22:13:22Z  2 nodes, 1 silent  12 messages wait  1 queues by depth"
    assert lines[2].split() == ["NODE", "STATE", "IN/S", "OUT/S", "ACK/S", "CONNS", "LINKS", "BEHIND", *_disk()]
    assert lines[3].split() == ["a", "ok", "100", "5.0", "0.0", "7", "4/4", "4", "3.0", "GiB", "1.2", "ms"]
    assert lines[5].split()[:2] == ["c", "SILENT"]
    assert lines[8].split() == [">", "/queue/q0", "50", "1", "2", "00:01:01", "10"]
    assert lines[-1] == KEYS


def _disk() -> list[str]:
    return ["DISK", "FREE", "FSYNC"]


def test_a_first_sample_has_no_rates() -> None:
    assert draw(sample(2), None, View(), 100, 12)[3].split()[2:5] == ["-", "-", "-"]


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({"held": True}, "HELD"),
        ({"draining": True}, "drained"),
        ({"disk_full": True}, "DISK FULL"),
        ({"stopping": True, "held": True}, "stopping"),
    ],
)
def test_a_node_that_does_not_serve_says_why(changed: dict[str, Any], state: str) -> None:
    assert f"a     {state}" in draw(sample(nodes={"a": node(**changed)}), None, View(), 80, 24)[3]


def test_the_most_severe_conditions_are_shown_and_the_others_counted() -> None:
    rows = [{"severity": "error", "node": "b", "code": "gap", "message": f"m{number}"} for number in range(5)]

    lines = draw(sample(conditions=rows), None, View(), 80, 24)

    assert [line for line in lines if "gap" in line] == [f"error  b  gap: m{number}" for number in range(3)]
    assert "and 2 more: qmq conditions" in lines


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 10), (40, 15), (200, 60), (20, 5)])
@pytest.mark.parametrize("opened", [None, "/queue/q1"])
def test_every_screen_fits_into_its_terminal(width: int, height: int, opened: str | None) -> None:
    queues = [queue(number) for number in range(200)]
    consumers = [{"node": "a", "session": number, "id": "1", "user": "u" * 50} for number in range(200)]

    lines = draw(sample(queues=queues, consumers=consumers), None, View(selected=150, opened=opened), width, height)

    assert len(lines) == height
    assert max(map(len, lines)) <= width


def test_the_selected_queue_is_always_on_the_screen() -> None:
    queues = [queue(number) for number in range(200)]

    for selected in (0, 9, 150, 199):
        lines = draw(sample(queues=queues), None, View(selected=selected), 80, 20)
        assert sum(line.startswith(f"> /queue/q{selected}") for line in lines) == 1


def test_an_open_queue_shows_its_consumers() -> None:
    row = {"node": "a", "session": 1, "id": "1", "user": "app", "address": "10.0.0.9", "credit": 0, "in_flight": 9}
    now, before = [{**row, "delivered": 40, "acknowledged": 20}], [{**row, "delivered": 0, "acknowledged": 0}]

    lines = draw(sample(2, consumers=now), sample(0, consumers=before), View(opened="/queue/q0"), 100, 24)

    assert "/queue/q0" in lines
    assert "a     app   10.0.0.9       0          9  20     10" in lines
    assert lines[-1] == KEYS_OPEN


def test_text_of_others_does_not_control_the_terminal() -> None:
    evil = {**queue(0), "destination": "/queue/\x1b[2J"}

    assert "\x1b" not in "".join(draw(sample(queues=[evil]), None, View(), 80, 24))


def test_keys_sort_select_open_and_close() -> None:
    names = ["/queue/a", "/queue/b"]
    view = View()

    assert view.after("o", names).sort == "oldest"
    assert view.after(UP, names).selected == 0
    assert view.after(DOWN, names).after("j", names).selected == 1
    assert view.after(DOWN, names).after("r", names).selected == 0
    opened = view.after(DOWN, names).after(ENTER, names)
    assert opened.opened == "/queue/b"
    assert opened.after("o", names) == opened.after(DOWN, names) == opened
    assert opened.after(ESCAPE, names).opened is None
    assert view.after(" ", names).after(" ", names) == view
    assert view.after("x", names) == view.after(ENTER, []) == view


@pytest.mark.parametrize(
    ("now", "before", "rate"), [(30, 10, 10.0), (10, 30, None), (None, 3, None), (3, None, None), (5, 5, 0.0)]
)
def test_a_rate_is_known_only_of_a_counter_that_went_on(now: object, before: object, rate: float | None) -> None:
    assert per_second(now, before, 2.0) == rate
