"""`qmq schemas`: Avro schemas that bodies of messages must fit. The rules are in docs/definitions.md."""

import json
from collections.abc import Mapping
from typing import Any, BinaryIO

import click

from ...wire.avro import read_schema
from ..client import Endpoint
from ..options import client_options, json_option
from ..output import print_json, show_table
from .request import DefinitionChange, ask, change_options


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
def set_schema(name: str, file: BinaryIO, change: DefinitionChange) -> None:
    """Set a schema to what a file contains.

    FILE is an Avro schema in JSON, an object. `-` is the standard input. Exit code 1 if the schema is not allowed;
    then nothing has changed.
    """
    change.put(f"schema/{name}", file.read())


@schemas.command("delete")
@click.argument("name")
@change_options
def delete_schema(name: str, change: DefinitionChange) -> None:
    """Delete a schema.

    Exit code 1 if there is none, or if a policy or a declared queue names it.
    """
    change.delete(f"schema/{name}")


def _fingerprint(value: Mapping[str, Any]) -> str:
    try:
        return f"{read_schema(value).fingerprint:016x}"
    except ValueError:
        return "-"  # Of a later version of the software.


def _type(value: Mapping[str, Any]) -> str:
    kind = value.get("type")
    return f"{kind} {value['name']}" if "name" in value else str(kind)
