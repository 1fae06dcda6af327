"""The pure parts of a node without their totals, to measure what counting costs. `install()` before they are loaded.

Statements that add to a field of totals are left out when a module is loaded from its source. So it has no effect on a
compiled build.
"""

import ast
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Final

PACKAGES: Final = ("qmq.broker.", "qmq.gateways.")

left_out: list[str] = []
"""The statements that were left out."""


class _WithoutCounting(ast.NodeTransformer):
    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:  # noqa: N802
        text = ast.unparse(node)
        if isinstance(node.target, ast.Attribute) and "totals" in text.partition("+=")[0]:
            left_out.append(text)
            return ast.copy_location(ast.Pass(), node)
        return node


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> object:  # type: ignore[override]  # never the cached bytecode of the original
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        return compile(ast.fix_missing_locations(_WithoutCounting().visit(tree)), path, "exec")


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if not fullname.startswith(PACKAGES) or fullname.endswith(".totals"):
            return None
        spec = PathFinder.find_spec(fullname, path, target)  # type: ignore[arg-type]
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """From now on. Raises RuntimeError if a part is loaded already."""
    loaded = [name for name in sys.modules if name.startswith(PACKAGES)]
    if loaded:
        raise RuntimeError(f"{loaded[0]} is loaded already")
    sys.meta_path.insert(0, _Finder())
