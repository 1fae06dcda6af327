"""`qmq definitions` and `qmq policies`: settings that the mesh shares. The rules are in docs/definitions.md."""

import json
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Final

import click

from ...definitions.document import differences, document, read_document
from ..client import Endpoint, Headers
from ..options import client_options, json_option, together
from ..output import Failed, print_json, printable, table
from .request import ask, check_kind

SECRET: Final = "password_hash"

CLOSED: Final = (
    "qmq: these are the first users: from now on clients without login are refused, except at listeners with "
    "anonymous = true. `qmq … --data DIR` on the machine of a node needs no login"
)

change_flags: Callable[..., Any] = together(
    click.option("--quorum", is_flag=True, help="Wait until a majority of the nodes has the change."),
    click.option("--dry-run", is_flag=True, help="Check everything, and change nothing."),
    json_option,
)

change_options: Callable[..., Any] = together(client_options, change_flags)


@click.group
def definitions() -> None:
    """Export, import and compare the definitions of a mesh.

    Definitions are settings that the whole mesh shares, such as policies of destinations.
    """


@definitions.command("export")
@client_options
@json_option
def export(node: Endpoint, as_json: bool) -> None:
    """Print all definitions, as a file for `import`.

    The file is JSON, with or without --json.
    """
    click.echo(json.dumps(_export(node), indent=2, ensure_ascii=False))


@definitions.command("import")
@click.argument("file", type=click.File("rb"))
@change_options
def import_(file: BinaryIO, node: Endpoint, quorum: bool, dry_run: bool, as_json: bool) -> None:
    """Define what a file contains: all of it or nothing.

    FILE is what `export` printed, or what RabbitMQ exported. `-` is the standard input. What has no counterpart in a
    file of RabbitMQ is listed, and its users come without passwords. Definitions that the file does not contain stay.
    """
    data = file.read()
    closes = "user" in read_document(data)[0] and not ask(node, "definitions/list/user")["definitions"]
    facts = ask(node, "definitions/import", change_headers(quorum, dry_run), data)
    if closes:
        click.echo(CLOSED.replace("from now on", "then") if dry_run else CLOSED, err=True)
    left_out = facts.get("left_out", [])
    if as_json:
        print_json(facts)
    else:
        for line in left_out:
            click.echo(printable(f"left out: {line}"))
        count = facts["definitions"]
        click.echo(
            f"{count} definitions are correct" if dry_run else f"{count} definitions, {facts['changed']} changed"
        )
    check_quorum(facts)


@definitions.command("diff")
@click.argument("file", type=click.File("rb"))
@client_options
@json_option
def diff(file: BinaryIO, node: Endpoint, as_json: bool) -> None:
    """Show how the definitions of the mesh differ from a file.

    FILE is as for `import`. Password hashes are not shown, only whether they differ. Exit code 1 if there is a
    difference; a line on stderr says why, if `import` would refuse the file.
    """
    data = file.read()
    present, _ = read_document(json.dumps(_export(node)).encode())
    wanted, left_out = read_document(data, present.get("user", {}))
    rows = [
        {"kind": kind, "name": name, **_without_secrets(mesh, in_file)}
        for kind, name, mesh, in_file in differences(present, wanted)
    ]
    if as_json:
        print_json({"differences": rows, "left_out": left_out})
    else:
        for row in rows:
            click.echo(printable(f"{row['kind']} {row['name']}: {_text(row['mesh'])} → {_text(row['file'])}"))
        for line in left_out:
            click.echo(printable(f"left out: {line}"))
    if rows:
        # What differs is of little use if the file cannot be imported: a key may be misspelled.
        ask(node, "definitions/import", change_headers(quorum=False, dry_run=True), data)
        raise SystemExit(1)


@click.group
def policies() -> None:
    """List, set and delete the policies of destinations.

    A change applies on all nodes, without a restart.
    """


