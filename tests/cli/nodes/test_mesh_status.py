"""`qmq mesh status` as a check for scripts: what its exit code says, and how it waits."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qmq.cli import mesh
from qmq.wire.stomp import Frame
from tests.cli.conftest import Run
from tests.cli.nodes.test_mesh_serving import picture, row
from tests.cli.stub import StubNode, polite, verb_answer


def facts(links: str = "up", place: str = "serving", server: str = "a") -> dict[str, Any]:
    """The status of a node with one peer."""
    takeover = picture(row("a", server, 1, place), row("b", "b", 0))
    takeover["owners"][1]["server"] = "a"
    takeover["owners"][1]["place"] = "serving"
    return {"node": "a", "peers": [{"name": "b", "out": "up", "in": links}], "takeover": takeover}


def status_of(run: Run, tmp_path: Path, reports: Iterator[dict[str, Any]], *options: str) -> int:
    def answer(node: StubNode, got: Frame) -> bytes | None:
        if got.head.command != "SEND":
            return polite(node, got)
        return verb_answer(got, next(reports))

    with StubNode(answer) as node:
        peers = tmp_path / "peers.toml"
        peers.write_text(
            f'mesh = "m"\nversion = 1\n[[nodes]]\nname = "a"\nclient = "{node.at}"\nmesh = "127.0.0.1:1"\n', "utf-8"
        )
        return run("mesh", "status", str(peers), *options).exit_code


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (facts(), 0),
        (facts(links="down"), 1),
        (facts(place="waiting"), 1),
        (facts(place="others", server="c"), 1),
        ({"node": "a", "peers": []}, 0),
    ],
    ids=["all is well", "a link is down", "paused", "its server does not answer", "a node alone"],
)
def test_the_exit_code_says_whether_the_mesh_is_whole(
    run: Run, tmp_path: Path, report: dict[str, Any], code: int
) -> None:
    assert status_of(run, tmp_path, iter([report])) == code


def test_it_waits_until_the_mesh_is_whole(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "REFRESH_SECONDS", 0)
    reports = iter([facts(links="down"), facts(place="waiting"), facts()])

    assert status_of(run, tmp_path, reports, "--wait", "1000") == 0
    assert next(reports, None) is None


def test_it_waits_no_longer_than_it_should(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In the command only: the node of this test has deadlines of its own.
    times = iter([0.0, 1.0, 5.0])
    monkeypatch.setattr(mesh, "time", SimpleNamespace(monotonic=lambda: next(times), sleep=lambda _: None))

    assert status_of(run, tmp_path, iter([facts(links="down")] * 2), "--wait", "5") == 1
