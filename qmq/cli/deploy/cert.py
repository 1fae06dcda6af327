"""`qmq cert`: the authorities of a mesh, and the certificates of its nodes and clients.

The keys of the authorities stay in one folder, on no host of the mesh. All is done in `qmq.deploy`.
"""

import re
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...address import Address
from ...config import load_node
from ..options import FILE, FOLDER, json_option, read_address_list
from ..output import Failed, counted, print_json, show_table

if TYPE_CHECKING:
    from qmq.deploy.folder import MeshFolder

F = TypeVar("F", bound=Callable[..., Any])

DAYS_MAX = 36500
AUTHORITY_DAYS = 3650
DAYS = 365
RENEW_WITHIN_DAYS = 30
HANDSHAKE_SECONDS = 10.0

folder_option = click.option(
    "--dir", "path", type=FOLDER, default=".", help="The folder of the mesh.  [default: this directory]"
)
mesh_option = click.option("--mesh", default="qmq", show_default=True, help="Name of the mesh, for the authorities.")


def days_option(default: int) -> Callable[[F], F]:
    text = "Valid for so many days; none outlives its authority."
    return click.option("--days", type=click.IntRange(1, DAYS_MAX), default=default, show_default=True, help=text)


def mesh_folder(path: Path) -> "MeshFolder":
    """Raises Failed if the library is missing."""
    try:
        from qmq.deploy.folder import MeshFolder
    except ModuleNotFoundError as error:
        raise Failed(f"certificates need the library {error.name}: pip install 'qmq[cert]'") from error
    return MeshFolder(path, datetime.now(UTC))


@click.group
def cert() -> None:
    """Make and renew the certificates of a mesh.

    \b
    DIR/authority    keys of the authorities: keep them off the hosts of the mesh
    DIR/NAME         what the host of node NAME gets
    DIR/clients      certificates of clients, and ca.pem, which clients trust
    """


@cert.command
@folder_option
@mesh_option
@days_option(AUTHORITY_DAYS)
def ca(path: Path, mesh: str, days: int) -> None:
    """Make the two authorities of a mesh: one for nodes, one for clients."""
    _print(mesh_folder(path).make_authorities(mesh, days))


@cert.command
@click.argument("name")
@click.option(
    "--address", "addresses", multiple=True, metavar="HOST", help="A host name or address of the node; repeatable."
)
@folder_option
@days_option(DAYS)
def node(name: str, addresses: tuple[str, ...], path: Path, days: int) -> None:
    """Issue the certificate of node NAME, for its links and its listeners.

    Clients accept it if they use one of its addresses. It is no certificate of a client.
    """
    _print(mesh_folder(path).make_node(name, list(addresses), days))


@cert.command
@click.argument("name")
@folder_option
@days_option(DAYS)
def client(name: str, path: Path, days: int) -> None:
    """Issue a certificate with which a client logs in as user NAME.

    Its common name and its DNS name are NAME (certificate_user of a listener). No node accepts it as that of a node.
    """
    _print(mesh_folder(path).make_client(name, days))


