"""The first tutorial prints what it shows, on one node of three."""

from pathlib import Path

from tests.support.cluster_mesh import Cluster
from tests.support.pages import addresses, blocks, commands_of, moved, output_of, paste

PAGE = "docs/first-message.md"


def test_the_commands_and_programs_of_the_first_tutorial_print_what_it_shows(mesh: Cluster, tmp_path: Path) -> None:
    shown = "".join(blocks(PAGE, "console"))
    programs = ("produce.py", "work.py", "crash.py")
    for name, code in zip(programs, blocks(PAGE, "python"), strict=True):
        (tmp_path / name).write_text(moved(code, addresses(mesh)))

    done = paste(commands_of(shown), tmp_path, QMQ_AT=mesh.at("a"))

    assert done.stdout.splitlines() == output_of(shown)
    assert done.returncode == 0
