"""`qmq support`: what a developer needs to find a fault, as one file without passwords and messages."""

import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

import click

from qmq import __version__
from qmq.build import BUILD
from qmq.errors import ConfigError

from ..client import Endpoint, ServerError
from ..options import FILE, client_options
from ..output import Failed, byte_size
from ..status import ask
from .facts import ask_mesh
from .findings import DoctorFinding, in_order, shown, summary
from .live import findings_of_mesh

LOG_BYTES_MAX: Final = 8 << 20
"""Of each log: its end."""


@click.command
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.tar.gz")
@click.option("--config", "config_file", type=FILE, help="A node file: adds its settings, and what is wrong with it.")
@click.option("--log", "logs", type=FILE, multiple=True, help="Adds the end of this log; may be repeated.")
@client_options
def support(output: Path, config_file: Path | None, logs: tuple[Path, ...], node: Endpoint) -> None:
    """Collect what a developer needs to find a fault, in one file.

    Asks one node about the mesh, as `qmq doctor` does, and adds versions, the machine, and the files that the options
    name. A part that cannot be had is left out with its reason: a node that is down is a fault, too. Passwords, their
    hashes and messages are never in it; names of users and destinations, addresses and logs are.
    """
    parts: dict[str, str] = {"about.json": _json(_about())}
    parts |= _tried("mesh", lambda: dict(_of_mesh(node)))
    parts |= _tried("node", lambda: _of_node(node))
    if config_file is not None:
        parts |= _tried("files", lambda: dict(_of_files(config_file)))
    for number, log in enumerate(logs, 1):
        parts |= _tried(f"logs/{number}", partial(_end_of, log, f"logs/{number}-{log.name}"))
    try:
        written = _write(output, parts)
    except FileExistsError:
        raise Failed(f"{output}: exists already; nothing was written") from None
    except OSError as error:
        raise Failed(f"{output}: {error.strerror}") from error
    for name in parts:
        click.echo(f"  {name}")
    click.echo(f"{output}: {byte_size(written)}. Look through it before you send it.")


def _about() -> Mapping[str, Any]:
    return {
        "qmq": __version__,
        "build": BUILD,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "packages": {one.name: one.version for one in sorted(distributions(), key=lambda one: one.name.lower())},
    }


def _of_mesh(node: Endpoint) -> Iterator[tuple[str, str]]:
    facts = ask_mesh(node)
    yield "mesh/findings.txt", _findings(findings_of_mesh(facts))
    yield "mesh/facts.json", _json(facts._asdict())


def _of_node(node: Endpoint) -> dict[str, str]:
    with node.connect() as client:
        return {"node/status.json": _json(ask(client))}


def _of_files(config_file: Path) -> Iterator[tuple[str, str]]:
    from qmq.config.load import load_node, load_peers, named_peers
    from qmq.config.show import effective

    from .files import findings_of_files  # It loads what a node loads.

    yield "files/findings.txt", _findings(findings_of_files(config_file, None, None, None))
    yield "files/node.toml", effective(load_node(config_file))
    peers = named_peers(config_file)
    if peers is not None:
        yield "files/peers.toml", effective(load_peers(peers))


def _tried(part: str, make: Callable[[], dict[str, str]]) -> dict[str, str]:
    """The files of one part, or why there are none."""
    try:
        return make()
    except ConfigError as error:
        return {f"{part}/not-read.txt": "".join(f"{line}\n" for line in error.diagnostics)}
    except (Failed, ServerError, OSError, UnicodeError) as error:
        return {f"{part}/not-read.txt": f"{error}\n"}


def _findings(findings: list[DoctorFinding]) -> str:
    ordered = in_order(findings)
    return "".join(f"{line}\n" for line in (*shown(ordered), summary(ordered)))


def _json(value: object) -> str:
    return json.dumps(value, indent=1, default=str) + "\n"


def _end_of(log: Path, name: str) -> dict[str, str]:
    """Whole lines, as text."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES_MAX))
        data = file.read(LOG_BYTES_MAX)
    if size > LOG_BYTES_MAX:
        data = data.partition(b"\n")[2]
    return {name: data.decode("utf-8", "backslashreplace")}


def _write(output: Path, parts: Mapping[str, str]) -> int:
    """Write the archive, for this user alone, and return its size. Raises FileExistsError, and OSError."""
    folder = output.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in parts.items():
            data = text.encode()
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime = len(data), int(time.time())
            archive.addfile(member, io.BytesIO(data))
    with open(output, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        return file.write(made.getbuffer())
