"""Paths and queries, decoded."""

import pytest

from tests.protocols.http.codec.support import only, request


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/", ()),
        ("/?a", ()),
        ("/a", ("a",)),
        ("/a/", ("a", "")),
        ("//a", ("", "a")),
        ("/a%2Fb/c", ("a/b", "c")),
        ("/a%252Fb", ("a%2Fb",)),
        ("/gr%C3%BCn", ("grün",)),
        ("/a+b", ("a+b",)),
        ("/a..b/...", ("a..b", "...")),
        ("http://a/x", ("x",)),
        ("HTTPS://A/x?y", ("x",)),
        ("http://a", ()),
        ("http://a?x", ()),
    ],
)
def test_path_is_split_before_it_is_decoded(target: str, path: tuple[str, ...]) -> None:
    assert only(request(f"GET {target} HTTP/1.1")).path == path


def test_asterisk_is_for_options() -> None:
    assert only(request("OPTIONS * HTTP/1.1")).path == ()


@pytest.mark.parametrize(
    ("query", "pairs"),
    [
        ("", ()),
        ("a", (("a", ""),)),
        ("a=", (("a", ""),)),
        ("a=b=c", (("a", "b=c"),)),
        ("a=1&&a=2", (("a", "1"), ("a", "2"))),
        ("a%26b=%3D", (("a&b", "="),)),
        ("a=%2B+%20", (("a", "+  "),)),
        ("a=?/", (("a", "?/"),)),
    ],
)
def test_query_is_split_before_it_is_decoded(query: str, pairs: tuple[tuple[str, str], ...]) -> None:
    got = only(request(f"GET /?{query} HTTP/1.1"))

    assert got.query_pairs == pairs
    assert got.query.get("a", "") == dict(reversed(pairs)).get("a", "")
