"""Old sections in the text of a node file are moved to `[definitions]`, with their comments."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from qmq.cli import main
from qmq.config import load_node
from qmq.config.migration import migrated
from tests.config.test_old_sections import ALL, HASH

USER = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\n'


def test_headers_are_replaced_and_comments_stay() -> None:
    text = """
# why
[[destinations.policies]]  # here
# inside
pattern = "/fanout/*"  # all
retention_seconds = 3  # few
children = [
  "/queue/a",  # first
]
# limits
[limits]
prefetch_max = 5
"""
    assert (
        migrated(text)
        == """
# why
[definitions.policy."/fanout/*"]  # here
# inside
retention_seconds = 3  # few
children = [
  "/queue/a",  # first
]
# limits
[limits]
prefetch_max = 5
"""
    )


def test_a_permission_for_several_destinations_becomes_several() -> None:
    text = '[[permissions]]\n# who\ngroup = "g"\nallow = ["send"]\ndestinations = ["/queue/a", "/queue/b"]\n'

    assert migrated(text) == (
        '[definitions.permission."group:g allow send /queue/a"]\n# who\n'
        'group = "g"\nallow = ["send"]\ndestinations = ["/queue/a"]\n'
        '\n[definitions.permission."group:g allow send /queue/b"]\n'
        'group = "g"\nallow = ["send"]\ndestinations = ["/queue/b"]\n'
    )


def test_a_permission_that_two_entries_have_is_moved_once(tmp_path: Path) -> None:
    first = '[[permissions]]\nuser = "ann"\nallow = ["send", "subscribe"]\ndestinations = ["/queue/a", "/queue/b"]\n'
    second = first.replace('"send", "subscribe"', '"subscribe", "send"').replace('"/queue/a"', '"/queue/c"')
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(USER + first + second, "utf-8")
    new.write_text(migrated(USER + first + second), "utf-8")

    names = [f"user:ann allow send,subscribe /queue/{name}" for name in "abc"]
    assert sorted(load_node(new).definitions["permission"]) == names
    assert load_node(new) == load_node(old)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("definitions = 5\n" + USER, ":1: definitions = 5: must be a section of kinds"),
        ("[definitions]\nuser = 5\n" + USER, ":2: definitions.user = 5: must be a section of names"),
        ('\n[[bindings]]\nqueue = "/queue/q"\n', ":2: bindings[0]: source: is required"),
        (USER * 2, ":4: users[1]: must not have two entries for ann"),
        ("[[", ": not TOML"),
        (None, ": cannot be read: No such file or directory"),
    ],
)
def test_the_command_names_what_is_wrong_in_the_file_as_a_check_does(
    tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "node.toml"
    if text is not None:
        path.write_text(text, "utf-8")

    result = CliRunner().invoke(main, ["config", "migrate", str(path)])

    assert result.exit_code == 2
    assert said in result.output


def test_tables_inside_an_entry_move_with_it() -> None:
    text = '[[bindings]]\nsource = "/exchange/e"\nqueue = "/queue/q"\nexchange = ""\n[bindings.arguments]\nx = 1\n'
    name = '"/exchange/e /queue/q  {\\"x\\":\\"1\\"}"'

    assert migrated(text) == (
        f'[definitions.binding.{name}]\nsource = "/exchange/e"\nqueue = "/queue/q"\n'
        f"[definitions.binding.{name}.arguments]\nx = 1\n"
    )


def test_the_new_text_means_the_same_and_is_moved_no_further(tmp_path: Path) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(ALL, "utf-8")
    new.write_text(migrated(ALL), "utf-8")

    assert load_node(new) == load_node(old)
    assert load_node(new).notes == () and not load_node(new).old_entries
    assert migrated(new.read_text("utf-8")) == new.read_text("utf-8")


def test_an_entry_that_is_a_definition_already_is_left_out() -> None:
    text = f'{USER}[definitions.user.ann]\ngroups = ["client"]\n'

    assert migrated(text) == '[definitions.user.ann]\ngroups = ["client"]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('users = [{ name = "ann" }]\n', "users is a list in one value: write it as"),
        ('[destinations]\npolicies = [{ pattern = "/queue/a" }]\n', "destinations.policies is a list in one value"),
        (f'{USER}[definitions]\nfile = "x.toml"\n', "its definitions are in a file of their own"),
    ],
)
def test_what_cannot_be_moved_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=".") as refused:
        migrated(text)

    assert said in str(refused.value)


def test_the_command_shows_the_difference_without_hashes_and_writes_beside_the_file(tmp_path: Path) -> None:
    path, beside = tmp_path / "node.toml", tmp_path / "node.toml.new"
    path.write_text(USER, "utf-8")
    path.chmod(0o600)

    shown = CliRunner().invoke(main, ["config", "migrate", str(path)])
    assert (shown.exit_code, beside.exists()) == (0, False)
    assert "-[[users]]\n" in shown.output and "+[definitions.user.ann]\n" in shown.output
    assert "argon2" not in shown.output

    assert CliRunner().invoke(main, ["config", "migrate", str(path), "--write"]).exit_code == 0
    assert (path.read_text("utf-8"), beside.stat().st_mode & 0o777) == (USER, 0o600)
    assert load_node(beside) == load_node(path)

    again = CliRunner().invoke(main, ["config", "migrate", str(path), "--write"])
    assert (again.exit_code, "node.toml.new: cannot be written: File exists" in again.output) == (1, True)
    nothing = CliRunner().invoke(main, ["config", "migrate", str(beside)])
    assert (nothing.exit_code, nothing.output) == (0, "nothing to move\n")
