"""What this package uses of sqlite-utils, imported without what it brings for others.

sqlite-utils imports pandas and numpy wherever they are installed, as they are beside Spark, only to know the types of
their columns: 80 MB of memory, and twice the time to start. Its recipes for columns import a parser of dates, which no
node calls: it is loaded when it is used.
"""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from typing import Any, Final

_modules: Final[dict[str, Any]] = sys.modules
_hidden: Final = {"numpy", "pandas"} - _modules.keys()
for _name in _hidden:
    _modules[_name] = None  # An import of it is then an ImportError (the import system, section 5.3.1).
try:
    _dates: Final = find_spec("dateutil.parser")
    if _dates is not None and _dates.loader is not None and _dates.name not in _modules:
        _dates.loader = LazyLoader(_dates.loader)
        _modules[_dates.name] = module_from_spec(_dates)
        _dates.loader.exec_module(_modules[_dates.name])
        setattr(_modules["dateutil"], "parser", _modules[_dates.name])  # noqa: B010 (it is no attribute for mypy)
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations
finally:
    for _name in _hidden:
        del _modules[_name]

__all__ = ["Database", "Migrations"]
