"""Which room may import which: the layers of docs/architecture.md, checked by reading the imports of every file."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from qmq.protocols import PROTOCOLS

ROOT = Path(__file__).parents[1]

# Room of qmq → the rooms that it may import, besides itself. A room is a package, a loose module, or one of the folders
# of a protocol; a file belongs to the longest name that begins its path. Exhaustive, in the order of the layers.
GROUND = {"errors", "model"}
RULES = GROUND | {"access", "verbs", "wire", "broker", "gateways"}
ENGINE = RULES | {
    "config",
    "protocols",
    "definitions",
    "environment",
    "unix_socket",
    "storage",
    "record_codec",
    "replication",
    "engine",
}
SESSIONS = ENGINE | {"auth", "mesh", "settings", "sessions"}
DIALOGUE = SESSIONS | {"build", "admin"}
MAY_IMPORT: Mapping[str, set[str]] = {
    "__init__": set(),
    "errors": set(),
    "build": set(),
    "address": set(),
    "unix_socket": set(),
    "section": {"address"},
    "model": {"errors"},
    "access": {"errors"},
    "verbs": {"errors", "access"},
    "auth": {"errors", "access"},
    "protocols": {"address", "section"},
    **{f"protocols/{name}/listener": {"address", "section", "protocols"} for name in PROTOCOLS},
    "config": {"errors", "access", "address", "auth", "model", "section", "protocols"},
    "definitions": GROUND | {"config"},
    "wire": {"errors"},
    "broker": GROUND,
    "storage": GROUND | {"definitions"},
    "environment": GROUND,
    "gateways": GROUND | {"access", "verbs", "wire", "broker"},
    "record_codec": GROUND | {"definitions", "broker", "storage"},
    "replication": GROUND | {"definitions", "environment", "wire", "broker", "storage", "record_codec"},
    "engine": ENGINE - {"access", "verbs", "wire", "definitions"},
    "mesh": ENGINE,
    "settings": ENGINE | {"mesh"},
    "sessions": SESSIONS,
    "admin": DIALOGUE,
    "protocols/stomp": SESSIONS | {"admin", "protocols/stomp/listener"},
    "protocols/http": DIALOGUE
    | {"protocols/http/codec", "protocols/http/gateway", "protocols/http/websocket", "protocols/stomp"}
    | {"protocols/http/listener"},
    "protocols/http/codec": {"errors"},
    "protocols/http/websocket": {"errors", "protocols/http/codec"},
    "protocols/http/gateway": RULES | {"protocols/http/codec"},
    "protocols/amqp": DIALOGUE | {"protocols/amqp/listener", "protocols/amqp/codec", "protocols/amqp/gateway"},
    "protocols/amqp/codec": {"errors"},
    "protocols/amqp/gateway": RULES | {"protocols/amqp/codec"},
    "protocols/beanstalk": DIALOGUE
    | {"protocols/beanstalk/listener", "protocols/beanstalk/codec", "protocols/beanstalk/gateway"},
    "protocols/beanstalk/codec": {"errors"},
    "protocols/beanstalk/gateway": RULES | {"protocols/beanstalk/codec"},
    "node": DIALOGUE,
    "deploy": {"errors", "address", "section"},
    "dramatiq": {"errors", "client"},
    "spark": GROUND | {"address", "client", "client/core", "storage", "unix_socket", "wire"},
    "bench": {"errors", "address", "wire"},
    "client": GROUND | {"address", "client/core", "unix_socket", "wire"},
    "client/core": GROUND | {"address", "wire"},
    "cli": DIALOGUE | {"address", "bench", "client", "client/core", "deploy", "node", "section", "spark"},
    "testing": GROUND | {"cli", "protocols"},
    "__main__": {"cli"},
}

# Folders of codecs and of gateways: pure, each by itself.
CODECS = (
    "wire/",
    *(f"protocols/{name}/" for name in ("http/codec", "http/websocket", "amqp/codec", "beanstalk/codec")),
)
GATEWAYS = ("gateways/", *(f"protocols/{name}/gateway/" for name in ("http", "amqp", "beanstalk")))

# Folder of codecs → packages from outside the standard library that it may import.
LIBRARIES: Mapping[str, set[str]] = {
    "protocols/http/codec/": {"h11"},
    "protocols/http/websocket/": {"websockets"},
    "protocols/amqp/codec/": {"pamqp"},
}

# Files and rooms in which trio may appear, but for codecs and gateways; all other code decides, and these run it.
MAY_RUN = (
    "engine/",
    "mesh/",
    "settings/",
    "sessions/",
    "admin/",
    "protocols/",
    "node/",
    "cli/",
    "replication/links/link.py",
    "replication/mesh.py",
    "replication/links/listener.py",
    "replication/links/reverse_dial.py",
    "client/on_trio.py",
    "testing/awaited.py",
)

ON_ASYNCIO = ("client/aio.py", "testing/awaited.py")
"""The files in which asyncio may appear: the client for programs that run on it, and nodes for their tests."""

RUNS_THINGS = {"trio", "asyncio", "anyio"}
CLOCKS_AND_CHANCE = {"time", "random", "secrets", "uuid"}
THE_SYSTEM = {"os", "socket", "subprocess", "tempfile", "shutil"}

# Path in qmq → modules from outside that it must do without. What should happen is the same for the same input.
MUST_NOT_IMPORT: Mapping[str, set[str]] = {
    **dict.fromkeys(CODECS, CLOCKS_AND_CHANCE | THE_SYSTEM | {"datetime", "threading", "pathlib"}),
    "model/": CLOCKS_AND_CHANCE | THE_SYSTEM,
    "access/": CLOCKS_AND_CHANCE | THE_SYSTEM | {"datetime", "threading", "pathlib"},
    "verbs/": CLOCKS_AND_CHANCE | THE_SYSTEM | {"datetime", "threading", "pathlib"},
    "broker/": CLOCKS_AND_CHANCE | THE_SYSTEM | {"datetime", "threading", "pathlib"},
    "storage/": CLOCKS_AND_CHANCE | THE_SYSTEM,
    **dict.fromkeys(GATEWAYS, CLOCKS_AND_CHANCE | THE_SYSTEM),
    "replication/": CLOCKS_AND_CHANCE | THE_SYSTEM,  # what it needs of these comes through world
    "client/core/": CLOCKS_AND_CHANCE | THE_SYSTEM | {"datetime", "threading", "pathlib"},
}

EXCEPTIONS: Mapping[str, set[str]] = {
    "storage/backup.py": {"os", "shutil"},  # copies the files of a node from outside
    "storage/backup_files.py": {"os", "shutil"},
    "storage/disk/disk.py": THE_SYSTEM | {"uuid", "time"},  # touches real files, waits for a descriptor, names a node
    "storage/queues/postgres_watch.py": {"os", "socket", "time"},  # bounds how long a database may take
}

OF_PIPELINE = {"pyspark", "py4j", "pandas", "pyarrow", "deltalake", "numpy", "pyiceberg"}
"""Packages of the extras `spark`, `archive` and `iceberg`, which are for the room `spark`."""
WITHOUT_SPARK = ("spark/archive/", "spark/reading/", "spark/typed/")
"""What `qmq archive` runs, without a JVM."""
SPARK = {"pyspark", "py4j", "pandas"}

FILES = sorted((ROOT / "qmq").rglob("*.py"))
NAMES = [file.relative_to(ROOT / "qmq").as_posix() for file in FILES]


parsed = cache(ast.parse)


def imports_of(text: str, package: str) -> Iterator[str]:
    """Dotted names of everything that a module of `package` imports, wherever in the file, relative ones resolved."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from qmq import wire` and `from .. import wire` import modules by name.
            yield from (f"{module}.{alias.name}" if module == "qmq" else module for alias in node.names)


