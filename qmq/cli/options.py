"""Options and values that several commands share."""

import json
import math
import os
import ssl
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ..address import Address, parse_address
from ..unix_socket import SOCKET_NAME
from .output import Failed

if TYPE_CHECKING:
    from ..config import NodeSettings
    from .client import Login  # A node loads no client: see below.

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_AT = "127.0.0.1:61613"

TOKEN = "token"
"""The login of a client that leaves its name to the token."""

TOKEN_BYTES_MAX = 64 << 10

SECONDS_MAX = 24.0 * 86400
"""Sockets count milliseconds in 31 bits and overflow beyond: 50 days would become a fraction of a second."""


class Number(click.FloatRange):
    """A FloatRange that refuses `nan`, which is in every range because each comparison with it is false."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


SECONDS = Number(min=0, max=SECONDS_MAX)


def read_address(ctx: click.Context, param: click.Parameter, value: str) -> Address:
    """`host:port` on the command line."""
    try:
        return parse_address(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}") from error


def read_optional_address(ctx: click.Context, param: click.Parameter, value: str | None) -> Address | None:
    """The same, for an option that may be left out."""
    return None if value is None else read_address(ctx, param, value)


def read_address_list(ctx: click.Context, param: click.Parameter, value: str | None) -> list[Address] | None:
    """`host:port,…`, for an option that may be left out."""
    if value is None:
        return None
    return [read_address(ctx, param, one.strip()) for one in value.split(",")]


def default_addresses() -> list[Address]:
    """Where nodes may be: those of the files that `QMQ_CONFIG` leads to; without it, on this machine, DEFAULT_AT and
    those of meshes that `qmq mesh up` has started here. Raises ConfigError, or Failed if the files name no node.
    """
    if named := os.environ.get("QMQ_CONFIG"):
        return _configured_addresses(Path(named))
    found = [parse_address(DEFAULT_AT)]
    for path in sorted(Path(".mesh").glob("*/mesh.json")):
        # Another user's file must not say where a passcode goes.
        with suppress(OSError, ValueError, TypeError, AttributeError):
            if path.stat().st_uid == os.getuid():
                known = map(parse_address, json.loads(path.read_text("utf-8")).get("addresses", ()))
                found += [one for one in known if one.is_loopback and one not in found]
    return found


def _configured_addresses(config_file: Path) -> list[Address]:
    """Where clients of STOMP reach the nodes of a node file: those of its peers file, its own one first."""
    from ..config import load  # Most commands read no file.

    settings, peers = load(config_file, None, None, {})
    nodes = [] if peers is None else sorted(peers.nodes, key=lambda peer: peer.name != settings.name)
    found = [node.client for node in nodes]
    found = found or [one.address for one in settings.stomp if not one.address.is_wildcard]
    if not found:
        raise Failed(f"{config_file}: names no address for clients; give it with --at")
    return found


def read_headers(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, str]]:
    """`name:value`, cut at the first colon; the value may have more, and may be empty."""
    headers = []
    for value in values:
        name, colon, text = value.partition(":")
        if not colon or not name:
            raise click.BadParameter(f"{value!r} must be NAME:VALUE")
        headers.append((name, text))
    return headers


def keep_own_headers(headers: Collection[tuple[str, str]], own: Collection[str]) -> None:
    """Raise UsageError if `--header` names one of `own`: of two headers with one name, the first counts."""
    for name, _ in headers:
        if name in own:
            raise click.UsageError(f"--header {name}: the command sets this header")


def check_kind(destination: str, kinds: Iterable[str] = ("queue",)) -> None:
    """Raise UsageError if `destination` does not begin with one of these kinds."""
    forms = [f"/{kind}/NAME" for kind in kinds]
    if not any(destination.startswith(form.removesuffix("NAME")) for form in forms):
        hint = f"; try /queue/{destination}" if destination and "/" not in destination else ""
        raise click.UsageError(f"{destination!r} must be {' or '.join(forms)}{hint}")


class GivenPath(click.Path):
    """A path, which must have a name: `--data "$UNSET"` would be the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty; is a variable not set?", param, ctx)
        return super().convert(value, param, ctx)


