"""The Dockerfile fits what `qmq init` writes for containers."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qmq.cli.deploy.init import CONTAINER_USER
from qmq.deploy.node_files import PORTS

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "cluster" / "deploy" / "Dockerfile"


def test_the_image_has_the_user_and_the_ports_of_the_files() -> None:
    text = DOCKERFILE.read_text("utf-8")

    assert f"USER {CONTAINER_USER}:{CONTAINER_USER}\n" in text
    (ports,) = re.findall(r"^EXPOSE (.*)$", text, re.MULTILINE)
    assert {int(port) for port in ports.split()} == set(PORTS.values())


def test_what_the_build_needs_is_sent_to_it_and_exists() -> None:
    lines = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text("utf-8").splitlines()

    sent = [line.removeprefix("!") for line in lines if line.startswith("!")]

    assert [name for name in sent if not (ROOT / name).exists()] == []
    hatch = (ROOT / "pyproject.toml").read_text("utf-8")
    assert {"README.md", "LICENSE", "qmq", "pyspark_qmq"} <= set(sent)
    assert 'packages = ["qmq", "pyspark_qmq"]' in hatch


def test_a_linter_of_images_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed (make deploy-test)")
    ignored = ["--ignore", "DL3008", "--ignore", "DL3013"]  # Versions are those of the base image, and of the wheel.

    done = subprocess.run([hadolint, *ignored, str(DOCKERFILE)], capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("", 0)
