"""Errors of files in words: file and line, key, value, what is allowed.

sentences   one line of text for each error
toml_lines  the line of a key
"""

from .sentences import SECRET_KEYS as SECRET_KEYS
from .sentences import describe as describe
from .sentences import key_of as key_of
from .sentences import suggest as suggest
from .toml_lines import LineIndex as LineIndex
