"""The versions in .ci/pins: each dependency of pyproject.toml has one, within its bounds and with hashes."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LEVELS = {name: (extras, below) for name, extras, below in runpy.run_path(str(ROOT / ".ci" / "pin"))["LEVELS"]}


def pins(level: str) -> dict[str, list[Requirement]]:
    """The pins of a file, by name; a marker splits some."""
    found: dict[str, list[Requirement]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / ".ci" / "pins" / f"{level}.txt").read_text("utf-8").strip()):
        requirement = Requirement(entry.partition(" \\")[0])
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), f"{requirement} has no hash"
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_each_dependency_has_a_pin_within_its_bounds(level: str) -> None:
    extras, below = LEVELS[level]
    pinned = {name: entry for one in (*below, level) for name, entry in pins(one).items()}
    wanted = [*PROJECT["dependencies"]] if level == "node" else []
    wanted += [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    for text in wanted:
        bounds = Requirement(text)
        entries = pinned.get(canonicalize_name(bounds.name), [])
        assert entries, f"{text} has no pin: make pins"
        for pin in entries:
            (version,) = pin.specifier
            assert version.operator == "==" and version.version in bounds.specifier, f"{pin} is not {text}: make pins"


def test_every_extra_belongs_to_a_level() -> None:
    assert {extra for extras, _ in LEVELS.values() for extra in extras} == PROJECT["optional-dependencies"].keys()


def test_every_extra_is_described() -> None:
    page = (ROOT / "docs" / "installation.md").read_text("utf-8")

    assert [extra for extra in PROJECT["optional-dependencies"] if f"`{extra}`" not in page] == []


# Tests that are run again where more is installed, and the level of that; all others have what is in `tests`.
APART = {
    "browser/": "browser",
    "console/": "browser",
    "deploy/": "manifests",
    "spark/": "spark",
    "client/test_pyright.py": "pyright",
}
# What is imported → what is installed, where the names differ.
PACKAGES = {"grpc": "grpcio", "opentelemetry": "opentelemetry-sdk", "yaml": "pyyaml"}
ASKED = re.compile(r"""(?:importorskip|find_spec)\(\s*"(?!qmq)([a-z_]+)""")
PROGRAM = re.compile(r"""(?:which|not has)\("([a-z-]+)\"""")
# Programs that come with a package of Python, with npm, and under another name.
BROUGHT = {"hadolint", "node", "chromium-browser"}


def in_tests(pattern: re.Pattern[str]) -> set[tuple[str, str]]:
    """Test file, and what it asks for."""
    files = [(path, path.relative_to(ROOT / "tests").as_posix()) for path in (ROOT / "tests").rglob("*.py")]
    return {(name, found) for path, name in files for found in pattern.findall(path.read_text("utf-8"))}


def test_no_test_is_skipped_everywhere_for_a_package() -> None:
    for name, module in in_tests(ASKED):
        level = next((level for place, level in APART.items() if name.startswith(place)), "tests")
        installed = set().union(*(pins(one) for one in (*LEVELS[level][1], level)))

        assert PACKAGES.get(module, canonicalize_name(module)) in installed, f"tests/{name} waits for {module}"


def test_no_test_is_skipped_everywhere_for_a_program() -> None:
    needed = set(re.findall(r"need ([a-z-]+) ", (ROOT / ".ci" / "run").read_text("utf-8"))) | BROUGHT

    asked = in_tests(PROGRAM)
    assert len(asked) > 10
    assert [(name, program) for name, program in asked if program not in needed] == []
