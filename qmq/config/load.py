"""Files in, settings out; or a ConfigError that lists every mistake of every file.

The node file is optional and the peers file too: neither, one or both make a node. Overrides are what the command line
says; they win over the file and are checked like it. Relative paths in a file start at the folder of that file, so that
it means the same wherever it is loaded from; those of overrides and defaults start at the current folder.
"""

import copy
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import ConfigError
from .mistakes import describe, suggest
from .node import NodeSettings
from .peers import PeersFile
from .secrecy import check_secrecy
from .toml_lines import LineIndex

FILE_BYTES_MAX = 4 << 20
"""A configuration larger than this is some other file."""

M = TypeVar("M", bound=BaseModel)


def load_node(path: Path | None, overrides: Mapping[str, object] | None = None) -> NodeSettings:
    """The settings of one node.

    `path` None gives the defaults. `overrides` maps dotted keys to values, as `{"data": …, "limits.drain_seconds": 1}`.
    Raises ConfigError with all mistakes.
    """
    mistakes: list[str] = []
    settings = _load_node(path, overrides or {}, mistakes)
    if settings is None:
        raise ConfigError(mistakes)
    return settings


def load_peers(path: Path) -> PeersFile:
    """The peers file at `path`. Raises ConfigError with all mistakes."""
    mistakes: list[str] = []
    peers = _load_peers(path, mistakes)
    if peers is None:
        raise ConfigError(mistakes)
    return peers


def load(
    node_file: Path | None,
    peers_file: Path | None,
    node: str | None = None,
    overrides: Mapping[str, object] | None = None,
) -> tuple[NodeSettings, PeersFile | None]:
    """Both files, checked alone and against each other.

    With a peers file, `node` (or the node file's `name`) says who this is. Its client address is where it listens,
    unless the node file has listeners of its own. Raises ConfigError with the mistakes of both files.
    """
    mistakes: list[str] = []
    wanted: dict[str, object] = dict(overrides or {})
    if node is not None:
        wanted["name"] = node
    peers = _load_peers(peers_file, mistakes) if peers_file is not None else None
    settings = _load_node(node_file, wanted, mistakes, peers)
    if settings is not None:
        mistakes += _check_levels(settings, peers, str(node_file) if node_file is not None else "settings")
    if settings is not None and peers is not None:
        mistakes += check_together(settings, peers, str(peers_file))
    mistakes += check_secrecy(settings, peers, peers_file)
    if mistakes or settings is None:
        raise ConfigError(mistakes)
    return settings, peers


def check_together(settings: NodeSettings, peers: PeersFile, source: str = "peers file") -> list[str]:
    """What is wrong between a node and a mesh, each right by itself; empty when they fit."""
    names = [peer.name for peer in peers.nodes]
    mistakes = []
    if settings.name not in names:
        if "name" in settings.model_fields_set:
            mistakes.append(f"{source}: nodes: no node is named {settings.name!r}; {suggest(settings.name, names)}")
        else:
            mistakes.append(
                f"{source}: which of its nodes is this? Give --node, or name in the node file: {', '.join(names)}"
            )
    if settings.mesh.tls is None and len(peers.nodes) > 1:
        if not peers.is_loopback:
            mistakes.append(
                f"{source}: nodes: mesh addresses off loopback need TLS: give [mesh.tls] with certificate, key and ca "
                f"in the node file of {settings.name!r}"
            )
        elif peers.secret is None:
            mistakes.append(f"{source}: secret: is required for a mesh on loopback without [mesh.tls]")
    return mistakes


def _check_levels(settings: NodeSettings, peers: PeersFile | None, source: str) -> list[str]:
    """Receipt levels that ask for more nodes than there are, which would never be reached."""
    most = len(peers.nodes) - 1 if peers is not None else 0
    levels = {"mesh.receipt": settings.mesh.receipt}
    for policy in settings.destinations.policies:
        levels[f"destinations.policies: {policy.pattern}: receipt"] = policy.receipt
    offer = f'the most is "replicas={most}"' if most else 'without other nodes it is "fsync" or "accepted"'
    return [
        f'{source}: {key} = "{word}" asks for more nodes than the mesh has; {offer}'
        for key, word in levels.items()
        if word is not None and word.startswith("replicas=") and int(word.partition("=")[2]) > most
    ]


