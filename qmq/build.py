"""Which build runs: this module is compiled together with the hot ones (native.py), so its own file shows it.

Without a C compiler, in an editable install and in a checkout all modules are the plain source, and do the same.
"""

from typing import Final

BUILD: Final = "pure" if __file__.endswith(".py") else "compiled"
