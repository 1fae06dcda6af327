"""`qmq definitions`, `policies` and `schemas`: settings that the mesh shares. The rules are in docs/definitions.md."""

import json
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

import click

from ...definitions.document import differences, document, read_document
from ...definitions.rabbitmq import ImportTarget
from ...definitions.rabbitmq_users import clear_passwords
from ...verbs.definitions import DefinitionKeys
from ...verbs.lists import ShowPolicies
from ...wire.avro import read_schema
from ..client import Endpoint, ask, headers_of
from ..options import client_options, json_option
from ..output import Failed, print_json, printable, show_table
from ..passwords import hash_of
from .request import check_kind, check_quorum, list_command, read_values, show_left_behind, warn_of_closing
from .verb import Asked, change_options, verb_command

SECRET: Final = "password_hash"


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
def import_(file: BinaryIO, asked: Asked) -> None:
    """Define what a file contains: all of it or nothing.

    FILE is what `export` printed, or what RabbitMQ exported. `-` is the standard input. Entries of RabbitMQ without a
    counterpart are listed and left out, and its users are imported without hashed passwords. Definitions that the file
    does not contain stay. Exit code 1 if nothing of the file was imported.
    """
    data = file.read()
    closes = "user" in read_document(data)[0] and not ask(asked.node, "definitions/list/user")["definitions"]
    facts = asked.ask("definitions/import", body=data)
    if closes:
        warn_of_closing(asked.is_dry_run)
    left_out = facts.get("left_out", [])
    if asked.as_json:
        print_json(facts)
    else:
        for line in left_out:
            click.echo(printable(f"left out: {line}"))
        count = facts["definitions"]
        result = " are correct" if asked.is_dry_run else f", {facts['changed']} changed"
        click.echo(f"{count} definitions{result}")
        show_left_behind(facts)
    if not facts["definitions"]:
        raise Failed("nothing of this file was imported")
    check_quorum(facts)


@definitions.add_command
@verb_command(DefinitionKeys, name="keys")
def keys(asked: Asked) -> None:
    facts = asked.facts()
    if asked.as_json:
        print_json(facts)
        return
    rows = []
    for one in facts["keys"]:
        bounds = [f"{name.replace('_', ' ')} {one[name]}" for name in ("at_least", "more_than") if name in one]
        values = ", ".join([one["type"], *one.get("values", bounds)])
        default = "required" if one.get("required") else "-" if one["default"] is None else _text(one["default"])
        rows.append([one["name"], values, default, one["help"]])
    show_table(["KEY", "VALUES", "DEFAULT", "MEANING"], rows)


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
    wanted, left_out = read_document(data, ImportTarget(present, {one: hash_of(one) for one in clear_passwords(data)}))
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
        ask(node, "definitions/import", headers_of(dry_run=True), data)
        raise SystemExit(1)


@click.group
def policies() -> None:
    """List, set, delete and explain the policies of destinations.

    A change applies on all nodes, without a restart.
    """


@list_command(policies, "definitions/list/policy")
def list_policies(facts: dict[str, Any]) -> None:
    """List the policies, and what they set."""
    rows = [[row["name"], " ".join(f"{k}={_text(v)}" for k, v in row["value"].items())] for row in facts["definitions"]]
    show_table(["PATTERN", "VALUES"], rows)


@policies.add_command
@verb_command(ShowPolicies, name="of")
def policies_of(asked: Asked) -> None:
    facts = asked.facts()
    if asked.as_json:
        print_json(facts)
        return
    for one in facts["definitions"]:
        click.echo(printable(f"{one['kind']} {one['name']}: from {one['from']}"))
    show_table(["RULE", "VALUE", "FROM"], [[row["key"], _text(row["value"]), row["from"]] for row in facts["rules"]])


@policies.command("set")
@click.argument("pattern")
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
@change_options
def set_policy(pattern: str, values: tuple[str, ...], asked: Asked) -> None:
    """Set the policy of a destination, or of all that match a pattern.

    PATTERN is a destination, or a prefix with `*`. The keys are those of the node file; a VALUE is JSON, or text. The
    keys that are not given get their defaults. Exit code 1 if the policy is not allowed; then nothing has changed.
    """
    check_kind(pattern, ("queue", "fanout", "topic", "exchange"))
    asked.put(f"policy{pattern}", read_values(values))


@policies.command("delete")
@click.argument("pattern")
@change_options
def delete_policy(pattern: str, asked: Asked) -> None:
    """Delete the policy of exactly this pattern.

    Exit code 1 if there is none.
    """
    check_kind(pattern, ("queue", "fanout", "topic", "exchange"))
    asked.delete(f"policy{pattern}")


def _export(node: Endpoint) -> dict[str, Any]:
    found = ask(node, "definitions/export").get("document")
    return found if isinstance(found, dict) else document({})


def _without_secrets(mesh: Mapping[str, Any] | None, in_file: Mapping[str, Any] | None) -> dict[str, Any]:
    """Both values of a difference. A terminal or a log of CI must not get password hashes."""
    differ = mesh is not None and in_file is not None and mesh.get(SECRET) != in_file.get(SECRET)
    return {"mesh": _hidden(mesh, "hidden"), "file": _hidden(in_file, "hidden, another" if differ else "hidden")}


def _hidden(value: Mapping[str, Any] | None, word: str) -> Mapping[str, Any] | None:
    return {**value, SECRET: word} if value is not None and SECRET in value else value


def _text(value: object) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@click.group
def schemas() -> None:
    """List, show, set and delete the Avro schemas of a mesh.

    A policy or a declared queue with `schema=NAME` takes only bodies that fit this schema.
    """


@schemas.command("list")
@client_options
@json_option
def list_schemas(node: Endpoint, as_json: bool) -> None:
    """List the schemas, with their fingerprints and types."""
    facts = ask(node, "definitions/list/schema")
    rows = [{**row, "fingerprint": _fingerprint(row["value"])} for row in facts["definitions"]]
    if as_json:
        print_json({**facts, "definitions": rows})
        return
    cells = [[row["name"], row["fingerprint"], _type(row["value"])] for row in rows]
    show_table(["NAME", "FINGERPRINT", "TYPE"], cells)


@schemas.command("show")
@click.argument("name")
@client_options
@json_option
def show_schema(name: str, node: Endpoint, as_json: bool) -> None:
    """Print a schema, with its keys sorted.

    It is JSON, with or without --json. Exit code 1 if there is none.
    """
    value = ask(node, f"definitions/get/schema/{name}")["value"]
    if as_json:
        print_json(value)
    else:
        click.echo(json.dumps(value, indent=2))


@schemas.command("set")
@click.argument("name")
@click.argument("file", type=click.File("rb"))
@change_options
def set_schema(name: str, file: BinaryIO, asked: Asked) -> None:
    """Set a schema to what a file contains.

    FILE is an Avro schema in JSON, an object. `-` is the standard input. Exit code 1 if the schema is not allowed;
    then nothing has changed.
    """
    asked.put(f"schema/{name}", file.read())


@schemas.command("delete")
@click.argument("name")
@change_options
def delete_schema(name: str, asked: Asked) -> None:
    """Delete a schema.

    Exit code 1 if there is none, or if a policy or a declared queue names it.
    """
    asked.delete(f"schema/{name}")


def _fingerprint(value: Mapping[str, Any]) -> str:
    try:
        return f"{read_schema(value).fingerprint:016x}"
    except ValueError:
        return "-"  # Of a later version of the software.


def _type(value: Mapping[str, Any]) -> str:
    kind = value.get("type")
    return f"{kind} {value['name']}" if "name" in value else str(kind)
