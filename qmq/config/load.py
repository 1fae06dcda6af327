"""Read files into settings, or raise a ConfigError that lists every error of every file.

The node file and the peers file are both optional. Overrides are settings of the command line; they override the file
and are checked in the same way. Relative paths in a file start at the directory of that file, so it means the same from
everywhere. Those of overrides and defaults start at the current directory.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from qmq.auth.jwks import load_keys
from qmq.protocols import declarations
from qmq.protocols.declaration import Declaration, LoginlessListenerSettings
from qmq.section import Section, WrongValues, suggest

from ..errors import ConfigError
from .authentication import asks_others
from .definition_values import entry_errors
from .diagnostics import describe
from .node import LISTENERS, MEMORY, NodeSettings
from .old_sections import take_old_sections
from .peers import PeersFile
from .secrecy import check_secrecy, is_open_to_others
from .toml_lines import LineIndex

FILE_BYTES_MAX = 4 << 20
"""A larger file is not a configuration."""

SECRET_BYTES_MAX = 4096

M = TypeVar("M", bound=Section)


def load_node(path: Path | None, overrides: Mapping[str, object] | None = None) -> NodeSettings:
    """The settings of one node.

    `path` None gives the defaults. `overrides` maps dotted keys to values, as `{"data": …, "limits.drain_seconds": 1}`.
    Raises ConfigError with all errors.
    """
    diagnostics: list[str] = []
    settings = _load_node(path, overrides or {}, diagnostics)
    if diagnostics or settings is None:
        raise ConfigError(diagnostics)
    return settings


def load_peers(path: Path) -> PeersFile:
    """The peers file at `path`. Raises ConfigError with all errors."""
    diagnostics: list[str] = []
    peers = _load_peers(path, diagnostics)
    if peers is None:
        raise ConfigError(diagnostics)
    return peers


def load(
    node_file: Path | None,
    peers_file: Path | None,
    node: str | None = None,
    overrides: Mapping[str, object] | None = None,
) -> tuple[NodeSettings, PeersFile | None]:
    """Both files, checked alone and against each other.

    Without `peers_file` it is the one that the node file names, if any.
    With a peers file, `node` (or `name` in the node file) selects the node. It listens at its client address, unless
    the node file has listeners of its own. Raises ConfigError with the errors of both files.
    """
    diagnostics: list[str] = []
    wanted: dict[str, object] = dict(overrides or {})
    if node is not None:
        wanted["name"] = node
    peers_file = peers_file or named_peers(node_file)
    peers = _load_peers(peers_file, diagnostics) if peers_file is not None else None
    settings = _load_node(node_file, wanted, diagnostics, peers)
    if settings is not None:
        source = str(node_file) if node_file is not None else "settings"
        if peers is not None or peers_file is None:
            diagnostics += _check_levels(settings, peers, source)
        diagnostics += _check_authentication(settings, source)
        diagnostics += _check_acting_users(settings, peers, source)
    if settings is not None and peers is not None:
        diagnostics += check_together(settings, peers, str(peers_file))
    diagnostics += check_secrecy(settings, peers, peers_file)
    if diagnostics or settings is None:
        raise ConfigError(diagnostics)
    return settings, peers


def named_peers(node_file: Path | None) -> Path | None:
    """The peers file that the node file names. None also for a node file that cannot be read."""
    read = _read(node_file, [])
    value = read[0].get("peers") if read is not None else None
    return node_file.parent / value if node_file is not None and isinstance(value, str) and value else None


def check_together(settings: NodeSettings, peers: PeersFile, source: str = "peers file") -> list[str]:
    """Errors between a node file and a peers file that are both valid; empty if they fit."""
    names = [peer.name for peer in peers.nodes]
    diagnostics = []
    if settings.name not in names:
        if "name" in settings.set_keys:
            diagnostics.append(f"{source}: nodes: no node is named {settings.name!r}; {suggest(settings.name, names)}")
        else:
            diagnostics.append(
                f"{source}: which of its nodes is this? Set --node, or name in the node file: {', '.join(names)}"
            )
    peer = peers.peer(settings.name)
    if peer is not None and peer.memory and settings.directory is not None:
        diagnostics.append(f'{source}: nodes: {peer.name!r} has memory = true: set data = "{MEMORY}" in its node file')
    if peer is not None and settings.directory is None and not peer.memory:
        diagnostics.append(
            f"{source}: nodes: {peer.name!r} must have memory = true, in the peers file of all nodes, because its data "
            f'is "{MEMORY}"'
        )
    if settings.mesh.tls is None and len(peers.nodes) > 1:
        if not peers.is_loopback:
            diagnostics.append(
                f"{source}: nodes: mesh addresses that are not on loopback need TLS: set [mesh.tls] with certificate, "
                f"key and ca in the node file of {settings.name!r}"
            )
        elif peers.secret is None:
            missing = f"; `qmq mesh up` makes {peers.secret_file}" if peers.secret_file is not None else ""
            diagnostics.append(f"{source}: secret: is required for a mesh on loopback without [mesh.tls]{missing}")
    return diagnostics


def _check_levels(settings: NodeSettings, peers: PeersFile | None, source: str) -> list[str]:
    """Errors for receipt levels that need more nodes than the mesh has, or a disk where the node has none."""
    most = len([name for name in peers.with_disk if name != settings.name]) if peers is not None else 0
    levels = {"mesh.receipt": settings.mesh.receipt}
    acks = {"mesh.ack_level": settings.mesh.ack_level}
    for kind in ("policy", "queue"):
        for name, value in settings.definitions.get(kind, {}).items():
            levels[f"definitions: {kind} {name}: receipt"] = value.get("receipt")
            acks[f"definitions: {kind} {name}: ack_level"] = value.get("ack_level")
    if settings.directory is None:
        return [
            f'{source}: {key} = "{word}" asks for a disk, and data is "{MEMORY}"; leave it out'
            for key, word in [*levels.items(), *acks.items()]
            if word not in (None, "accepted", "edge")
        ]
    offer = f'the most is "replicas={most}"' if most else 'without other nodes it is "fsync" or "accepted"'
    return [
        f'{source}: {key} = "{word}" asks for more nodes than the mesh has; {offer}'
        for key, word in levels.items()
        if word is not None and word.startswith("replicas=") and int(word.partition("=")[2]) > most
    ]


def _check_acting_users(settings: NodeSettings, peers: PeersFile | None, source: str) -> list[str]:
    """Errors of listeners without login that act as no user although clients log in, or as one that does not exist.

    One that only the peers file has is no error: it serves no client while the node has users.
    """
    names = list(settings.definitions.get("user", ()))
    has_logins = bool(names) or asks_others(settings.authentication)
    peer = peers.peer(settings.name) if peers is not None else None
    found = []
    of_peers = peer.served.values() if peer is not None else ()
    for protocol, one in _without_login(settings):
        key = f"{source}: {protocol.name}: user"
        is_of_peers = one.address in of_peers
        if one.user is not None and one.user not in names:
            found.append(f"{key}: no user is named {one.user!r}; {suggest(one.user, names)}")
        elif one.user is None and has_logins and not one.anonymous and not is_of_peers:
            why = f"{protocol.title} has no login"
            found.append(f"{key}: must name the user as which clients at {one.address} act: {why}")
        elif one.user is None and not has_logins and not one.is_private:
            found.append(f"{key}: must name a user: {one.address} can be reached from other machines without login")
    return found


def _without_login(settings: NodeSettings) -> Iterator[tuple[Declaration, LoginlessListenerSettings]]:
    for protocol in declarations():
        for one in settings.listeners_of(protocol.name):
            if isinstance(one, LoginlessListenerSettings):
                yield protocol, one


def _check_authentication(settings: NodeSettings, source: str) -> list[str]:
    """Errors of the files that authenticators need, and of keys that other users can read."""
    found = []
    for number, one in enumerate(settings.authentication):
        key = f"{source}: authentication[{number}]"
        try:
            if one.jwks is not None:
                keys = load_keys(one.jwks, one.algorithms)
                if any(known.is_symmetric for known in keys) and is_open_to_others(one.jwks):
                    why = "contains a secret key, and other users can read or write it"
                    found.append(f"{one.jwks}: {why}: chmod 600 {one.jwks}")
            if one.ca is not None:
                one.ca.open("rb").close()
        except OSError as error:
            found.append(f"{key}: {error.filename}: cannot be read: {error.strerror}")
        except ValueError as error:
            found.append(f"{key}: {one.jwks}: {error}")
    return found


def _load_node(
    path: Path | None, overrides: Mapping[str, object], diagnostics: list[str], peers: PeersFile | None = None
) -> NodeSettings | None:
    read = _read(path, diagnostics)
    if read is None:
        return None
    values, lines = read
    if path is not None:
        _anchor_paths(values, path.parent)
        if not _take_definitions(values, path, diagnostics):
            return None
    old = take_old_sections(values, str(path), lines, diagnostics)
    if peers is not None and "stomp" not in values and "stomp" not in overrides:
        default = NodeSettings.keys()["name"].default
        peer = peers.peer(str(overrides.get("name", values.get("name", default))))
        if peer is not None:
            values["stomp"] = [{"address": str(peer.client)}]
            for protocol, address in peer.served.items():
                values.setdefault(protocol, [{"address": str(address)}])
    for one, key in _keys_of_mesh(values) if peers is not None else ():
        # What is no list is refused with the rest of the file.
        if isinstance(own := one.get(key, []), list):
            one[key] = [*own, *getattr(peers, key)]
    if "stomp" in values and "stomp" in overrides:
        diagnostics.append(f"{path}: stomp: is given by the file and on the command line; leave out one")
    for key, value in overrides.items():
        section: object = values
        *outer, last = key.split(".")
        for name in outer:
            section = section.setdefault(name, {}) if isinstance(section, dict) else None
        if isinstance(section, dict):  # otherwise the file has a value there, which the checks refuse
            section[last] = value
    settings = _validate(NodeSettings, values, str(path) if path is not None else "settings", lines, diagnostics)
    if settings is not None and path is not None:
        if settings.directory is None and "data" not in overrides and (path.parent / MEMORY).is_dir():
            diagnostics.append(
                f'{path}: data: "{MEMORY}" means no directory, but there is one: write "./{MEMORY}" to use it, else '
                "remove it"
            )
        settings.read_from(path, *old)
        diagnostics += entry_errors(settings.definitions, str(path))
    return settings


def _keys_of_mesh(values: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Sections of listeners, and keys that the peers file may have for all nodes."""
    for protocol in declarations():
        for one in _tables(values, protocol.name):
            if isinstance(one, dict):
                yield from ((one, key) for key in protocol.of_mesh)


