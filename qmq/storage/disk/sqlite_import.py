"""What this package uses of sqlite-utils, imported without pandas and numpy.

sqlite-utils imports both wherever they are installed, as they are beside Spark, only to know the types of their
columns. For a node that is 80 MB of memory and twice the time to start.
"""

import sys
from typing import Any, Final

_modules: Final[dict[str, Any]] = sys.modules
_hidden: Final = {"numpy", "pandas"} - _modules.keys()
for _name in _hidden:
    _modules[_name] = None  # An import of it is then an ImportError (the import system, section 5.3.1).
try:
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations
finally:
    for _name in _hidden:
        del _modules[_name]

__all__ = ["Database", "Migrations"]