@policies.command("list")
@client_options
@json_option
def list_policies(node: Endpoint, as_json: bool) -> None:
    """List the policies, and what they set."""
    facts = ask(node, "definitions/list/policy")
    if as_json:
        print_json(facts)
        return
    rows = [[row["name"], " ".join(f"{k}={_text(v)}" for k, v in row["value"].items())] for row in facts["definitions"]]
    show_rows(facts, "policy", ["PATTERN", "VALUES"], rows)


@policies.command("set")
@click.argument("pattern")
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
@change_options
def set_policy(
    pattern: str, values: tuple[str, ...], node: Endpoint, quorum: bool, dry_run: bool, as_json: bool
) -> None:
    """Set the policy of a destination, or of all that match a pattern.

    PATTERN is a destination, or a prefix with `*`. The keys are those of the node file; a VALUE is JSON, or text. The
    keys that are not given get their defaults. Exit code 1 if the policy is not allowed; then nothing has changed.
    """
    check_kind(pattern, ("queue", "fanout", "topic"))
    facts = ask(
        node,
        f"definitions/put/policy{pattern}",
        change_headers(quorum, dry_run),
        json.dumps(read_values(values)).encode(),
    )
    show_change(facts, "set", dry_run, as_json)


@policies.command("delete")
@click.argument("pattern")
@change_options
def delete_policy(pattern: str, node: Endpoint, quorum: bool, dry_run: bool, as_json: bool) -> None:
    """Delete the policy of exactly this pattern.

    Exit code 1 if there is none.
    """
    check_kind(pattern, ("queue", "fanout", "topic"))
    facts = ask(node, f"definitions/delete/policy{pattern}", change_headers(quorum, dry_run))
    show_change(facts, "deleted", dry_run, as_json)


def _export(node: Endpoint) -> dict[str, Any]:
    found = ask(node, "definitions/export").get("document")
    return found if isinstance(found, dict) else document({})


def _without_secrets(mesh: Mapping[str, Any] | None, in_file: Mapping[str, Any] | None) -> dict[str, Any]:
    """Both values of a difference. A terminal or a log of CI must not get password hashes."""
    differ = mesh is not None and in_file is not None and mesh.get(SECRET) != in_file.get(SECRET)
    return {"mesh": _hidden(mesh, "hidden"), "file": _hidden(in_file, "hidden, another" if differ else "hidden")}


def _hidden(value: Mapping[str, Any] | None, word: str) -> Mapping[str, Any] | None:
    return {**value, SECRET: word} if value is not None and SECRET in value else value


def change_headers(quorum: bool, dry_run: bool) -> Headers:
    return [*([("quorum", "true")] if quorum else []), *([("dry-run", "true")] if dry_run else [])]


def read_values(given: tuple[str, ...]) -> dict[str, Any]:
    """What `KEY=VALUE...` says; a value is JSON, or text."""
    values: dict[str, Any] = {}
    for one in given:
        key, sign, text = one.partition("=")
        if not sign or not key:
            raise click.BadParameter(f"{one!r} must be KEY=VALUE")
        if key in values:
            raise click.BadParameter(f"{key} is given twice")
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    return values


def _text(value: object) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def show_rows(facts: Mapping[str, Any], kind: str, heads: list[str], rows: list[list[str]]) -> None:
    """Print the definitions of one kind, and whether they are those of the node file."""
    click.echo("\n".join(table(heads, [[printable(cell) for cell in row] for row in rows])))
    if not facts.get("seeded", True):
        click.echo(f"qmq: these are from the node file: no {kind} was changed at run time", err=True)


def show_change(facts: Mapping[str, Any], done: str, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        name = f"{facts['kind']} {facts['name']}"
        same = not dry_run and not facts["changed"]
        click.echo(
            printable(
                f"{name} would be {done}" if dry_run else f"{name} was so before" if same else f"{name} is {done}"
            )
        )
    check_quorum(facts)


def check_quorum(facts: Mapping[str, Any]) -> None:
    """Raises Failed when a majority was asked for and did not answer in time."""
    if facts.get("quorum") is False:
        raise Failed("no majority has the change yet; it stands, and spreads when the other nodes can be reached")
