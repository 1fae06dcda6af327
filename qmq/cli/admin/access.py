"""`qmq users`, `permissions` and `limits`: users of a mesh, and what they may do and use on all nodes.

The rules are in docs/permissions.md and docs/limits.md.
"""

import json
from collections.abc import Callable
from typing import Any

import click

from ..client import Endpoint, ask
from ..options import client_options, json_option, together
from ..output import print_json, printable, show_table
from ..passwords import hash_of, password_on_stdin
from .request import list_command, read_values, warn_of_closing
from .verb import Asked, change_options


@click.group
def users() -> None:
    """List, add and delete the users of a mesh.

    A change applies on all nodes, without a restart, and to connected clients, too.
    """


@users.command("list")
@client_options
@json_option
def list_users(node: Endpoint, as_json: bool) -> None:
    """List the users and their groups.

    Password hashes are not shown.
    """
    facts = ask(node, "definitions/list/user")
    rows = [_row(one) for one in facts["definitions"]]
    if as_json:
        print_json({"users": rows})
        return
    cells = [[row["name"], "yes" if row["password"] else "no", " ".join(row["groups"])] for row in rows]
    show_table(["USER", "PASSWORD", "GROUPS"], cells)


@users.command("add")
@click.argument("name")
@click.option("--passcode-stdin", is_flag=True, help="The first line of the standard input is the password.")
@click.option("--group", "groups", metavar="NAME", multiple=True, help="A group of the user; repeatable.")
@change_options
def add_user(name: str, passcode_stdin: bool, groups: tuple[str, ...], asked: Asked) -> None:
    """Add a user, or replace it as a whole.

    The node gets a hash of the password, never the password. Without --passcode-stdin the user can log in with a
    certificate only. Exit code 1 if the user is not allowed; then nothing has changed.
    """
    value: dict[str, Any] = {"groups": list(groups)}
    if passcode_stdin:
        value["password_hash"] = hash_of(password_on_stdin())
    from ...config.users import groups_without_permission  # Other commands start without the configuration.

    remarks = groups_without_permission(name, groups, ())
    if remarks:
        rules = ask(asked.node, "definitions/list/permission")["definitions"]
        remarks = groups_without_permission(name, groups, [str(one["value"].get("group")) for one in rules])
    is_first = not ask(asked.node, "definitions/list/user")["definitions"]
    facts = asked.ask(f"definitions/put/user/{name}", body=json.dumps(value).encode())
    if is_first:
        warn_of_closing(asked.is_dry_run)
    asked.show_definition(facts, "set")
    for line in remarks:
        click.echo(f"qmq: {printable(line)}", err=True)


@users.command("delete")
@click.argument("name")
@change_options
def delete_user(name: str, asked: Asked) -> None:
    """Delete a user, and end its connections on all nodes.

    Exit code 1 if there is none. After the last user, only the Unix socket of a node (--data) and listeners with
    anonymous = true serve clients.
    """
    asked.delete(f"user/{name}")


def _row(one: dict[str, Any]) -> dict[str, Any]:
    value = {"groups": [], **one["value"]}
    return {"name": one["name"], "password": value.pop("password_hash", None) is not None, **value}


row_arguments: Callable[..., Any] = together(
    click.argument("subject"), click.argument("actions"), click.argument("pattern")
)


@click.group
def permissions() -> None:
    """List, add and delete the permissions of users and groups.

    SUBJECT is `group:NAME`, `user:NAME`, or NAME alone for a user. ACTIONS are send, subscribe, declare, administer and
    observe, separated by commas. PATTERN is a destination, or a prefix with `*`.
    """


@list_command(permissions, "definitions/list/permission")
def list_permissions(facts: dict[str, Any]) -> None:
    """List the permissions, without those of the predefined groups."""
    rows = []
    for value in (one["value"] for one in facts["definitions"]):
        word = "allow" if "allow" in value else "deny"
        rows.append([word, _subject(value), ",".join(value[word]), " ".join(value["destinations"])])
    show_table(["", "SUBJECT", "ACTIONS", "PATTERN"], rows)


@permissions.command
@row_arguments
@change_options
def allow(subject: str, actions: str, pattern: str, asked: Asked) -> None:
    """Allow a user or a group these actions on what matches a pattern.

    Exit code 1 if the permission is refused; then nothing has changed.
    """
    value = _value(subject, "allow", actions, pattern)
    asked.put(_name(value), value)


@permissions.command
@row_arguments
@change_options
def deny(subject: str, actions: str, pattern: str, asked: Asked) -> None:
    """Deny a user or a group these actions on what matches a pattern.

    A denial counts, whatever else is allowed. Exit code 1 if the permission is refused; then nothing has changed.
    """
    value = _value(subject, "deny", actions, pattern)
    asked.put(_name(value), value)


@permissions.command
@click.argument("word", type=click.Choice(["allow", "deny"]), metavar="allow|deny")
@row_arguments
@change_options
def delete(word: str, subject: str, actions: str, pattern: str, asked: Asked) -> None:
    """Delete exactly this permission, as `list` shows it.

    Exit code 1 if there is none.
    """
    asked.delete(_name(_value(subject, word, actions, pattern)))


def _value(subject: str, word: str, actions: str, pattern: str) -> dict[str, Any]:
    kind, colon, name = subject.partition(":")
    if not colon or kind not in ("user", "group"):
        kind, name = "user", subject
    return {kind: name, word: [action.strip() for action in actions.split(",")], "destinations": [pattern]}


def _name(value: dict[str, Any]) -> str:
    """The definition of a permission. The node checks what the value has."""
    from ...config.definition_values import name_permission  # the whole configuration: twice the time of a command

    word = "allow" if "allow" in value else "deny"
    return f"permission/{name_permission(_subject(value), word, value[word], value['destinations'][0])}"


def _subject(value: dict[str, Any]) -> str:
    return f"user:{value['user']}" if "user" in value else f"group:{value['group']}"


@click.group
def limits() -> None:
    """List, set and delete the limits of users and groups.

    SUBJECT is `user:NAME`, `group:NAME`, or NAME alone for a user. `*` is each user that logs in, and `anonymous` all
    clients without login together. A change applies on all nodes, without a restart.
    """


@list_command(limits, "definitions/list/limit")
def list_limits(facts: dict[str, Any]) -> None:
    """List the limits of users and groups."""
    rows = [
        [one["name"], " ".join(f"{key}={value}" for key, value in one["value"].items())] for one in facts["definitions"]
    ]
    show_table(["SUBJECT", "LIMITS"], rows)


@limits.command("set")
@click.argument("subject")
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
@change_options
def set_limit(subject: str, values: tuple[str, ...], asked: Asked) -> None:
    """Set the limits of a user, of each user of a group, or of each user (`*`).

    KEY is connections_max, subscriptions_max, messages_per_second_max, bytes_per_second_max, queues_max or
    held_bytes_max. 0 is no limit. Keys that are not given set no limit. Exit code 1 if a limit is not allowed; then
    nothing has changed.
    """
    asked.put(f"limit/{_limit_name(subject)}", read_values(values))


@limits.command("delete")
@click.argument("subject")
@change_options
def delete_limit(subject: str, asked: Asked) -> None:
    """Delete the limits of exactly this SUBJECT.

    Exit code 1 if there are none.
    """
    asked.delete(f"limit/{_limit_name(subject)}")


def _limit_name(subject: str) -> str:
    """The name of the definition."""
    return subject if subject.startswith(("user:", "group:")) else f"user:{subject}"