def _load_peers(path: Path, diagnostics: list[str]) -> PeersFile | None:
    read = _read(path, diagnostics)
    if read is None:
        return None
    values, lines = read
    if "secret_file" in values and not _take_secret(values, path, diagnostics):
        return None
    return _validate(PeersFile, values, str(path), lines, diagnostics)


def _take_secret(values: dict[str, Any], peers: Path, diagnostics: list[str]) -> bool:
    """Put what is in `secret_file` into `secret`, nothing if it is missing: a mesh that has not started has none. False
    with an error in `diagnostics`."""
    said = values["secret_file"]
    if not isinstance(said, str) or "secret" in values:
        diagnostics.append(f"{peers}: secret_file: is the path of a file, in place of secret")
        return False
    path = peers.parent / said
    values["secret_file"] = path
    try:
        with path.open("rb") as file:
            values["secret"] = file.read(SECRET_BYTES_MAX).decode().strip()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        diagnostics.append(f"{peers}: secret_file: {path}: cannot be read: {error}")
        return False
    return True


def _take_definitions(values: dict[str, Any], path: Path, diagnostics: list[str]) -> bool:
    """Put what is in `file` of `[definitions]` into the table. False with an error in `diagnostics`."""
    table = values.get("definitions")
    if not isinstance(table, dict) or not isinstance(table.get("file"), str):
        return True
    if len(table) > 1:
        diagnostics.append(f"{path}: definitions: file: must be alone: the definitions are in the table or in a file")
        return False
    source = path.parent / table["file"]
    if source.suffix == ".toml":
        read = _read(source, diagnostics)
        values["definitions"] = None if read is None else read[0]
        return read is not None
    try:
        found = json.loads(source.read_bytes())
        values["definitions"] = found["definitions"]
    except OSError as error:
        diagnostics.append(f"{source}: cannot be read: {error.strerror}")
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        diagnostics.append(f"{source}: must be TOML, or JSON that `qmq definitions export` prints: {error!r}")
    return values["definitions"] is not table


