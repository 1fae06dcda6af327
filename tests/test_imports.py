"""Which package may import which: the layers of docs/architecture.md, checked by reading the imports of every file."""

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Package of qmq → the packages of qmq that it may import, besides itself. Exhaustive: a new package needs a line here.
MAY_IMPORT: Mapping[str, set[str]] = {
    "__init__": set(),
    "errors": set(),
    "build": set(),
    "dots": {"errors"},
    "cursors": {"errors", "dots"},
    "levels": set(),
    "lost_ranges": {"dots"},
    "deletions": {"dots"},
    "address": set(),
    "unix_socket": set(),
    "routing_names": set(),
    "members": {"errors", "dots"},
    "access": {"errors"},
    "auth": {"errors", "access"},
    "config": {"errors", "access", "address", "auth", "routing_names"},
    "definitions": {"errors", "dots", "config", "routing_names"},
    "wire": {"errors", "dots"},
    "broker": {"errors", "dots", "cursors", "deletions", "levels", "lost_ranges", "members", "routing_names"},
    "storage": {"errors", "dots", "cursors", "definitions", "deletions", "levels", "lost_ranges", "members"},
    "record_codec": {"errors", "dots", "cursors", "definitions", "deletions", "members", "broker", "storage"},
    "environment": {"errors", "dots"},
    "gateways": {"errors", "dots", "cursors", "access", "wire", "broker", "levels", "routing_names"},
    "replication": {"errors", "dots", "cursors", "members", "environment", "wire", "broker", "storage", "record_codec"},
    "server": {
        "errors",
        "access",
        "auth",
        "build",
        "dots",
        "cursors",
        "definitions",
        "deletions",
        "levels",
        "lost_ranges",
        "members",
        "environment",
        "config",
        "console",
        "wire",
        "broker",
        "storage",
        "record_codec",
        "gateways",
        "replication",
        "routing_names",
        "unix_socket",
    },
    "blocking": {"errors", "unix_socket", "wire"},
    "spark": {"errors", "dots", "cursors", "storage", "blocking"},
    "bench": {"errors", "address", "wire"},
    "client": {"errors", "address", "dots", "wire"},
    "cli": {
        "errors",
        "address",
        "build",
        "dots",
        "definitions",
        "members",
        "config",
        "wire",
        "broker",
        "storage",
        "record_codec",
        "gateways",
        "replication",
        "server",
        "bench",
        "blocking",
        "spark",
        "routing_names",
        "unix_socket",
    },
    "console": set(),
    "__main__": {"cli"},
}

# Package of qmq.wire → its siblings that it may import. Exhaustive: a codec needs a line here.
WITHIN_WIRE: Mapping[str, set[str]] = {
    "stomp": set(),
    "avro": set(),
    "http": set(),
    "websocket": {"http"},
    "amqp": set(),
    "beanstalk": set(),
}

# Path in qmq/wire → packages from outside the standard library that it may import.
LIBRARIES: Mapping[str, set[str]] = {
    "wire/http/": {"h11"},
    "wire/amqp/": {"pamqp"},
    "wire/websocket/": {"websockets"},
}

# Files and packages in which trio may appear; everywhere else the code decides and somebody else runs it.
MAY_RUN = (
    "server/",
    "cli/",
    "replication/links/link.py",
    "replication/mesh.py",
    "replication/links/listener.py",
    "replication/links/reverse_dial.py",
    "client/client.py",
    "client/runner.py",
    "client/subscription.py",
    "client/dial.py",
)

RUNS_THINGS = {"trio", "asyncio", "anyio"}
CLOCKS_AND_CHANCE = {"time", "random", "secrets", "uuid"}
THE_SYSTEM = {"os", "socket", "subprocess", "tempfile", "shutil"}

