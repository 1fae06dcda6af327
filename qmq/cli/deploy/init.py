"""`qmq init`: write all files of a new mesh, check them as `qmq config check` does, and overwrite nothing.

The texts are made in `qmq.deploy`. They are written beside the folder first, so that it is there as a whole or not.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from qmq.deploy.node_files import (
    ALERTS,
    LISTENERS,
    TEMPLATES,
    NewMesh,
    NewNode,
    compose_nodes,
    kubernetes_nodes,
    listed,
    scraped,
)
from qmq.deploy.writing import AUTHORITY, read, replace, write_new

from ...config import load_peers
from ...config.peers import NODES_MAX, check_change
from ...config.secrecy import draw_secret
from ...errors import ConfigError
from ..config import check_files
from ..options import FOLDER
from ..output import Failed, printable
from ..passwords import hash_of, password_on_stdin
from .cert import AUTHORITY_DAYS, DAYS, mesh_folder

PROMETHEUS = "prometheus.yml"
CONTAINERS = 3
CONTAINER_USER = 10001
"""That of the image (`cluster/deploy/Dockerfile`)."""


def read_node(value: str) -> NewNode:
    """`NAME=HOST` or `NAME=HOST:PORT`."""
    try:
        return NewNode.read(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}") from error


@click.command
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME=HOST",
    type=read_node,
    help="A node and its host name or address, also NAME=HOST:PORT with its port for STOMP; repeatable.",
)
@click.option("--mesh", metavar="NAME", help="Name of the mesh.  [default: that of DIR]")
@click.option(
    "--tls/--no-tls",
    "with_tls",
    default=True,
    show_default=True,
    help="TLS on links and for clients; without it, only a mesh on loopback.",
)
@click.option("--admin", metavar="NAME", help="The first user, an administrator.")
@click.option("--passcode-stdin", is_flag=True, help="The first line of standard input is the password of --admin.")
@click.option("--add", metavar="NAME=HOST", type=read_node, help="Add one node to the files of the mesh in DIR.")
@click.option("--compose", is_flag=True, help="For containers of one machine: nodes a, b, c, and a compose file.")
@click.option("--kubernetes", metavar="NAMESPACE", help="For a StatefulSet of three, and its file.")
@click.pass_context
def init(
    ctx: click.Context,
    folder: Path,
    nodes: Sequence[NewNode],
    mesh: str | None,
    with_tls: bool,
    admin: str | None,
    passcode_stdin: bool,
    add: NewNode | None,
    compose: bool,
    kubernetes: str | None,
) -> None:
    """Write the files of a new mesh: a folder for each node, certificates, units.

    Asks on a terminal for what the options do not say. DIR must not exist, or be empty. DIR/NAME is all that the host
    of node NAME needs: qmq serve --config DIR/NAME/node.toml
    """
    if add is not None:
        default = click.core.ParameterSource.DEFAULT
        given = {one for one in ctx.params if ctx.get_parameter_source(one) is not default} - {"folder", "add"}
        others = ["/".join(one.opts + one.secondary_opts) for one in ctx.command.params if one.name in given]
        if others:
            raise click.UsageError(f"--add changes a mesh that exists: it excludes {', '.join(others)}")
        for file in add_node(folder, add):
            click.echo(str(file))
        click.echo(f"{folder / add.name}: all that the host of {add.name} needs; first reload the others (SIGHUP)")
        return
    try:
        if folder.exists() and any(folder.iterdir()):
            raise Failed(f"{folder}: is not empty, and nothing is overwritten")
    except OSError as error:
        raise Failed(f"{folder}: {error.strerror}") from error
    if compose + (kubernetes is not None) + bool(nodes) > 1 or (not with_tls and (compose or kubernetes)):
        raise click.UsageError(
            "--compose and --kubernetes name the nodes, with TLS: they exclude each other, --node and --no-tls"
        )
    if kubernetes is not None and not re.fullmatch("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", kubernetes):
        raise click.UsageError(f"--kubernetes {kubernetes!r}: must be a namespace, a label of RFC 1123, such as prod-1")
    if compose or kubernetes:
        nodes = compose_nodes() if kubernetes is None else kubernetes_nodes(CONTAINERS, kubernetes)
    nodes = nodes or _ask_for_nodes()
    name = mesh or re.sub(r"[^a-z0-9-]", "-", folder.absolute().name.lower())[:32]
    is_loopback = all(node.address("mesh").is_loopback for node in nodes)
    with _built_beside(folder) as building:
        first = building / nodes[0].name / "peers.toml"
        _write(first, NewMesh(name, nodes, with_tls).peers_file())
        load_peers(first)  # So that what no mesh can have is an error before it asks, and before the rest is made.
        admin, hashed = _administrator(admin, passcode_stdin, is_needed=with_tls or not is_loopback)
        new = NewMesh(name, nodes, with_tls, admin, hashed, listen_everywhere=compose or kubernetes is not None)
        notes = write_mesh(building, new)
        if compose:
            _write(building / "compose.yaml", new.compose(_container_user(building, new)))
        elif kubernetes is not None:
            _write(building / "kubernetes.yaml", new.kubernetes())
        else:
            _write(building / "README.md", new.readme())
            if with_tls:
                _write(building / PROMETHEUS, new.prometheus())
                _write(building / ALERTS, read(TEMPLATES / ALERTS).decode())
    for note in dict.fromkeys(notes):
        click.echo(printable(f"note: {note.replace(str(building), str(folder))}"))
    for node in nodes:
        click.echo(f"{folder / node.name / 'node.toml'}: ok")
    then = "compose.yaml" if compose else "README.md" if kubernetes is None else "kubernetes.yaml"
    click.echo(f"what to do next: {folder / then}")


def add_node(folder: Path, new: NewNode) -> list[Path]:
    """Write the folder of one more node, like that of the first one, and the next version of all peers files.

    Returns the peers files that have changed. Raises Failed or ConfigError, and then nothing has changed.
    """
    files = sorted(folder.glob("*/peers.toml"))
    texts = {read(file).decode() for file in files}
    if len(texts) != 1:
        raise Failed(f"{folder}: has no folders of nodes with one peers file" + ", but different ones" * bool(texts))
    (text,) = texts
    peers = load_peers(files[0])
    first = peers.nodes[0]
    pattern = folder / first.name
    own = folder / new.name
    if own.exists():
        raise Failed(f"{own}: exists already")
    node_file = re.sub(r"(?m)^name = .*", f'name = "{new.name}"', read(pattern / "node.toml").decode(), count=1)
    for key in LISTENERS.values():
        node_file = node_file.replace(f'"{getattr(first, key)}"', f'"{new.address(key)}"')
    text = re.sub(r"(?m)^version = .*", f"version = {peers.version + 1}", text, count=1) + new.peer()
    try:
        _write(own / "node.toml", node_file)
        _write(own / "peers.toml", text)
        for name in ("qmq.service", "mesh.secret"):
            if (pattern / name).exists():
                _write(own / name, read(pattern / name).decode().replace(f"node {first.name} ", f"node {new.name} "))
        if (folder / AUTHORITY).exists():
            mesh_folder(folder).make_node(new.name, [new.host, *new.more_names], DAYS)
        check_files(own / "node.toml", own / "peers.toml", None, {})
        if problems := check_change(peers, load_peers(own / "peers.toml"), first.name):
            raise ConfigError(problems)
    except BaseException:
        shutil.rmtree(own, ignore_errors=True)
        raise
    if (readme := folder / "README.md").exists():
        old = [node.name for node in peers.nodes]
        replace(readme, read(readme).replace(listed(old).encode(), listed([*old, new.name]).encode(), 1))
    if (prometheus := folder / PROMETHEUS).exists():
        targets = scraped(node.served.get("http") for node in peers.nodes)
        more = scraped([new.address("http")])
        replace(prometheus, read(prometheus).replace(f"{targets}]".encode(), f"{targets}, {more}]".encode(), 1))
    for file in files:
        replace(file, text.encode())
    return files


def write_mesh(folder: Path, mesh: NewMesh) -> list[str]:
    """Write the folders of the nodes, and check them; returns notes. Raises ConfigError with all errors.

    The peers file of the first node is there already.
    """
    first = folder / mesh.nodes[0].name / "peers.toml"
    if mesh.with_tls:
        papers = mesh_folder(folder)
        papers.make_authorities(mesh.name, AUTHORITY_DAYS)
        for node in mesh.nodes:
            papers.make_node(node.name, [node.host, *node.more_names], DAYS)
    else:
        draw_secret(first.with_name("mesh.secret"))
    for node in mesh.nodes:
        own = folder / node.name
        _write(own / "node.toml", mesh.node_file(node))
        if not mesh.listen_everywhere:
            _write(own / "qmq.service", mesh.unit(node))
        if own != first.parent:
            _write(own / "peers.toml", mesh.peers_file())
            if not mesh.with_tls:
                _write(own / "mesh.secret", first.with_name("mesh.secret").read_text("utf-8"))
    problems: list[str] = []
    notes: list[str] = []
    for node in mesh.nodes:
        file = folder / node.name / "node.toml"
        try:
            notes += check_files(file, file.with_name("peers.toml"), None, {})
        except ConfigError as error:
            problems += error.diagnostics
    if problems:
        raise ConfigError(problems)
    return notes


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _ask_for_nodes() -> list[NewNode]:
    if not _can_ask():
        raise click.UsageError("--node NAME=HOST is needed, once for each node of the mesh")
    nodes: list[NewNode] = []
    while len(nodes) < NODES_MAX:
        node = click.prompt(
            "a node, NAME=HOST (nothing ends the list)",
            "",
            value_proc=lambda said: read_node(said) if said or not nodes else None,
            show_default=False,
            err=True,
        )
        if node is None:
            break
        nodes.append(node)
    return nodes


def _administrator(name: str | None, on_stdin: bool, *, is_needed: bool) -> tuple[str | None, str | None]:
    """Name and password hash of the first user; None twice for a mesh on loopback without users."""
    if name is None and _can_ask() and not on_stdin:
        asked = "the first user, an administrator" + " (nothing: no login)" * (not is_needed)
        name = click.prompt(asked, "root" * is_needed, show_default=is_needed, err=True)
    if not name:
        if is_needed or on_stdin:
            raise click.UsageError("--admin NAME is needed: only users can log in")
        return None, None
    if ":" in name:
        raise click.UsageError(f"--admin {name!r}: must be without a colon, which HTTP (Basic) cannot carry")
    if on_stdin:
        return name, hash_of(password_on_stdin())
    if not _can_ask():
        raise click.UsageError("--passcode-stdin is needed where no terminal can ask for the password of --admin")
    return name, hash_of(click.prompt(f"password of {name}", hide_input=True, confirmation_prompt=True, err=True))


def _container_user(folder: Path, mesh: NewMesh) -> str:
    """Containers run as the owner of the files, or, if that is root, as one that gets them."""
    user, group = os.getuid() or CONTAINER_USER, os.getgid() or CONTAINER_USER
    for node in mesh.nodes:
        data = folder / "data" / node.name
        data.mkdir(mode=0o700, parents=True)
        if os.getuid() == 0:
            for file in (data, folder / node.name, *(folder / node.name).iterdir()):
                os.chown(file, user, group)
    return f"{user}:{group}"


@contextmanager
def _built_beside(folder: Path) -> Iterator[Path]:
    """A folder whose content moves to `folder` at the end of the block; if the block fails, nothing does."""
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".qmq-init-", dir=folder.absolute().parent))
    except OSError as error:
        raise Failed(f"{folder}: {error.strerror}") from error
    try:
        yield building
        folder.mkdir(mode=0o700, exist_ok=True)
        for made in sorted(building.iterdir()):
            made.rename(folder / made.name)
    except ConfigError as error:
        raise ConfigError([line.replace(str(building), str(folder)) for line in error.diagnostics]) from error
    finally:
        shutil.rmtree(building)


def _write(file: Path, text: str) -> None:
    write_new(file, text.encode())