def _read(path: Path | None, diagnostics: list[str]) -> tuple[dict[str, Any], LineIndex | None] | None:
    if path is None:
        return {}, None
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"is larger than {FILE_BYTES_MAX} bytes; is it the right file?")
        text = data.decode("utf-8")
        return tomllib.loads(text), LineIndex(text)
    except OSError as error:
        diagnostics.append(f"{path}: cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        diagnostics.append(f"{path}:{line}: not TOML: a byte that is not UTF-8")
    except tomllib.TOMLDecodeError as error:
        diagnostics.append(_toml_diagnostic(path, str(error)))
    except ValueError as error:
        diagnostics.append(f"{path}: {error}")
    except RecursionError:
        diagnostics.append(f"{path}: not TOML: lists or sections are nested too deeply")
    return None


def _toml_diagnostic(path: Path, message: str) -> str:
    """`… (at line 3, column 5)` of tomllib becomes `file:3: …`."""
    reason, _, place = message.rpartition(" (at ")
    words = place.rstrip(")").replace(",", "").split()
    if words[:1] == ["line"]:
        return f"{path}:{words[1]}: not TOML: {reason}, at column {words[3]}"
    return f"{path}: not TOML: {message}"


def _validate(
    model: type[M], values: dict[str, Any], source: str, lines: LineIndex | None, diagnostics: list[str]
) -> M | None:
    try:
        return model.read(values)
    except WrongValues as error:
        diagnostics += describe(error, source, lines)
    except RecursionError:
        diagnostics.append(f"{source}: sections are nested too deeply")
    return None


def _tables(values: dict[str, Any], key: str) -> list[Any]:
    """The tables of an array; none for a value that the checks refuse."""
    found = values.get(key)
    return found if isinstance(found, list) else []


def _anchor_paths(values: dict[str, Any], directory: Path) -> None:
    """Make the paths of a node file relative to its directory. The checks refuse values that are no paths."""
    holders = [values.get("mesh"), *(one for key in LISTENERS for one in _tables(values, key))]
    sections = [holder["tls"] for holder in holders if isinstance(holder, dict) and isinstance(holder.get("tls"), dict)]
    sections += [entry for entry in _tables(values, "authentication") if isinstance(entry, dict)]
    files = ("certificate", "key", "ca", "crl", "jwks")
    for section, keys in ((values, ("data", "peers")), *((one, files) for one in sections)):
        for key in keys:
            if isinstance(section.get(key), str) and section[key] and (key, section[key]) != ("data", MEMORY):
                anchored = directory / section[key]
                # A path: the text "./memory" would become "memory".
                section[key] = anchored if key == "data" else str(anchored)
