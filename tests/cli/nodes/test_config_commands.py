"""`qmq config`: check, show, hash."""

import json
import tomllib
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from qmq.config import load_node
from qmq.config.show import effective
from tests.cli.conftest import Run
from tests.support.cluster_mesh import with_secret

OF_THE_CHECKOUT = Path(__file__).parents[3] / "cluster" / "three.toml"


@pytest.fixture
def three(tmp_path: Path) -> str:
    """A peers file of three nodes, which its user alone can read."""
    path = tmp_path / "three.toml"
    path.touch(0o600)
    path.write_text(with_secret(OF_THE_CHECKOUT.read_text("utf-8")), "utf-8")
    return str(path)


def test_good_files_are_called_ok(run: Run, three: str, tmp_path: Path) -> None:
    node = tmp_path / "node.toml"
    node.write_text('name = "a"\n', "utf-8")

    result = run("config", "check", "--config", str(node), "--peers", three)

    assert result.exit_code == 0, result.output
    assert result.output == f"{node}: ok\n{three}: ok\n"


def test_a_peers_file_alone_is_checked_for_each_of_its_nodes(run: Run, three: str, tmp_path: Path) -> None:
    assert run("config", "check", "--peers", three).output == f"{three}: ok\n"

    open_mesh = tmp_path / "open.toml"
    text = "\n".join(line for line in Path(three).read_text("utf-8").splitlines() if not line.startswith("secret"))
    open_mesh.write_text(text, "utf-8")
    result = run("config", "check", "--peers", str(open_mesh))

    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"{open_mesh}: secret: is required for a mesh on loopback without [mesh.tls]",
        "qmq: 1 error in the configuration",
    ]


def test_a_node_file_that_all_nodes_share_is_checked_for_each_of_them(run: Run, three: str, tmp_path: Path) -> None:
    shared = tmp_path / "shared.toml"
    shared.write_text('[mesh]\nreceipt = "replicas=3"\n', "utf-8")
    result = run("config", "check", "--config", str(shared), "--peers", three)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "qmq: 1 error in the configuration"
    assert "asks for more nodes than the mesh has" in result.stderr

    shared.write_text("", "utf-8")
    assert run("config", "check", "--config", str(shared), "--peers", three).output == f"{shared}: ok\n{three}: ok\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[definitions.exchange.e]\ntype = "nope"\n', "exchange e: type must be one of"),
        ('[[exchanges]]\nname = "e"\ntype = "nope"\n', "exchange e: type must be one of"),
        ('[[bindings]]\nsource = "/nope/x"\nqueue = "/queue/q"\n', "binding /nope/x /queue/q: source must be"),
        ('[definitions.vhost."a~b"]\n', "vhost a~b: a name has 1 to 64 characters"),
        ('[definitions.schema.s]\ntype = "nope"\n', "schema s: "),
        ('[definitions.pause-delivery."/topic/t"]\n', "pause-delivery /topic/t: the name must be"),
        ("[definitions.usr.ann]\n", "unknown kind of definition 'usr': it is one of archive, binding"),
    ],
)
def test_definitions_that_no_node_accepts_are_errors(run: Run, tmp_path: Path, text: str, said: str) -> None:
    node = tmp_path / "node.toml"
    node.write_text(text, "utf-8")
    result = run("config", "check", "--config", str(node))

    assert result.exit_code == 2
    assert f"{node}: definitions: " in result.stderr and said in result.stderr


def test_a_binding_may_be_from_an_exchange_of_the_mesh(run: Run, tmp_path: Path) -> None:
    node = tmp_path / "node.toml"
    node.write_text('[[bindings]]\nsource = "/exchange/e"\nqueue = "/queue/q"\n', "utf-8")

    assert run("config", "check", "--config", str(node)).exit_code == 0


def test_a_node_that_does_not_say_which_one_it_is_is_asked(run: Run, three: str) -> None:
    result = run("config", "show", "--peers", three)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == (
        f"{three}: which of its nodes is this? Set --node, or name in the node file: a, b, c"
    )


