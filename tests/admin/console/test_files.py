"""The files of the console: each module that one of them names is served."""

import gzip
import posixpath
import re

from qmq.admin.console.files import contents


def test_each_file_that_a_file_of_the_console_names_is_served() -> None:
    missing = []
    named = 0
    for name, (_, data) in contents().items():
        text = data.decode()
        for path in re.findall(r'(?:from |import\(|module: )"(\.[^"]+)"', text):
            found = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
            named += 1
            missing += [(name, path)] if found not in contents() else []
        missing += [(name, path) for path in re.findall(r'"/console/([^"]+)"', text) if path not in contents()]

    assert missing == []
    assert named > 40, "the search finds no imports"


def test_files_of_the_console_are_small_on_their_way_to_a_browser() -> None:
    """60 KB compressed, without a build step."""
    sizes = {name: len(gzip.compress(data, 9, mtime=0)) for name, (_, data) in contents().items()}

    assert sum(sizes.values()) <= 60_000, sizes