def room_of(path: str) -> str:
    """The room of a file or package, by its path in qmq without ending; "" if there is none."""
    names = path.split("/")
    rooms = ["/".join(names[:count]) for count in range(len(names), 0, -1)]
    return next((room for room in rooms if room in MAY_IMPORT), "")


def breaches(name: str, text: str) -> list[str]:
    """What the file `name` (its path in qmq) imports against the tables."""
    room = room_of(name.removesuffix(".py"))
    package = ".".join(["qmq", *name.split("/")[:-1]])
    is_pure = name.startswith((*CODECS, *GATEWAYS))
    found = []
    for imported in imports_of(text, package):
        top, _, rest = imported.partition(".")
        if top == "qmq":
            path = rest.replace(".", "/")
            other = room_of(path) or path
            if other and other != room and other not in MAY_IMPORT[room] and other != "__version__":
                found.append(f"{name} imports {imported}")
            elif other == room == "wire" and path.split("/")[1] != name.split("/")[1].removesuffix(".py"):
                found.append(f"{name} imports {imported}")
        elif top == "asyncio" and name in ON_ASYNCIO:
            continue
        elif top in RUNS_THINGS and not (top == "trio" and name.startswith(MAY_RUN) and not is_pure):
            found.append(f"{name} imports {top}")
        elif top in OF_PIPELINE and (room not in ("spark", "cli") or top in SPARK and name.startswith(WITHOUT_SPARK)):
            found.append(f"{name} imports {top}")
        elif name not in EXCEPTIONS or top not in EXCEPTIONS[name]:
            if any(name.startswith(path) and top in modules for path, modules in MUST_NOT_IMPORT.items()):
                found.append(f"{name} imports {top}")
            elif name.startswith(CODECS) and top not in sys.stdlib_module_names:
                if not any(name.startswith(path) and top in libraries for path, libraries in LIBRARIES.items()):
                    found.append(f"{name} imports {top}")
    return found


