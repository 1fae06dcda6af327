"""The line of a key, in every form that TOML allows it."""

import time
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.config.toml_lines import LineIndex, Path

TEXT = '''\
# a comment with key = 1
plain = 1
"quoted key" = 2
'literal' = 3
a.b.c = 4
text = "with # and = and [x]"
multi = """
fake = 1
\\"""still
[fake]
""""
literal_multi = \'\'\'
fake = 2\'\'\'
list = [
  1, # fake = 3
  "]",
  { fake = 4 },
]
after = 5

[section]
  indented = 6
[section.inner] # comment
key = 7
[["array of"]]
key = 8
[["array of"]]
key = 9
["array of".sub]
key = 10
[[ spaced . out ]]
key = 11
nested = [
[1, 2],
["x"]]
last = { a = [
1] }
'''

EXPECTED: list[tuple[Path, int | None]] = [
    (("plain",), 2),
    (("quoted key",), 3),
    (("literal",), 4),
    (("a", "b", "c"), 5),
    (("a", "b"), 5),
    (("text",), 6),
    (("multi",), 7),
    (("literal_multi",), 12),
    (("list",), 14),
    (("list", 2, "fake"), 14),
    (("after",), 19),
    (("section",), 21),
    (("section", "indented"), 22),
    (("section", "inner", "key"), 24),
    (("array of", 0), 25),
    (("array of", 0, "key"), 26),
    (("array of", 1, "key"), 28),
    (("array of", 1, "sub", "key"), 30),
    (("spaced", "out", 0, "key"), 32),
    (("spaced", "out", 0, "nested"), 33),
    (("spaced", "out", 0, "last"), 36),
    (("section", "missing"), 21),
    (("fake",), None),
    ((), None),
]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize(("path", "line"), EXPECTED, ids=lambda value: str(value))
def test_each_key_is_found_on_its_line(path: Path, line: int | None, line_end: str) -> None:
    text = TEXT.replace("\n", line_end)
    tomllib.loads(text)  # the scanner may rely on text that TOML accepts

    assert LineIndex(text).find(path) == line


@given(st.text(alphabet="a=[]{}\"'\\\n#., 1", max_size=60))
def test_any_text_that_is_toml_is_scanned_to_its_end(text: str) -> None:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    index = LineIndex(text)

    for key in values:
        assert index.find((key,)) is not None


def test_a_file_of_many_sections_is_scanned_once() -> None:
    text = "".join([f'[[queues]]\nname = "/queue/{number}"\n' for number in range(16_000)])
    began = time.process_time()

    assert LineIndex(text).find(("queues", 15_999, "name")) == 32_000

    assert time.process_time() - began < 3  # when each line was counted from the beginning, 11 s
