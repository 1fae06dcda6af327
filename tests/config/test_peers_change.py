"""Which peers file may follow which while the mesh runs."""

import pytest

from qmq.config import Address, Peer, PeersFile
from qmq.config.peers import check_change


def file(names: str, version: int, *, mesh: str = "m", port: int = 2000, memory: str = "") -> PeersFile:
    return PeersFile(
        mesh=mesh,
        version=version,
        secret="a long enough secret",
        nodes=tuple(
            Peer(
                name=name,
                client=Address("127.0.0.1", 1000 + ord(name)),
                mesh=Address("127.0.0.1", port + ord(name)),
                memory=name in memory,
            )
            for name in names
        ),
    )


@pytest.mark.parametrize(
    ("old", "new", "retired"),
    [
        (file("abc", 1), file("abc", 1), ""),
        (file("abc", 1), file("cba", 1), ""),
        (file("abc", 1), file("abc", 2), ""),
        (file("abc", 1), file("abcd", 2), ""),
        (file("abc", 1), file("abc", 2, port=3000), ""),
        (file("abcd", 2), file("abc", 3), "d"),
        (file("abc", 1), file("abcde", 3), ""),
        (file("abc", 1), file("abd", 3), "c"),
        (file("abc", 1), file("abcx", 2, memory="x"), ""),
    ],
)
def test_a_file_that_goes_one_step_further_may_follow(old: PeersFile, new: PeersFile, retired: str) -> None:
    assert check_change(old, new, "a", retired) == []


@pytest.mark.parametrize(
    ("old", "new", "retired", "sentence"),
    [
        (file("abc", 1), file("abc", 2, mesh="n"), "", "is 'm' and cannot become"),
        (file("abc", 1), file("abcd", 1), "", "version = 1: must be more than 1"),
        (file("abc", 2), file("abc", 1), "", "version = 1: must be more than 2"),
        (file("abc", 1), file("abc", 1, port=3000), "", "version = 1: must be more than 1"),
        (file("abc", 1), file("ab", 2), "", "`qmq mesh retire c`"),
        (file("abc", 1), file("bc", 2), "", "'a' is this node"),
        (file("abc", 1), file("abcd", 2), "d", "'d' was retired for good"),
        (file("abc", 1), file("abcde", 2), "", "d, e: each version adds or removes one node"),
        (file("abc", 1), file("abd", 2), "c", "c, d: each version adds or removes one node"),
        (file("abc", 1), file("abc", 2, memory="c"), "", "'c': memory cannot change"),
        (file("abc", 1, memory="c"), file("abc", 2), "", "'c': memory cannot change"),
    ],
)
def test_a_file_that_would_cut_the_mesh_in_two_is_refused(
    old: PeersFile, new: PeersFile, retired: str, sentence: str
) -> None:
    (diagnostic,) = check_change(old, new, "a", retired)

    assert sentence in diagnostic
    assert diagnostic.startswith("peers file: ")


def test_all_errors_are_reported_at_once() -> None:
    assert len(check_change(file("abc", 2), file("ax", 1, mesh="n"), "a")) == 5
