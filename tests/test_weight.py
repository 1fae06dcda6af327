"""What each room of the product weighs, against the ceilings of a decision page: only that page may raise one.

`make weigh` prints the table. A line of code is one that is left without docstrings, comments and blank lines.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from qmq.admin.facts.conditions import RULES
from qmq.node.peer_requests import CALLS
from qmq.protocols import declarations
from qmq.replication.protocol.frame_table import FROM_PULLING_SIDE, FROM_SERVING_SIDE
from qmq.storage.format.record import RecordKind

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "decisions" / "0030-rooms-and-their-weight.md"
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(text: str) -> int:
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        for statement in getattr(node, "body", None) or () if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                if isinstance(statement.value.value, str):
                    docstrings.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def room_of(path: Path) -> str:
    """A package of qmq, a protocol, or "." for the loose modules."""
    folders = path.relative_to(ROOT / "qmq").parts[:-1]
    return "/".join(folders[:2]) if folders[:1] == ("protocols",) else (folders or (".",))[0]


def weights() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in (ROOT / "qmq").rglob("*.py"):
        found[room_of(path)] += lines_of_code(path.read_text("utf-8"))
    return found


def kinds() -> dict[str, int]:
    """How many there are of what each costs a reader of the whole."""
    tasks = re.findall(
        r"\.start(?:_soon)?\(self\.(?:\w+\.)?(\w+)\.run\b",
        (ROOT / "qmq/node/node.py").read_text("utf-8"),
    )
    return {
        "kinds of requests between nodes": len(CALLS.kinds) + sum(len(one.requests) for one in declarations()),
        "frames of links": len(FROM_PULLING_SIDE.keys() | FROM_SERVING_SIDE.keys()),
        "kinds of records": len(RecordKind),
        "background tasks of a node": len(set(tasks)),
        "conditions": len(RULES),
    }


def ceilings(section: str) -> Iterator[tuple[str, int]]:
    text = PAGE.read_text("utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    for name, number in re.findall(r"^\| `?([^|`]+?)`? \| ([\d,]+) \|", text, re.MULTILINE):
        yield name, int(number.replace(",", ""))


def test_no_room_weighs_more_than_its_ceiling() -> None:
    found, allowed = weights(), dict(ceilings("Rooms"))

    assert found.keys() == allowed.keys(), "each room needs a ceiling"
    assert {room: lines for room, lines in found.items() if lines > allowed[room]} == {}


def test_no_kind_has_more_members_than_its_ceiling() -> None:
    found, allowed = kinds(), dict(ceilings("Kinds"))

    assert found.keys() == allowed.keys()
    assert {name: count for name, count in found.items() if count > allowed[name]} == {}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""A module."""\n\nX = 1\n"""What it is."""\n', 1),
        ("def f() -> str:\n    # why\n\n    return '''a\nb'''\n", 3),
        ("class A:\n    '''Doc.'''\n\n    x: int = 1\n    '''Unit.'''\n", 2),
    ],
)
def test_docstrings_comments_and_blank_lines_weigh_nothing(text: str, lines: int) -> None:
    assert lines_of_code(text) == lines


if __name__ == "__main__":
    for title, counted in (("Rooms", weights()), ("Kinds", kinds())):
        allowed_of = dict(ceilings(title))
        print(f"{title:32}  {'now':>7}  {'ceiling':>7}")
        for name, count in sorted(counted.items()):
            print(f"{name:32}  {count:7,}  {allowed_of.get(name, 0):7,}")
