"""What is in the blocks of a page, and a shell in which it runs as on the machine of a reader."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from .cluster_mesh import ROOT, Cluster


def blocks(page: str, kind: str) -> list[str]:
    text = (ROOT / page).read_text("utf-8")
    return re.findall(rf"^```{re.escape(kind)}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def addresses(mesh: Cluster) -> dict[str, str]:
    """Where the pages say the nodes are → where they are."""
    found = {}
    for number, name in enumerate("abc"):
        web, beanstalk = mesh.web_address(name), mesh.beanstalk_address(name)
        found |= {
            f"127.0.0.1:{61613 + number}": mesh.at(name),
            f"127.0.0.1:{61680 + number}": f"{web[0]}:{web[1]}",
            f"127.0.0.1:{61672 + number}": f"127.0.0.1:{mesh.amqp_port(name)}",
            f'"127.0.0.1", {61300 + number}': f'"{beanstalk[0]}", {beanstalk[1]}',
        }
    return found


def moved(text: str, places: Mapping[str, str]) -> str:
    """The text with these addresses, all at once, because one may be another's new one."""
    return re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], text)


def paste(script: str, folder: Path, seconds: float = 240.0, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a script in a folder, where `qmq` and `python` are those of this tree; both outputs are one."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    for name, words in (("qmq", "-m qmq"), ("python", ""), ("python3", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (commands / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        **variables,
    }
    # A file, and no pipe: what the script leaves running would keep that open.
    with (folder / "printed").open("w+") as printed:
        done = subprocess.run(
            ["bash", "-c", f"set -e -o pipefail\n{script}"],
            cwd=folder,
            env=environment,
            timeout=seconds,
            stdout=printed,
            stderr=subprocess.STDOUT,
            check=False,
        )
        printed.seek(0)
        return subprocess.CompletedProcess(done.args, done.returncode, printed.read())


def commands_of(block: str) -> str:
    """Of a block that shows commands and what they print."""
    return "\n".join(line[2:] for line in block.splitlines() if line.startswith("$ "))


def output_of(block: str) -> list[str]:
    return [line for line in block.splitlines() if not line.startswith("$ ")]
