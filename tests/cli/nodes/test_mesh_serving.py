"""Which node serves which node's queue messages, computed from the status of several nodes."""

from typing import Any

from qmq.cli.mesh_serving import Served, merge_serving, serving_table


def row(owner: str, server: str, term: int, place: str = "others", seconds: float | None = None) -> dict[str, Any]:
    return {"owner": owner, "server": server, "term": term, "place": place, "seconds": seconds, "lease_seconds": 0.0}


def picture(*rows: dict[str, Any], active: bool = True) -> dict[str, Any]:
    return {"active": active, "may_hand_out": True, "serves": [], "owners": list(rows)}


def states(**pictures: dict[str, Any]) -> list[tuple[str, str, int, str]]:
    return [(one.owner, one.server, one.term, one.state) for one in merge_serving(pictures)]


def test_every_node_of_a_healthy_mesh_serves_itself() -> None:
    reports = {
        name: picture(*(row(owner, owner, 0, "serving" if owner == name else "others", 5.0) for owner in "ab"))
        for name in "ab"
    }

    assert states(**reports) == [("a", "a", 0, "serving"), ("b", "b", 0, "serving")]


def test_the_highest_term_counts_whichever_node_reports_it() -> None:
    reports = {"b": picture(row("a", "b", 3, "serving")), "c": picture(row("a", "c", 2))}

    assert states(**reports) == [("a", "b", 3, "serving")]


def test_a_server_without_an_answer_is_shown_as_silent() -> None:
    assert states(b=picture(row("a", "a", 0))) == [("a", "a", 0, "does not answer")]


def test_a_node_about_to_take_over_is_shown_before_it_serves() -> None:
    reports = {"b": picture(row("a", "a", 0, "bidding")), "c": picture(row("a", "a", 0))}
    assert states(**reports) == [("a", "b", 0, "asks for votes")]

    reports["b"] = picture(row("a", "b", 1, "arriving", 0.2))
    assert states(**reports) == [("a", "b", 1, "takes over")]


def test_a_server_without_a_lease_is_paused_and_one_that_has_stopped_serves_no_owner() -> None:
    assert states(a=picture(row("a", "a", 0, "waiting"))) == [("a", "a", 0, "paused")]
    assert states(b=picture(row("a", "b", 1, "others"))) == [("a", "b", 1, "not served")]


def test_without_takeover_the_table_is_empty() -> None:
    assert merge_serving({"a": picture(row("a", "a", 0, "waiting"), active=False), "b": {}}) == []


def test_the_table_says_since_when() -> None:
    owners = [Served("a", "b", 12, 3725.0, 6.1, "serving"), Served("b", "b", 0, None, None, "does not answer")]

    assert serving_table(owners) == [
        "MESSAGES OF  SERVED BY  TERM  SINCE     STATE",
        "a            b            12  01:02:05  serving",
        "b            b             0  -         does not answer",
    ]