FILE = GivenPath(dir_okay=False, path_type=Path)
FOLDER = GivenPath(file_okay=False, path_type=Path)


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several option decorators as one, shown in the order given."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


KEY = ("--key", "--cert-key")
"""The private key; for commands with a `--key` of their own only the second word."""


def _login_options(key: Collection[str] = KEY) -> Callable[[F], F]:
    return together(
        click.option("--login", metavar="NAME", envvar="QMQ_LOGIN", help="Login name; by default from QMQ_LOGIN."),
        click.option("--passcode", metavar="TEXT", envvar="QMQ_PASSCODE", help="Password; safer in QMQ_PASSCODE."),
        click.option(
            "--token-file",
            type=FILE,
            envvar="QMQ_TOKEN_FILE",
            help="Log in with the token (JWT) in this file; by default from QMQ_TOKEN_FILE.",
        ),
        click.option(
            "--tls",
            "wants_tls",
            is_flag=True,
            envvar="QMQ_TLS",
            help="Use TLS, with the certificate authorities of the system; by default from QMQ_TLS.",
        ),
        click.option(
            "--cafile",
            type=FILE,
            envvar="QMQ_CAFILE",
            help="Use TLS, with the certificate authorities of this file; by default from QMQ_CAFILE.",
        ),
        click.option(
            "--cert", type=FILE, envvar="QMQ_CERT", help="Use TLS, and show this certificate; by default from QMQ_CERT."
        ),
        click.option(
            *key,
            "private_key",
            type=FILE,
            envvar="QMQ_CERT_KEY",
            help="The private key of --cert, if it is in another file; by default from QMQ_CERT_KEY.",
        ),
    )


def _at_option(otherwise: str) -> Callable[[F], F]:
    return click.option(
        "--at",
        metavar="HOST:PORT,...",
        envvar="QMQ_AT",
        callback=read_address_list,
        help=f"Addresses of nodes; the first that responds is asked. By default from QMQ_AT{otherwise}.",
    )


_patience_option: Callable[[F], F] = click.option(
    "--patience",
    type=Number(min=0, max=SECONDS_MAX, min_open=True),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="Time to wait for each answer of the node.",
)


def _node_options(key: Collection[str]) -> Callable[[F], F]:
    return together(
        _at_option(
            ", else those of the node file that QMQ_CONFIG names, else "
            f"{DEFAULT_AT} and the nodes that `qmq mesh up` has started in this directory"
        ),
        click.option("--data", type=FOLDER, help="Data directory of a node on this machine; needs no login."),
        _login_options(key),
        _patience_option,
    )


