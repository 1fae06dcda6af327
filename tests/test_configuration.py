"""docs/configuration.md says what the code does: every key, its default, the examples, and what needs no restart."""

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import NODEFAULT
from trio.testing import MockClock

from qmq.broker.routing.binding import BINDING_KEYS, EXCHANGE_KEYS
from qmq.cli import main
from qmq.config import (
    DestinationPolicy,
    DestinationSettings,
    ListenerSettings,
    MeshSettings,
    NodeSettings,
    Peer,
    PeersFile,
    PermissionSettings,
    StorageSettings,
    TlsSettings,
    User,
    UserLimitSettings,
    load_node,
    load_peers,
)
from qmq.config.destinations.declared import QueueLifetime
from qmq.config.destinations.policy import KEYS
from qmq.config.difference import CHANGES_LIVE
from qmq.config.node import TracingSettings
from qmq.errors import ConfigError
from qmq.section import Section, read_size
from tests.node.rig import Rig, send

PAGE = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text("utf-8")

SECTIONS: dict[str, type[Section]] = {
    "The node itself": NodeSettings,
    "`[[stomp]]`": ListenerSettings,
    "`[stomp.tls]`": TlsSettings,
    "`[storage]`": StorageSettings,
    "`[definitions.user]`": User,
    "`[definitions.permission]`": PermissionSettings,
    "`[definitions.limit]`": UserLimitSettings,
    "`[destinations]`": DestinationSettings,
    "`[definitions.policy]`": DestinationPolicy,
    "`[definitions.queue]`": QueueLifetime,
    "`[mesh]`": MeshSettings,
    "`[tracing]`": TracingSettings,
    "The mesh": PeersFile,
    "`[[nodes]]`": Peer,
}

# Defaults that are no single value: described in words.
IN_WORDS = {("The node itself", key) for key in ("stomp", "storage", "limits", "destinations", "mesh", "tracing")}


# What is the name of a definition, or has no place in a file.
NAMED: dict[type[Section], tuple[str, ...]] = {
    User: ("name",),
    UserLimitSettings: ("user", "group"),
    DestinationSettings: ("policies",),
    DestinationPolicy: ("pattern",),
    QueueLifetime: ("exclusive_to_connection",),
}


def rows(heading: str) -> dict[str, list[str]]:
    """Key → the other cells of its row, in the table under `heading`."""
    body = PAGE.partition(f"\n### {heading}\n")[2]
    body = re.split(r"^##", body, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"^\| `(\w+)` \|(.*)\|$", body, re.MULTILINE)
    return {key: [cell.strip() for cell in rest.split(" | ")] for key, rest in found}


def keys_of(model: type[Section]) -> list[str]:
    """What a file can say, without what is the name of a definition."""
    return [name for name in model.keys() if name not in NAMED.get(model, ())]


EVERY_KEY = [(heading, key) for heading, model in SECTIONS.items() for key in keys_of(model)]


@pytest.mark.parametrize(("heading", "key"), EVERY_KEY)
def test_every_key_has_a_row_with_its_default(heading: str, key: str) -> None:
    cells = rows(heading)[key]
    shown = cells[1] if heading == "`[definitions.policy]`" else cells[0]
    field = SECTIONS[heading].keys()[key]

    if (heading, key) in IN_WORDS:
        return
    if field.default is NODEFAULT:
        assert shown == "!"
    elif field.default is None:
        assert shown == "–"
    else:
        value = tomllib.loads(f"x = {shown.strip('`')}")["x"]
        default = str(field.default) if isinstance(field.default, Path) else field.default
        assert (read_size(value) if isinstance(default, int) else tuple(value) if value == [] else value) == default


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_row_is_a_key(heading: str) -> None:
    assert set(rows(heading)) == set(keys_of(SECTIONS[heading]))


def test_exchanges_and_bindings_have_the_keys_of_their_definitions() -> None:
    assert tuple(rows("`[definitions.exchange]`")) == EXCHANGE_KEYS
    assert tuple(rows("`[definitions.binding]`")) == BINDING_KEYS


@pytest.mark.parametrize("key", [key for key in DestinationPolicy.keys() if key != "pattern"])
def test_the_kind_of_destination_that_a_key_is_for_is_right(key: str) -> None:
    kinds = [f"{kind.strip('/')}s" for kind, keys in KEYS.items() if key in keys]

    assert rows("`[definitions.policy]`")[key][0] == ", ".join(kinds)


EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
TO_REPLACE = "PASTE HERE WHAT qmq config hash PRINTS"


def printed_hash(password: str) -> str:
    """What `qmq config hash` prints for it."""
    result = CliRunner().invoke(main, ["config", "hash"], input=f"{password}\n")
    assert result.exit_code == 0, result.output
    return result.output.split()[-1]


def written(text: str, folder: Path) -> Path:
    path = folder / "example.toml"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_is_taken(text: str, tmp_path: Path) -> None:
    path = written(text.replace(TO_REPLACE, printed_hash("secret")) if TO_REPLACE in text else text, tmp_path)

    if "[[nodes]]" in text:
        load_peers(path)
    else:
        load_node(path)


def test_users_that_are_copied_without_their_hashes_are_refused_with_the_command_that_makes_them(
    tmp_path: Path,
) -> None:
    (text,) = [text for text in EXAMPLES if TO_REPLACE in text]

    with pytest.raises(ConfigError) as refused:
        load_node(written(text, tmp_path))

    assert len(refused.value.diagnostics) == text.count(TO_REPLACE)
    assert all("`qmq config hash`" in mistake for mistake in refused.value.diagnostics)


async def test_users_that_are_copied_log_in_with_the_rights_that_their_comments_say(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    (text,) = [text for text in EXAMPLES if TO_REPLACE in text]
    for name in ("app", "monitoring", "root"):
        text = text.replace(TO_REPLACE, printed_hash(f"password of {name}"), 1)
    definitions = load_node(written(text, tmp_path)).definitions

    async with Rig(definitions=definitions).run() as rig:
        for user in definitions["user"]:
            sends = "ERROR" if user == "monitoring" else "RECEIPT"
            observes = "ERROR" if user == "app" else "RECEIPT"
            for destination, answer in (("/queue/q", sends), ("/control/list/queue", observes)):
                client = await rig.connect(login=user, passcode=f"password of {user}")
                await client.send(send(destination, "", "sent"))
                assert (await client.any()).head.command == answer, (user, destination)
    assert {name: user["groups"] for name, user in definitions["user"].items()} == {
        "app": ["client"],
        "monitoring": ["observer"],
        "root": ["administrator"],
    }


def test_the_limits_that_need_no_restart_are_those_of_the_page() -> None:
    said = PAGE.partition("Limits that a running node applies:")[2].partition("\n\n")[0]

    live = {key.removeprefix("limits.") for key in CHANGES_LIVE if key.startswith("limits.")}
    assert set(re.findall(r"`(\w+)`", said)) == live
