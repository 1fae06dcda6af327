"""`qmq users`: the users of a mesh. The rules are in docs/permissions.md."""

import json
import sys
from typing import Any

import click

from ..admin.definitions import show_rows, warn_of_closing
from ..admin.request import DefinitionChange, ask, change_options
from ..client import Endpoint
from ..options import client_options, json_option
from ..output import print_json


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
        print_json({"users": rows, "seeded": facts.get("seeded", True)})
        return
    cells = [[row["name"], "yes" if row["password"] else "no", " ".join(row["groups"])] for row in rows]
    show_rows(facts, "user", ["USER", "PASSWORD", "GROUPS"], cells)


@users.command("add")
@click.argument("name")
@click.option("--passcode-stdin", is_flag=True, help="The first line of the standard input is the password.")
@click.option("--group", "groups", metavar="NAME", multiple=True, help="A group of the user; repeatable.")
@change_options
def add_user(name: str, passcode_stdin: bool, groups: tuple[str, ...], change: DefinitionChange) -> None:
    """Add a user, or replace it as a whole.

    The node gets a hash of the password, never the password. Without --passcode-stdin the user can log in with a
    certificate only. Exit code 1 if the user is not allowed; then nothing has changed.
    """
    value: dict[str, Any] = {"groups": list(groups)}
    if passcode_stdin:
        value["password_hash"] = _hash(sys.stdin.readline().removesuffix("\n").removesuffix("\r"))
    is_first = not ask(change.node, "definitions/list/user")["definitions"]
    facts = change.ask(f"definitions/put/user/{name}", body=json.dumps(value).encode())
    if is_first:
        warn_of_closing(change.dry_run)
    change.show_definition(facts, "set")


@users.command("delete")
@click.argument("name")
@change_options
def delete_user(name: str, change: DefinitionChange) -> None:
    """Delete a user, and end its connections on all nodes.

    Exit code 1 if there is none. After the last user, only the Unix socket of a node (--data) and listeners with
    anonymous = true serve clients.
    """
    change.delete(f"user/{name}")


def _row(one: dict[str, Any]) -> dict[str, Any]:
    value = {"groups": [], **one["value"]}
    return {"name": one["name"], "password": value.pop("password_hash", None) is not None, **value}


def _hash(password: str) -> str:
    if not password:
        raise click.UsageError("the password is empty")
    from argon2 import PasswordHasher

    return PasswordHasher().hash(password)
