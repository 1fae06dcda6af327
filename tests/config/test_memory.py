"""`data = "memory"`: a node without a directory, what its files may not ask for, and what fits into its memory."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from qmq.config import load, load_node
from qmq.config.node import MEMORY, StorageSettings
from qmq.config.show import effective
from qmq.errors import ConfigError

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(text: str) -> Path:
        path = tmp_path / "node.toml"
        path.write_text(text, "utf-8")
        return path

    return put


def errors(path: Path, peers: Path | None = None, node: str | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, peers, node)
    return [one.replace(f"{path}: ", "").replace(f"{peers}: ", "") for one in caught.value.diagnostics]


def test_the_word_memory_is_no_directory(write: Write) -> None:
    assert load_node(write('data = "memory"')).directory is None
    assert load_node(None, {"data": MEMORY}).directory is None


@pytest.mark.parametrize("text", ["./memory", "memory/", "memory/data", "qmq-data"])
def test_other_paths_are(write: Write, tmp_path: Path, text: str) -> None:
    assert load_node(write(f'data = "{text}"')).directory == tmp_path / text


def test_a_file_beside_the_current_directory_may_name_one_of_this_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("node.toml").write_text('data = "./memory"', "utf-8")

    assert load_node(Path("node.toml")).directory == Path("memory")


def test_a_directory_that_could_be_meant_is_an_error(write: Write, tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()

    (error,) = errors(write('data = "memory"'))

    assert error == 'data: "memory" means no directory, but there is one: write "./memory" to use it, else remove it'


def test_what_is_shown_can_be_read_again() -> None:
    without, named = load_node(None, {"data": MEMORY}), load_node(None, {"data": Path("memory")})

    assert tomllib.loads(effective(without))["data"] == "memory"
    assert tomllib.loads(effective(named))["data"] == "./memory"


def test_levels_that_need_a_disk_are_errors(write: Write) -> None:
    found = errors(
        write(
            'data = "memory"\n[mesh]\nreceipt = "fsync"\n[definitions.policy."/queue/a"]\nreceipt = "replicas=1"\n'
            '[definitions.policy."/queue/b"]\nack_level = "quorum"\n[definitions.policy."/queue/c"]\n'
            'receipt = "accepted"\nack_level = "edge"\n'
        )
    )

    why = 'asks for a disk, and data is "memory"; leave it out'
    assert found == [
        f'mesh.receipt = "fsync" {why}',
        f'definitions: policy /queue/a: receipt = "replicas=1" {why}',
        f'definitions: policy /queue/b: ack_level = "quorum" {why}',
    ]


def test_a_queue_store_elsewhere_is_an_error(write: Write) -> None:
    (error,) = errors(write('data = "memory"\n[storage]\nqueue_store = "postgresql:///q"\n'))

    assert 'must be without queue_store, because data is "memory"' in error


PEERS = 'mesh = "m"\nversion = 1\nsecret = "a long enough secret"\n'


def peers(tmp_path: Path, **memory: bool) -> Path:
    """A peers file with these nodes, and whether they have memory = true."""
    path = tmp_path / "peers.toml"
    path.touch(0o600)
    nodes = [
        f'[[nodes]]\nname = "{name}"\nclient = "127.0.0.1:{2 * at + 1}"\nmesh = "127.0.0.1:{2 * at + 2}"\n'
        + "memory = true\n" * is_so
        for at, (name, is_so) in enumerate(memory.items())
    ]
    path.write_text(PEERS + "".join(nodes), "utf-8")
    return path


def test_both_files_say_that_a_node_has_no_disk(write: Write, tmp_path: Path) -> None:
    settings, _ = load(write('data = "memory"'), peers(tmp_path, a=False, x=True), "x")
    assert settings.directory is None

    (error,) = errors(write('data = "memory"'), peers(tmp_path, a=False, x=False), "x")
    assert error == (
        "nodes: 'x' must have memory = true, in the peers file of all nodes, because its data is \"memory\""
    )
    (error,) = errors(write('data = "d"'), peers(tmp_path, a=False, x=True), "x")
    assert error == "nodes: 'x' has memory = true: set data = \"memory\" in its node file"


def test_a_mesh_has_a_node_with_a_disk(write: Write, tmp_path: Path) -> None:
    (error,) = errors(write('data = "memory"'), peers(tmp_path, x=True, y=True), "x")

    assert "must have a node without memory = true" in error


def test_copies_are_on_disks(write: Write, tmp_path: Path) -> None:
    file = peers(tmp_path, a=False, b=False, x=True)

    (error,) = errors(write('[mesh]\nreceipt = "replicas=2"\n'), file, "a")

    assert 'the most is "replicas=1"' in error


@pytest.mark.parametrize("size", [64 << 20, 256 << 20, 1 << 40])
def test_bounds_of_the_stores_fit_into_the_memory(size: int) -> None:
    defaults = StorageSettings()
    storage = StorageSettings(memory_bytes_max=size).within_memory()

    assert storage.disk_reserve_bytes <= size // 4
    assert storage.journal_bytes_max <= size // 2
    assert storage.checkpoint_bytes <= size // 32
    assert storage.disk_reserve_bytes <= defaults.disk_reserve_bytes
    # Journal that is kept, and what a checkpoint has read, leave half of it for messages.
    assert storage.journal_keep_bytes + storage.checkpoint_bytes + 2 * storage.segment_bytes_max <= size // 4


def test_a_reserve_of_none_stays_none() -> None:
    assert StorageSettings(disk_reserve_bytes=0).within_memory().disk_reserve_bytes == 0
