"""A disk of its own is filled by others to the last byte: its node refuses messages, takes settles, and goes on."""

from collections.abc import Iterator

import pytest

from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_disks import SmallDisks, why_no_disks
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

BACKLOG = numbered("a backlog's message of some length " * 10, 300)
STORAGE = '[storage]\ncheckpoint_bytes = "64KiB"\ndisk_reserve_bytes = "8MiB"\n'


@pytest.fixture(scope="module")
def disks_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, SmallDisks]]:
    """Three nodes, and a's data on a disk of its own."""
    without = why_no_disks()
    if without:
        pytest.skip(without)
    with Cluster(tmp_path_factory.mktemp("full"), node_files={"a": STORAGE}) as mesh:
        with SmallDisks(mesh, ["a"]) as disks:
            try:
                yield mesh, disks
            finally:
                mesh.fleet.stop_all()  # before its disk goes


@pytest.fixture(scope="module")
def cluster(disks_of: tuple[Cluster, SmallDisks]) -> Cluster:
    return disks_of[0]


@pytest.fixture
def disks(disks_of: tuple[Cluster, SmallDisks]) -> SmallDisks:
    return disks_of[1]


@pytest.mark.parametrize("left_bytes", [0, 200_000])
def test_a_node_whose_disk_others_have_filled_drains_its_queues_and_takes_messages_again(
    mesh: Cluster, disks: SmallDisks, left_bytes: int
) -> None:
    sender = mesh.client("a", headers={"on-error": "keep-open"})
    sender.publish("/queue/full", *BACKLOG)
    process = mesh.fleet.nodes["a"].process

    disks.fill("a", left_bytes)
    eventually(lambda: refusals(sender), "no SEND is refused on a full disk")
    got = mesh.client("a").consume("/queue/full", prefetch=20)
    wanted = len(BACKLOG)
    eventually(lambda: set(BACKLOG) <= set(bodies(got)), lambda: f"a's consumer has {len(got)} of {wanted}")
    assert "disk-full" in mesh.conditions("a")

    disks.empty("a")
    eventually(lambda: "disk-full" not in mesh.conditions("a"), "the condition stays although there is room")
    mesh.client("a").publish("/queue/full", b"taken again")
    eventually(lambda: bodies(got)[-1:] == [b"taken again"], "what is sent after that does not come")
    assert mesh.fleet.nodes["a"].process is process and mesh.fleet.nodes["a"].is_alive


def refusals(client: object) -> bool:
    """Sends one more, to a queue that nobody reads; whether it is refused for want of room."""
    client.send("/queue/refused", b"more")  # type: ignore[attr-defined]
    return any(error.headers.get("error-code") == "disk-full" for error in client.errors)  # type: ignore[attr-defined]