def test_imports_go_one_way() -> None:
    assert [breach for name in NAMES for breach in breaches(name, (ROOT / "qmq" / name).read_text("utf-8"))] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wire/stomp/reader.py", "from qmq.broker import Broker"),
        ("wire/stomp/reader.py", "from ...broker.queue import Queue"),
        ("wire/stomp/reader.py", "from qmq import broker"),
        ("wire/stomp/reader.py", "def f() -> None:\n    import trio"),
        ("broker/queues/queue.py", "from time import monotonic"),
        ("broker/queues/queue.py", "if TYPE_CHECKING:\n    import qmq.storage.log.journal"),
        ("storage/log/journal.py", "import os.path"),
        ("storage/disk/disk.py", "import random"),
        ("replication/antientropy.py", "import trio"),
        ("wire/stomp/reader.py", "from qmq.wire.avro import Schema"),
        ("protocols/http/codec/head.py", "from qmq.protocols.http.websocket import accept"),
        ("protocols/http/websocket/frames.py", "from qmq.wire.stomp import Head"),
        ("protocols/http/codec/head.py", "import msgpack"),
        ("wire/stomp/reader.py", "import h11"),
        ("client/client.py", "import trio"),
        ("client/on_trio.py", "import asyncio"),
        ("client/core/core.py", "from time import monotonic"),
        ("client/core/keepalive.py", "from qmq.client.runner import Runner"),
        ("client/client.py", "from qmq.engine.runtime.sockets import TcpNetwork"),
        ("gateways/stomp.py", "from ..node import node"),
        ("config/load.py", "from ..wire.stomp import Head"),
        ("errors.py", "from . import model"),
        ("node/node.py", "import asyncio"),
        ("node/node.py", "from qmq.protocols.http.dialogue import protocol"),
        ("config/node.py", "from qmq.protocols.http.dialogue import protocol"),
        ("config/node.py", "from qmq.protocols.http.listener import HttpListenerSettings"),
        ("protocols/__init__.py", "from qmq.protocols.http.listener import DECLARATION"),
        ("protocols/http/listener.py", "from qmq.config import NodeSettings"),
        ("node/node.py", "from qmq.cli import client"),
        ("protocols/amqp/codec/frames.py", "import trio"),
        ("protocols/http/gateway/routes.py", "import trio"),
        ("protocols/amqp/dialogue.py", "from qmq.protocols.beanstalk.dialogue import BEANSTALK"),
        ("protocols/amqp/gateway/messages.py", "from qmq.sessions.frame_loop import FrameLoop"),
        ("engine/commit/commits.py", "from qmq.mesh.peers.rpc import Rpc"),
        ("sessions/frame_loop.py", "from qmq.admin.verbs import VERBS"),
        ("node/node.py", "import pyarrow"),
        ("storage/backup.py", "from deltalake import DeltaTable"),
        ("spark/archive/archiver.py", "from pyspark.sql import SparkSession"),
    ],
)
def test_a_breach_is_seen(name: str, text: str) -> None:
    assert len(breaches(name, text)) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wire/stomp/reader.py", "from qmq.errors import QmqError\nfrom .head import Head\nimport struct"),
        ("protocols/http/codec/head.py", "import h11, re\nfrom qmq.protocols.http.codec.limits import HttpLimits"),
        ("storage/disk/disk.py", "import os"),
        ("replication/links/link.py", "import trio\nfrom ..storage.journal import Journal"),
        ("node/node.py", "import trio, time\nfrom qmq.broker import Broker"),
        ("protocols/http/websocket/handshake.py", "from qmq.protocols.http.codec import HttpRefusal"),
        ("cli/__init__.py", "from .. import __version__"),
        ("spark/archive/archiver.py", "import pyarrow"),
        ("spark/jobs/stats.py", "from pyspark.sql import SparkSession"),
    ],
)
def test_what_is_allowed_is_not_called_a_breach(name: str, text: str) -> None:
    assert breaches(name, text) == []