# Path in qmq → modules from outside that it must do without. What should happen is the same for the same input.
MUST_NOT_IMPORT: Mapping[str, set[str]] = {
    "wire/": CLOCKS_AND_CHANCE | THE_SYSTEM | {"datetime", "threading", "pathlib"},
    "access/": CLOCKS_AND_CHANCE | THE_SYSTEM | {"datetime", "threading", "pathlib"},
    "broker/": CLOCKS_AND_CHANCE | THE_SYSTEM | {"datetime", "threading", "pathlib"},
    "storage/": CLOCKS_AND_CHANCE | THE_SYSTEM,
    "gateways/": CLOCKS_AND_CHANCE | THE_SYSTEM,
    "replication/": CLOCKS_AND_CHANCE | THE_SYSTEM,  # what it needs of these comes through world
    "client/core.py": CLOCKS_AND_CHANCE | THE_SYSTEM,
    "client/answers.py": CLOCKS_AND_CHANCE | THE_SYSTEM,
    "client/feed.py": CLOCKS_AND_CHANCE | THE_SYSTEM,
    "client/feeds.py": CLOCKS_AND_CHANCE | THE_SYSTEM,
    "client/requests.py": CLOCKS_AND_CHANCE | THE_SYSTEM,
    "client/vectors.py": CLOCKS_AND_CHANCE | THE_SYSTEM,
}

EXCEPTIONS: Mapping[str, set[str]] = {
    "storage/disk/disk.py": THE_SYSTEM | {"uuid"},  # the one place that touches real files, and names a new node
    "storage/queues/postgres_watch.py": {"os", "socket", "time"},  # bounds how long a database may take
}

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


def breaches(name: str, text: str) -> list[str]:
    """What the file `name` (its path in qmq) imports against the tables."""
    layer = name.partition("/")[0].removesuffix(".py")
    package = ".".join(["qmq", *name.split("/")[:-1]])
    found = []
    for imported in imports_of(text, package):
        top, _, rest = imported.partition(".")
        if top == "qmq":
            other = rest.partition(".")[0]
            if other and other != layer and other not in MAY_IMPORT[layer] and other != "__version__":
                found.append(f"{name} imports {imported}")
            elif other == layer == "wire":
                codec, sibling = name.split("/")[1].removesuffix(".py"), rest.split(".")[1]
                if sibling != codec and sibling not in WITHIN_WIRE[codec]:
                    found.append(f"{name} imports {imported}")
        elif top in RUNS_THINGS and not (top == "trio" and name.startswith(MAY_RUN)):
            found.append(f"{name} imports {top}")
        elif name not in EXCEPTIONS or top not in EXCEPTIONS[name]:
            if any(name.startswith(path) and top in modules for path, modules in MUST_NOT_IMPORT.items()):
                found.append(f"{name} imports {top}")
            elif layer == "wire" and top not in sys.stdlib_module_names:
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
        ("wire/stomp/reader.py", "from qmq.wire.http import HttpConnection"),
        ("wire/http/head.py", "from qmq.wire.websocket import accept"),
        ("wire/websocket/frames.py", "from qmq.wire.stomp import Head"),
        ("wire/http/head.py", "import msgpack"),
        ("wire/stomp/reader.py", "import h11"),
        ("client/core.py", "import trio"),
        ("client/core.py", "from time import monotonic"),
        ("client/client.py", "from qmq.server.runtime.sockets import TcpNetwork"),
        ("gateways/stomp.py", "from ..server import node"),
        ("config/load.py", "from ..dots import Dot"),
        ("errors.py", "from . import dots"),
        ("server/node.py", "import asyncio"),
        ("server/node.py", "from qmq.cli import client"),
    ],
)
def test_a_breach_is_seen(name: str, text: str) -> None:
    assert len(breaches(name, text)) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wire/stomp/reader.py", "from qmq.errors import QmqError\nfrom .head import Head\nimport struct"),
        ("wire/http/head.py", "import h11, re\nfrom qmq.wire.http.limits import HttpLimits"),
        ("storage/disk/disk.py", "import os"),
        ("replication/links/link.py", "import trio\nfrom ..storage.journal import Journal"),
        ("server/node.py", "import trio, time\nfrom qmq.broker import Broker"),
        ("cli/__init__.py", "from .. import __version__"),
    ],
)
def test_what_is_allowed_is_not_called_a_breach(name: str, text: str) -> None:
    assert breaches(name, text) == []


def test_every_package_has_its_line_in_the_table() -> None:
    layers = {name.partition("/")[0].removesuffix(".py") for name in NAMES}
    codecs = {name.split("/")[1].removesuffix(".py") for name in NAMES if name.startswith("wire/")}

    assert layers - set(MAY_IMPORT) == set()
    assert codecs - {"__init__"} == set(WITHIN_WIRE)


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
