"""The commands of "three machines in fifteen minutes" work as they are written, on addresses of this machine.

What needs Prometheus and other machines is in `test_operators_hour`, which begins in the same way.
"""

from pathlib import Path

import pytest

from tests.support.page_hosts import PageHosts, section

SECTIONS = (
    "Write the files",
    "Start",
    "Users",
    "A first message",
    "Upgrade",
    "Grow",
    "Replace a dead machine",
    "Renew certificates",
)


@pytest.mark.timeout(900)
def test_the_commands_of_the_page_make_a_mesh_upgrade_it_grow_it_and_replace_a_machine(tmp_path: Path) -> None:
    with PageHosts(tmp_path) as machines:
        printed = machines.run([section("first-mesh.md", name) for name in SECTIONS], seconds=840)
        targets = (machines.operator / "mesh" / "prometheus.yml").read_text("utf-8")

    assert "/queue/hello  hello, mesh" in printed
    last = printed.rpartition("NODE ")[2]
    assert [line.split()[0] for line in last.splitlines()[1:6]] == list("abcde"), printed
    assert "none ends within 30 days" in printed
    assert [f'"127.0.0.{number}:{machines.port + 67}"' in targets for number in range(2, 7)] == [True] * 5