@cert.command
@click.argument("files", nargs=-1, type=FILE)
@folder_option
@click.option("--config", "config_file", type=FILE, help="Show what this node file names instead.")
@click.option(
    "--at",
    "addresses",
    metavar="HOST:PORT,...",
    callback=read_address_list,
    help="Show what nodes show to clients at these addresses instead: all listeners with TLS, no login.",
)
@click.option("--within", type=click.IntRange(0), metavar="DAYS", help="Exit code 1 if one of them ends within DAYS.")
@json_option
def show(
    files: tuple[Path, ...],
    path: Path,
    config_file: Path | None,
    addresses: list[Address] | None,
    within: int | None,
    as_json: bool,
) -> None:
    """Show what certificates are for, and when they end.

    Without FILES these are all certificates in the folder of the mesh. A node reports those that end within 14 days
    itself (`qmq conditions`).
    """
    mesh_folder(path)
    from qmq.deploy.certificates import certificates_in, facts_of
    from qmq.deploy.writing import parsed

    silent: list[str] = []
    shown: list[tuple[str, bytes]] = []
    for address in addresses or ():
        try:
            shown.append((str(address), _shown_at(address)))
        except OSError as error:
            silent.append(f"{address}: {error.strerror or error}")
    if addresses is None:
        wanted = list(files) or _files_of(config_file) or sorted(path.glob("*/*.pem"))
        if not wanted:
            raise Failed(f"{path}: no certificates in its folders")
        shown = [(str(file), one) for file in wanted for one in parsed(file, certificates_in)]
    now = datetime.now(UTC)
    found = [(place, facts_of(one, now)) for place, one in shown]
    if as_json:
        print_json([{"file" if addresses is None else "address": place, **asdict(one)} for place, one in found])
    else:
        rows = [
            [place, one.use, ", ".join(one.names) or re.sub(r"\\(.)", r"\1", one.subject), one.ends[:10], one.days_left]
            for place, one in found
        ]
        show_table(["FILE" if addresses is None else "ADDRESS", "USE", "NAMES", "ENDS", "DAYS"], rows)
    if silent:
        raise Failed("; ".join(silent))
    ending = [place for place, facts in found if within is not None and facts.days_left <= within]
    if ending:
        raise Failed(f"{counted(len(ending), 'certificate')} with an end in the next {within} days")


@cert.command
@folder_option
@click.option(
    "--within",
    type=click.IntRange(0),
    metavar="DAYS",
    default=RENEW_WITHIN_DAYS,
    show_default=True,
    help="Only what ends within so many days.",
)
@click.option("--all", "is_all", is_flag=True, help="All of them, as after `rollover begin`.")
@days_option(DAYS)
def renew(path: Path, within: int, is_all: bool, days: int) -> None:
    """Issue certificates again that end soon, with new keys.

    Then copy the folder of each node to its host, and reload the node (SIGHUP): no connection ends.
    """
    folder = mesh_folder(path)
    if not any(folder.issued()):
        raise Failed(f"{path}: no certificates of nodes or clients in its folders")
    renewed = folder.renew(None if is_all else within, days)
    _print(renewed)
    if renewed:
        click.echo("copy them to their hosts, and reload each node: systemctl reload qmq")
    else:
        click.echo(f"none ends within {within} days")


@cert.command
@click.argument("step", type=click.Choice(["begin", "end"]))
@click.option("--clients", "of_clients", is_flag=True, help="The authority of the clients, not that of the nodes.")
@folder_option
@mesh_option
@days_option(AUTHORITY_DAYS)
def rollover(step: str, of_clients: bool, path: Path, mesh: str, days: int) -> None:
    """Replace an authority, while all links stay up.

    \b
    1. rollover begin   a second authority is trusted, too; copy the folders to the hosts, reload each node
    2. renew --all      the new one signs all certificates; copy and reload again
    3. rollover end     the old one is not trusted any more; copy and reload again

    Each step must be on all nodes before the next one. `end` is refused while a certificate in the folder is signed by
    the old authority.
    """
    folder = mesh_folder(path)
    from qmq.deploy.folder import OF_CLIENTS, OF_NODES

    stem = OF_CLIENTS if of_clients else OF_NODES
    if step == "begin":
        folder.begin_rollover(stem, mesh, days)
    else:
        folder.end_rollover(stem)
    then = f"; when all have it: qmq cert renew --all --dir {path}" if step == "begin" else ""
    click.echo(f"{stem}.pem has changed in all folders: copy it to the hosts, and reload each node{then}")


def _shown_at(address: Address) -> bytes:
    """The certificate of a listener, which is not checked: it may have expired. Raises OSError, as SSLError is one."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(address, HANDSHAKE_SECONDS) as connected, tls.wrap_socket(connected) as secured:
        return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"").encode()


def _files_of(config_file: Path | None) -> list[Path]:
    if config_file is None:
        return []
    settings = load_node(config_file)
    sections = [settings.mesh.tls, *(one.tls for one in settings.listeners)]
    files = [file for tls in sections if tls is not None for file in (tls.certificate, tls.ca) if file is not None]
    if not files:
        raise Failed(f"{config_file}: names no certificate")
    return list(dict.fromkeys(files))


def _print(files: Sequence[Path | str]) -> None:
    for file in files:
        click.echo(str(file))
