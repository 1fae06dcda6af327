"""Single changes of a module's source that its tests should notice.

A mutant is one small edit at one place: another comparison, `and` for `or`, a dropped `not`, `+` for `-`, a number
increased by one, a call or an assignment left out, another way out of a loop, an inverted condition. They are found in
the syntax tree and made in the text, so each differs from the source at that place only. Docstrings, annotations,
logging and assertions are left alone, because no test depends on them.
"""

import ast
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*"}
IGNORED_CALLS = ("log.", "self._log.", "super().__init__")


class Mutant(NamedTuple):
    """The text from `start` to `end` becomes `text`. `line` counts from 1."""

    kind: str
    line: int
    start: int
    end: int
    text: str


def apply(source: str, mutant: Mutant) -> str:
    """The whole source with this change."""
    return source[: mutant.start] + mutant.text + source[mutant.end :]


def mutants_of(source: str) -> list[Mutant]:
    """Every mutant of a module, by place. Each compiles, and none is the source again."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda mutant: (mutant.start, mutant.end, mutant.kind))


class _Finder(ast.NodeVisitor):
    def __init__(self, source: str) -> None:
        self.found: list[Mutant] = []
        self._source = source
        # ast counts columns in bytes of UTF-8.
        self._lines = source.encode().splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line.decode()))

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1][:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._source[start:end]

    def _add(self, kind: str, node: ast.expr | ast.stmt, text: str) -> None:
        start, end = self._span(node)
        self.found.append(Mutant(kind, node.lineno, start, end, text))

    def _between(self, kind: str, left: ast.expr, right: ast.expr, text: str) -> None:
        """Replace what stands between two operands, but for brackets and breaks of lines."""
        start, end = self._span(left)[1], self._span(right)[0]
        operator = self._source[start:end]
        word = operator.strip(" \n\t()")
        if word and "#" not in operator:
            at = start + operator.index(word)
            self.found.append(Mutant(kind, left.end_lineno or left.lineno, at, at + len(word), text))

    # What is left alone

    def visit_Assert(self, node: ast.Assert) -> None:  # noqa: N802
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: N802
        if node.value is not None:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in [*node.defaults, *node.kw_defaults]:
            if default is not None:
                self.visit(default)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:  # noqa: N802
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:  # noqa: N802
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.visit(node.args)
        for statement in node.body:
            self.visit(statement)

    # What is changed

    def visit_Compare(self, node: ast.Compare) -> None:  # noqa: N802
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            self._between("comparison", left, right, COMPARISONS[type(operator)])
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:  # noqa: N802
        other = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between("and/or", left, right, other)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:  # noqa: N802
        if isinstance(node.op, ast.Not):
            self._add("not", node, f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:  # noqa: N802
        text = ARITHMETIC.get(type(node.op))
        is_text = any(
            isinstance(side, ast.Constant | ast.JoinedStr) and _is_text(side) for side in (node.left, node.right)
        )
        if text is not None and not is_text:
            self._between("arithmetic", node.left, node.right, text)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:  # noqa: N802
        if isinstance(node.value, bool):
            self._add("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self._add("number", node, str(node.value + 1))

    def visit_Expr(self, node: ast.Expr) -> None:  # noqa: N802
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call):
            if self._text(value).startswith(IGNORED_CALLS):
                return
            self._add("call", node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:  # noqa: N802
        if any(isinstance(target, ast.Attribute) for target in node.targets):
            self._add("assignment", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        self._add("assignment", node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:  # noqa: N802
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add("return", node, "return None")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:  # noqa: N802
        self._add("loop", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:  # noqa: N802
        self._add("loop", node, "break")

    def visit_If(self, node: ast.If) -> None:  # noqa: N802
        self._add("branch", node.test, f"not ({self._text(node.test)})")
        self.generic_visit(node)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def drawn(sources: dict[str, str], count: int, per_file: int, rng: Random) -> Iterator[tuple[str, Mutant]]:
    """`count` mutants as (path, mutant), kinds drawn evenly, at most `per_file` of one module."""
    by_kind: dict[str, list[tuple[str, Mutant]]] = {}
    for path in sorted(sources):
        for mutant in mutants_of(sources[path]):
            by_kind.setdefault(mutant.kind, []).append((path, mutant))
    taken: dict[str, int] = {}
    while count and by_kind:
        kind = rng.choice(sorted(by_kind))
        path, mutant = by_kind[kind].pop(rng.randrange(len(by_kind[kind])))
        if not by_kind[kind]:
            del by_kind[kind]
        if taken.get(path, 0) < per_file:
            taken[path] = taken.get(path, 0) + 1
            count -= 1
            yield path, mutant