def test_errors_of_both_files_are_printed_with_exit_code_2(run: Run, tmp_path: Path) -> None:
    node = tmp_path / "node.toml"
    node.write_text("x = 1\n", "utf-8")

    result = run("config", "check", "--config", str(node), "--peers", str(tmp_path / "none.toml"))

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "qmq: 2 errors in the configuration"


def test_show_prints_the_effective_settings(run: Run) -> None:
    result = run("config", "show")

    assert result.output == effective(load_node(None))


def test_show_takes_the_peers_file_and_the_command_line_into_account(run: Run, three: str) -> None:
    result = run("config", "show", "--peers", three, "--node", "c", "--data", "elsewhere")

    shown = tomllib.loads(result.output)
    assert (shown["name"], shown["data"], shown["stomp"][0]["address"]) == ("c", "elsewhere", "127.0.0.1:61615")


def test_show_as_json_has_the_same_keys(run: Run) -> None:
    assert json.loads(run("config", "show", "--json").output) == tomllib.loads(run("config", "show").output)


def test_hash_prints_a_hash_that_the_node_file_takes(run: Run, tmp_path: Path) -> None:
    result = run("config", "hash", input="pass word\nignored\n")

    hashed = result.output.removesuffix("\n")
    assert PasswordHasher().verify(hashed, "pass word")
    node = tmp_path / "node.toml"
    node.write_text(f'[[users]]\nname = "ann"\npassword_hash = "{hashed}"\n', "utf-8")
    assert load_node(node).definitions["user"]["ann"] == {"password_hash": hashed}


@pytest.mark.parametrize(("line", "problem"), [(b"\n", "empty"), (b"\xff\xfe\n", "not UTF-8")])
def test_a_password_that_is_empty_or_no_utf8_is_refused(run: Run, line: bytes, problem: str) -> None:
    result = run("config", "hash", input=line)

    assert (result.exit_code, f"the password is {problem}" in result.stderr) == (2, True)


def test_diff_prints_what_changes_and_what_needs_a_restart(run: Run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text('name = "a"\n[limits]\nprefetch_max = 1000 # the default\n', "utf-8")
    new.write_text('name = "b"\n[[destinations.policies]]\npattern = "/queue/a"\ndelivery_limit = 3\n', "utf-8")

    result = run("config", "diff", str(old), str(new))

    assert result.exit_code == 0
    assert result.output.splitlines() == [
        'name: "a" → "b"  [needs a restart]',
        "definitions[policy /queue/a]: (absent) → { delivery_limit = 3 }",
    ]


def test_diff_of_files_that_mean_the_same_says_so(run: Run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text("", "utf-8")
    new.write_text('# a comment\nname = "qmq"\n', "utf-8")

    assert run("config", "diff", str(old), str(new)).output == "no difference\n"
    assert run("config", "diff", str(old), str(new), "--json").output == "[]\n"


def test_diff_as_json_has_a_row_per_key(run: Run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text("", "utf-8")
    new.write_text("[limits]\nprefetch_max = 500\n", "utf-8")

    (row,) = json.loads(run("config", "diff", str(old), str(new), "--json").output)

    assert row == {"key": "limits.prefetch_max", "old": "1000", "new": "500", "needs_restart": False}


def test_diff_prints_the_errors_of_both_files(run: Run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text("x = 1\n", "utf-8")
    new.write_text("y = 1\n", "utf-8")

    result = run("config", "diff", str(old), str(new))

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "qmq: 2 errors in the configuration"


def test_what_a_node_without_a_disk_does_not_promise_is_a_note(run: Run, tmp_path: Path) -> None:
    node = tmp_path / "node.toml"
    node.write_text('data = "memory"\n', "utf-8")

    result = run("config", "check", "--config", str(node))

    assert result.exit_code == 0, result.output
    assert result.output.startswith("note: this node writes no file: everything is in memory, at most 256 MiB.")
    assert result.output.endswith(f"{node}: ok\n")
