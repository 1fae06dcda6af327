"""`qmq mesh check`: a peers file alone, and against the one that the nodes go by."""

from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.nodes.test_launch import write_peers


def test_a_file_is_checked_alone(run: Run, tmp_path: Path) -> None:
    peers = write_peers(tmp_path / "peers.toml", ("a", "b"))

    result = run("mesh", "check", str(peers))

    assert (result.exit_code, result.output) == (0, f"{peers}: ok\n")


def test_changes_are_printed_and_refused_changes_are_errors(run: Run, tmp_path: Path) -> None:
    old = write_peers(tmp_path / "old.toml", ("a", "b", "c"))
    new = tmp_path / "new.toml"
    text = old.read_text("utf-8")
    new.write_text(text[: text.rindex("[[nodes]]")], "utf-8")

    result = run("mesh", "check", str(new), "--was", str(old))

    assert result.exit_code == 2
    assert "nodes[c]" in result.output
    assert "c is left out: it must have been retired (`qmq mesh retire c`)" in result.output
    assert "must be more than" in result.stderr


def test_a_step_that_nodes_can_take_is_ok(run: Run, tmp_path: Path) -> None:
    old = write_peers(tmp_path / "old.toml", ("a", "b"))
    new = tmp_path / "new.toml"
    new.write_text(old.read_text("utf-8").replace("version = 1", "version = 2"), "utf-8")

    result = run("mesh", "check", str(new), "--was", str(old))

    assert result.exit_code == 0
    assert "version: 1 → 2" in result.output


def test_a_mesh_on_one_machine_with_tls_needs_its_node_file_in_place_of_a_secret(run: Run, tmp_path: Path) -> None:
    peers = write_peers(tmp_path / "peers.toml", ("a", "b"))
    lines = [line for line in peers.read_text("utf-8").splitlines() if not line.startswith("secret")]
    peers.write_text("\n".join(lines), "utf-8")
    config = tmp_path / "node.toml"
    config.write_text('[mesh.tls]\ncertificate = "a.pem"\nkey = "a.key"\nca = "ca.pem"\n', "utf-8")

    assert "secret: is required" in run("mesh", "check", str(peers)).stderr
    assert run("mesh", "check", str(peers), "--config", str(config)).exit_code == 0


def test_several_nodes_are_retired_only_by_the_word_that_a_majority_is_lost(run: Run) -> None:
    one_by_one = run("mesh", "retire", "b", "c", "--at", "127.0.0.1:1")
    forced = run("mesh", "retire", "b", "c", "--majority-lost", "--force", "--at", "127.0.0.1:1")

    assert (one_by_one.exit_code, forced.exit_code) == (2, 2)
    assert "--majority-lost" in one_by_one.stderr
    assert "--force has no meaning" in forced.stderr
