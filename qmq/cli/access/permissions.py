"""`qmq permissions`: what users and groups may do, on all nodes. The rules are in docs/permissions.md."""

from collections.abc import Callable
from typing import Any

import click

from ...config.definition_values import name_permission
from ..admin.definitions import show_rows
from ..admin.request import DefinitionChange, change_options, list_command
from ..options import together

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
    show_rows(facts, "permission", ["", "SUBJECT", "ACTIONS", "PATTERN"], rows)


@permissions.command
@row_arguments
@change_options
def allow(subject: str, actions: str, pattern: str, change: DefinitionChange) -> None:
    """Allow a user or a group these actions on what matches a pattern.

    Exit code 1 if the permission is refused; then nothing has changed.
    """
    value = _value(subject, "allow", actions, pattern)
    change.put(_name(value), value)


@permissions.command
@row_arguments
@change_options
def deny(subject: str, actions: str, pattern: str, change: DefinitionChange) -> None:
    """Deny a user or a group these actions on what matches a pattern.

    A denial counts, whatever else is allowed. Exit code 1 if the permission is refused; then nothing has changed.
    """
    value = _value(subject, "deny", actions, pattern)
    change.put(_name(value), value)


@permissions.command
@click.argument("word", type=click.Choice(["allow", "deny"]), metavar="allow|deny")
@row_arguments
@change_options
def delete(word: str, subject: str, actions: str, pattern: str, change: DefinitionChange) -> None:
    """Delete exactly this permission, as `list` shows it.

    Exit code 1 if there is none.
    """
    change.delete(_name(_value(subject, word, actions, pattern)))


def _value(subject: str, word: str, actions: str, pattern: str) -> dict[str, Any]:
    kind, colon, name = subject.partition(":")
    if not colon or kind not in ("user", "group"):
        kind, name = "user", subject
    return {kind: name, word: [action.strip() for action in actions.split(",")], "destinations": [pattern]}


def _name(value: dict[str, Any]) -> str:
    """The definition of a permission. The node checks what the value has."""
    word = "allow" if "allow" in value else "deny"
    return f"permission/{name_permission(_subject(value), word, value[word], value['destinations'][0])}"


def _subject(value: dict[str, Any]) -> str:
    return f"user:{value['user']}" if "user" in value else f"group:{value['group']}"