def login_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How a command logs in; it gets a `Login` as `login`."""

    @wraps(command)
    def with_login(*args: Any, **given: Any) -> Any:
        return command(*args, login=_take_login(given), **given)

    return _login_options()(with_login)


def client_options(command: Callable[..., Any], key: Collection[str] = KEY) -> Callable[..., Any]:
    """Which node a command talks to, and how; it gets an `Endpoint` as `node`."""

    @wraps(command)
    def with_node(*args: Any, at: list[Address] | None, data: Path | None, patience: float, **given: Any) -> Any:
        from .client import Endpoint, Login

        if data is None:
            login = _take_login(given)
            return command(*args, node=Endpoint(at or default_addresses(), login, patience), **given)
        if any(_is_typed(name) for name in ("at", "wants_tls", "cafile", "cert")):
            raise click.UsageError("--data is the Unix socket of a node: it excludes --at and TLS")
        for name in LOGIN_NAMES:
            del given[name]
        return command(*args, node=Endpoint([data / SOCKET_NAME], Login(), patience), **given)

    return _node_options(key)(with_node)


LOGIN_NAMES: Final = ("login", "passcode", "token_file", "wants_tls", "cafile", "cert", "private_key")
"""What the command gets from `_login_options`."""


def _is_typed(name: str) -> bool:
    """Whether the option is on the command line; a variable of the shell is for all commands."""
    return click.get_current_context().get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE


def _take_login(given: dict[str, Any]) -> "Login":
    """Take the options of `_login_options` out of `given`."""
    from .client import Login

    cafile, cert, key = (given.pop(name) for name in ("cafile", "cert", "private_key"))
    if key is not None and cert is None:
        raise click.UsageError("--key is the key of --cert")
    tls = None
    if given.pop("wants_tls") or cafile is not None or cert is not None:
        tls = tls_context(cafile, cert, key)
    name, passcode, token_file = (given.pop(option) for option in ("login", "passcode", "token_file"))
    if token_file is None:
        return Login(name, passcode, tls)
    if passcode is not None:
        raise click.UsageError("give either a passcode or --token-file")
    return Login(TOKEN if name is None else name, _read_token(token_file), tls)


def _read_token(path: Path) -> str:
    """The token in the file, without the line end. Raises Failed; the content of the file is in no error."""
    try:
        with path.open("rb") as file:
            token = file.read(TOKEN_BYTES_MAX + 1).strip()
    except OSError as error:
        raise Failed(f"{path}: {error.strerror or error}") from error
    if not token or len(token) > TOKEN_BYTES_MAX or not token.isascii() or not token.decode().isprintable():
        raise Failed(f"{path}: has no token in one line of at most {TOKEN_BYTES_MAX} bytes")
    return token.decode()


def tls_context(cafile: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """TLS that checks the certificate and the name of the node. Raises Failed with the file that cannot be used."""
    try:
        tls = ssl.create_default_context(cafile=cafile)
    except OSError as error:
        raise Failed(f"{cafile}: {error.strerror or error}") from error
    try:
        if cert is not None:
            tls.load_cert_chain(cert, key)
    except OSError as error:
        raise Failed(f"{cert}: {error.strerror or error}") from error
    return tls


def header_option(
    option: str = "--header", name: str = "headers", text: str = "A header to add; repeatable."
) -> Callable[[F], F]:
    """An option that takes headers, more than once."""
    return click.option(option, name, metavar="NAME:VALUE", callback=read_headers, multiple=True, help=text)


json_option: Callable[[F], F] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

rates_option: Callable[[F], F] = click.option(
    "--rates", type=click.IntRange(1, 5), metavar="SECONDS", help="Measure for 1 to 5 seconds; show rates per second."
)

node_options: Callable[[F], F] = together(
    click.option("--config", "config_file", type=FILE, help="The node file (TOML); without it, all defaults."),
    click.option("--peers", "peers_file", type=FILE, help="The peers file; without it, a single node."),
    click.option("--node", "node_name", metavar="NAME", help="Name of this node in the peers file."),
    click.option("--data", "data", type=FOLDER, help="Data directory of the node."),
)


def files_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which node a command copies: the files of one of this machine, as `node_options`, or one that it asks. Then it
    gets an `Endpoint` as `endpoint`, else None.
    """

    @wraps(command)
    def with_endpoint(*args: Any, at: list[Address] | None, patience: float, **given: Any) -> Any:
        if any(given[name] is not None for name in ("config_file", "peers_file", "data")):
            if _is_typed("at"):
                raise click.UsageError("--at asks a node: it excludes --data, --config and --peers")
            for name in LOGIN_NAMES:
                del given[name]
            return command(*args, endpoint=None, **given)
        from .client import Endpoint

        login = _take_login(given)
        if at is None:
            raise click.UsageError("give the data directory of the node: --data, or --config; or ask a node: --at")
        return command(*args, endpoint=Endpoint(at, login, patience), **given)

    return together(node_options, _at_option(""), _login_options(), _patience_option)(with_endpoint)


def directory_of(settings: "NodeSettings") -> Path:
    """The data directory of a node of this machine. Raises Failed for one without a disk."""
    if settings.directory is None:
        raise Failed(f"the node {settings.name} keeps everything in memory: it has no files to read")
    return settings.directory


def overrides(data: Path | None, listen: Address | None = None) -> dict[str, object]:
    """Settings of the command line that override the node file."""
    given: dict[str, object] = {"data": data, "stomp": None if listen is None else ({"address": str(listen)},)}
    return {key: value for key, value in given.items() if value is not None}
