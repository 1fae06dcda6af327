"""`qmq support` packs what a helper needs, also of a mesh that does not answer, and nothing that is secret."""

import json
import stat
import tarfile
from pathlib import Path

import pytest

from qmq.cli.doctor import support
from tests.cli.conftest import Run
from tests.cli.doctor.test_facts import ANSWERS
from tests.cli.stub import of_verbs

HASH = "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNo"
NOBODY_ANSWERS = ("--at", "127.0.0.1:1")


def unpacked(archive: Path) -> dict[str, str]:
    """Name in the archive, without its folder → text."""
    with tarfile.open(archive) as members:
        found = {}
        for member in members.getmembers():
            file = members.extractfile(member)
            assert file is not None
            folder, _, name = member.name.partition("/")
            assert folder == "out"
            found[name] = file.read().decode()
    return found


def test_the_mesh_and_its_findings_are_packed_and_a_part_that_is_refused_is_left_out(run: Run, tmp_path: Path) -> None:
    with of_verbs(ANSWERS, "status") as node:
        result = run("support", str(tmp_path / "out.tar.gz"), "--at", node.at)

    found = unpacked(tmp_path / "out.tar.gz")
    assert result.exit_code == 0
    assert result.output.splitlines()[:-1] == [f"  {name}" for name in found]
    assert "error  c  does not answer" in found["mesh/findings.txt"]
    assert json.loads(found["mesh/facts.json"])["missing"] == ["c"]
    assert "may not" in found["node/not-read.txt"]
    assert {"qmq", "python", "system", "packages"} <= json.loads(found["about.json"]).keys()


def test_of_a_mesh_that_does_not_answer_the_files_and_logs_are_packed(run: Run, tmp_path: Path) -> None:
    peers, node, log = tmp_path / "peers.toml", tmp_path / "node.toml", tmp_path / "qmq.log"
    peers.write_text(
        'mesh = "shop"\nversion = 1\nsecret = "sixteen characters"\n'
        '[[nodes]]\nname = "a"\nmesh = "127.0.0.1:1"\nclient = "127.0.0.1:2"\n'
        '[[nodes]]\nname = "b"\nmesh = "127.0.0.1:3"\nclient = "127.0.0.1:4"\n'
    )
    node.write_text(f'name = "a"\npeers = "peers.toml"\ndata = "d"\n[definitions.user.ann]\npassword_hash = "{HASH}"\n')
    log.write_bytes(b"= started\n! caf\xe9\n")

    result = run("support", str(tmp_path / "out.tar.gz"), *NOBODY_ANSWERS, "--config", str(node), "--log", str(log))

    found = unpacked(tmp_path / "out.tar.gz")
    assert result.exit_code == 0, result.output
    assert "is a node running there?" in found["mesh/not-read.txt"]
    assert found["logs/1-qmq.log"] == "= started\n! caf\\xe9\n"
    assert 'mesh = "shop"' in found["files/peers.toml"]
    assert "[definitions.user.ann]" in found["files/node.toml"]
    assert not [name for name, text in found.items() if "sixteen characters" in text or HASH in text]


def test_a_node_file_with_errors_is_left_out_with_its_errors(run: Run, tmp_path: Path) -> None:
    node = tmp_path / "node.toml"
    node.write_text("nmae = 1\n")

    run("support", str(tmp_path / "out.tar.gz"), *NOBODY_ANSWERS, "--config", str(node))

    assert "nmae" in unpacked(tmp_path / "out.tar.gz")["files/not-read.txt"]


def test_of_a_long_log_the_last_whole_lines_are_packed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "LOG_BYTES_MAX", 20)
    log = tmp_path / "qmq.log"
    log.write_text("first line\nsecond line\nlast line\n")

    run("support", str(tmp_path / "out.tar.gz"), *NOBODY_ANSWERS, "--log", str(log))

    assert unpacked(tmp_path / "out.tar.gz")["logs/1-qmq.log"] == "last line\n"


def test_the_file_is_for_its_user_alone_and_none_is_overwritten(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "out.tar.gz"

    assert run("support", str(output), *NOBODY_ANSWERS).exit_code == 0
    first = output.read_bytes()
    again = run("support", str(output), *NOBODY_ANSWERS)

    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    assert again.exit_code == 1
    assert "exists already; nothing was written" in again.output
    assert output.read_bytes() == first