def _load_node(
    path: Path | None, overrides: Mapping[str, object], mistakes: list[str], peers: PeersFile | None = None
) -> NodeSettings | None:
    read = _read(path, mistakes)
    if read is None:
        return None
    values, lines = read
    if path is not None:
        _anchor_paths(values, path.parent)
    if peers is not None and "stomp" not in values and "stomp" not in overrides:
        default = NodeSettings.model_fields["name"].default
        peer = peers.peer(str(overrides.get("name", values.get("name", default))))
        if peer is not None:
            values["stomp"] = [{"address": str(peer.client)}]
    if "stomp" in values and "stomp" in overrides:
        mistakes.append(f"{path}: stomp: is given by the file and on the command line; leave out one")
    for key, value in overrides.items():
        section: object = values
        *outer, last = key.split(".")
        for name in outer:
            section = section.setdefault(name, {}) if isinstance(section, dict) else None
        if isinstance(section, dict):  # else the file has something there that is no section, which the checks tell
            section[last] = value
    return _validate(NodeSettings, values, str(path) if path is not None else "settings", lines, mistakes)


def _load_peers(path: Path, mistakes: list[str]) -> PeersFile | None:
    read = _read(path, mistakes)
    return None if read is None else _validate(PeersFile, read[0], str(path), read[1], mistakes)


def _read(path: Path | None, mistakes: list[str]) -> tuple[dict[str, Any], LineIndex | None] | None:
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
        mistakes.append(f"{path}: cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        mistakes.append(f"{path}:{line}: not TOML: a byte that is not UTF-8")
    except tomllib.TOMLDecodeError as error:
        mistakes.append(_toml_mistake(path, str(error)))
    except ValueError as error:
        mistakes.append(f"{path}: {error}")
    except RecursionError:
        mistakes.append(f"{path}: not TOML: lists in lists without end")
    return None


def _toml_mistake(path: Path, message: str) -> str:
    """tomllib says `… (at line 3, column 5)` or `… (at end of document)`; we say `file:3: …`."""
    reason, _, place = message.rpartition(" (at ")
    words = place.rstrip(")").replace(",", "").split()
    if words[:1] == ["line"]:
        return f"{path}:{words[1]}: not TOML: {reason}, at column {words[3]}"
    return f"{path}: not TOML: {message}"


def _validate(
    model: type[M], values: dict[str, Any], source: str, lines: LineIndex | None, mistakes: list[str]
) -> M | None:
    try:
        return model.model_validate(_as_tuples(values))
    except ValidationError as error:
        mistakes += describe(error, model, source, lines)
    except RecursionError:
        mistakes.append(f"{source}: sections in sections without end")
    return None


def _as_tuples(value: object) -> object:
    """TOML's arrays as tuples: settings are immutable, and strict checks take no list for one."""
    if isinstance(value, dict):
        return {key: _as_tuples(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return tuple(_as_tuples(inner) for inner in value)
    return copy.copy(value)


def _anchor_paths(values: dict[str, Any], folder: Path) -> None:
    """Let the paths of a node file start at its folder. What is not a path at all is left to the checks."""
    holders = [values.get("mesh"), *(values["stomp"] if isinstance(values.get("stomp"), list) else ())]
    sections = [holder["tls"] for holder in holders if isinstance(holder, dict) and isinstance(holder.get("tls"), dict)]
    for section, keys in ((values, ("data",)), *((tls, ("certificate", "key", "ca")) for tls in sections)):
        for key in keys:
            if isinstance(section.get(key), str):
                section[key] = str(folder / section[key])