def test_every_package_has_its_line_in_the_table() -> None:
    rooms = {name.partition("/")[0].removesuffix(".py") for name in NAMES}
    protocols = {"/".join(name.split("/")[:2]) for name in NAMES if re.match("protocols/.*/", name)}

    assert (rooms | protocols) - set(MAY_IMPORT) == set()
    assert [room for room in MAY_IMPORT if not any(name.startswith((f"{room}/", f"{room}.py")) for name in NAMES)] == []


def test_the_rooms_are_layers() -> None:
    assert circles({room: set(others) - {room} for room, others in MAY_IMPORT.items()}) == []


@cache
def edges() -> dict[str, set[str]]:
    """File of qmq → files of qmq that it imports, type-only imports included."""
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in NAMES}
    found: dict[str, set[str]] = {}
    for name in NAMES:
        package = ".".join(["qmq", *name.split("/")[:-1]])
        targets = found[name] = set()
        for node in ast.walk(parsed((ROOT / "qmq" / name).read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])]).removeprefix("qmq").lstrip(".")
                names = [f"{module}.{alias.name}".lstrip(".") for alias in node.names]
                targets.update(modules[one if one in modules else module] for one in names if module in modules)
        targets -= {name, "__init__.py"}
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The nodes that are left when everything that imports nothing, or is imported by nothing, is taken away."""
    left = {node: set(targets) for node, targets in graph.items()}
    while True:
        imported = set().union(*left.values()) if left else set()
        ends = {node for node in left if not left[node] & left.keys() or node not in imported}
        if not ends:
            return [sorted(left)] if left else []
        left = {node: targets - ends for node, targets in left.items() if node not in ends}


def test_no_file_imports_itself_through_others() -> None:
    assert circles(edges()) == []


def test_no_folder_imports_itself_through_others() -> None:
    folders: dict[str, set[str]] = {}
    for name, targets in edges().items():
        if not name.endswith("__init__.py"):
            folder = name.rpartition("/")[0] or name
            others = {other.rpartition("/")[0] or other for other in targets if not other.endswith("__init__.py")}
            folders.setdefault(folder, set()).update(others - {folder})

    assert circles(folders) == []


def test_a_circle_is_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == [["a", "b", "c"]]


def folders_of(top: str) -> list[str]:
    """Folders of Python, as paths in the project."""
    return sorted({path.parent.relative_to(ROOT).as_posix() for path in (ROOT / top).rglob("*.py")})


def test_a_folder_has_at_most_18_files() -> None:
    folders = [*folders_of("qmq"), *folders_of("tests")]
    files = {folder: [path for path in (ROOT / folder).iterdir() if path.is_file()] for folder in folders}

    assert [folder for folder, found in files.items() if len(found) > 18] == []


def test_a_module_has_at_most_420_lines() -> None:
    lines = {name: len((ROOT / "qmq" / name).read_text("utf-8").splitlines()) for name in NAMES}

    assert {name: count for name, count in lines.items() if count > 420} == {}


def test_names_that_tests_replace_exist_where_they_are_looked_up() -> None:
    """Also where a package is not installed, and the test that replaces one is skipped."""
    lacking = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if '"qmq.' in path.read_text("utf-8")
        for line, name in replaced_names(ast.parse(path.read_text("utf-8")))
        if not is_bound(name)
    ]
    assert not lacking, "\n".join(lacking)


def test_a_name_that_an_import_took_away_is_noticed() -> None:
    source = 'monkeypatch.setattr("qmq.errors.Refused", 1)\nmonkeypatch.setattr("qmq.errors.Elsewhere.name", 1)'
    names = [name for _, name in replaced_names(ast.parse(source))]
    assert [is_bound(name) for name in names] == [True, False]


def replaced_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(Line, name in `qmq`) of each first argument of `setattr` or `patch` that is text."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "patch") | ast.Name(id="patch"),
                args=[ast.Constant(value=str(name)), *_],
            ) if name.startswith("qmq."):
                yield node.lineno, name


def is_bound(name: str) -> bool:
    """Whether the module of `name` binds, at its top level, the word that comes next in it."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        for path in (ROOT.joinpath(*parts[:end]).with_suffix(".py"), ROOT.joinpath(*parts[:end], "__init__.py")):
            if path.exists():
                return parts[end] in bound_in(path)
    return False


@cache
def bound_in(path: Path) -> frozenset[str]:
    """The names that are bound at the top level of a module, or below an `if`, `try` or `with` there."""
    found: set[str] = set()
    todo: list[ast.AST] = list(ast.parse(path.read_text("utf-8")).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update((one.asname or one.name).split(".")[0] for one in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        else:
            todo += ast.iter_child_nodes(node)
    return frozenset(found)
