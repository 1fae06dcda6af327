"""A node file's `[storage]` reaches the store as it was written."""

from pathlib import Path

import pytest

from qmq.config import load_node
from qmq.node.main import store_settings


@pytest.mark.parametrize(
    ("written", "sync", "interval_ms"), [("always", "always", None), ("never", "never", None), ("50ms", "interval", 50)]
)
def test_the_sync_of_the_node_file_is_the_sync_of_the_store(
    tmp_path: Path, written: str, sync: str, interval_ms: int | None
) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f'[storage]\nsync = "{written}"\n')

    settings = load_node(file)

    assert store_settings(settings).sync == sync
    assert settings.storage.sync_interval_ms == interval_ms


def test_a_node_without_a_file_syncs_before_each_receipt() -> None:
    assert store_settings(load_node(None)).sync == "always"


def test_the_store_of_a_real_node_measures_its_syncs() -> None:
    clock = store_settings(load_node(None)).clock

    assert 0.0 < clock() <= clock()
