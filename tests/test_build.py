"""The two builds: what is compiled, and what the wheel is where that is wanted, impossible, or fails."""

import fnmatch
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilderConfig
from mypyc.build import generate_c_extension_shim

import hatch_build
import native
from qmq.build import BUILD
from qmq.wire.stomp import reader

ROOT = Path(__file__).parents[1]
NATIVE = """
import sys
from pathlib import Path


if __name__ == "__main__":
    if {failure!r}:
        sys.exit({failure!r})
    for name in ("broker/hot", "wire/hot"):
        Path(sys.argv[1], "qmq", name + ".cpython-311.so").touch()
    Path(sys.argv[1], "qmq__mypyc.cpython-311.so").touch()
"""


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hatch_build.CompileHook:
    """The hook of a project that has a package and, by `compiler`, a native.py of its own."""
    for room in ("broker", "wire"):
        (tmp_path / "qmq" / room).mkdir(parents=True)
        (tmp_path / "qmq" / room / "hot.py").touch()
    monkeypatch.setenv("QMQ_BUILD", "compiled")
    monkeypatch.setattr(native, "obstacle", lambda: None)
    compiler(tmp_path)
    target = WheelBuilderConfig(None, str(tmp_path), "wheel", {}, {"packages": ["qmq"], "exclude": ["qmq/npm"]})  # type: ignore[arg-type]
    return hatch_build.CompileHook(str(tmp_path), {}, target, None, str(tmp_path), "wheel")  # type: ignore[arg-type]


def compiler(root: Path, *, failure: str = "") -> None:
    """How compiling ends in the project at `root`."""
    (root / "native.py").write_text(NATIVE.format(failure=failure), "utf-8")


def built(hook: hatch_build.CompileHook, version: str = "standard") -> dict[str, Any]:
    data: dict[str, Any] = {"force_include": {}, "pure_python": True, "infer_tag": False}
    hook.initialize(version, data)
    hook.finalize(version, data, "")
    return data


def excluded(hook: hatch_build.CompileHook, path: str) -> bool:
    return bool(hook.build_config.path_is_excluded(path))


def test_every_pattern_of_the_list_names_a_module() -> None:
    names = [path.as_posix() for path in native.modules(ROOT / "qmq")]

    assert [pattern for pattern in native.COMPILED if not fnmatch.filter(names, pattern)] == []
    assert not any(name.endswith("__init__.py") for name in names)


def test_what_is_compiled_awaits_nothing() -> None:
    for path in native.modules(ROOT / "qmq"):
        assert "async def" not in (ROOT / "qmq" / path).read_text("utf-8"), path


def test_the_build_says_what_runs() -> None:
    assert BUILD == ("pure" if str(reader.__file__).endswith(".py") else "compiled")


def test_a_wheel_gets_the_compiled_modules_and_the_tag_of_its_platform(hook: hatch_build.CompileHook) -> None:
    data = built(hook)

    modules = ["qmq/broker/hot.cpython-311.so", "qmq/wire/hot.cpython-311.so"]
    assert sorted(data["force_include"].values()) == [*modules, "qmq__mypyc.cpython-311.so"]
    assert (data["pure_python"], data["infer_tag"]) == (False, True)
    assert hook.dependencies() == [hatch_build.COMPILER]


def test_a_compiled_wheel_has_no_source_of_what_is_compiled_unless_clients_show_it(
    hook: hatch_build.CompileHook,
) -> None:
    built(hook)

    left_out = [path for path in ("qmq/broker/hot.py", "qmq/wire/hot.py", "qmq/npm") if excluded(hook, path)]
    assert left_out == ["qmq/broker/hot.py", "qmq/npm"]


def test_a_pure_wheel_has_every_source(hook: hatch_build.CompileHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QMQ_BUILD", "pure")

    built(hook)

    assert not excluded(hook, "qmq/broker/hot.py")


def test_what_was_compiled_is_removed_when_the_wheel_is_written(hook: hatch_build.CompileHook) -> None:
    data = built(hook)

    assert not any(Path(path).exists() for path in data["force_include"])


def test_a_wheel_is_pure_unless_it_is_asked_to_be_compiled(
    hook: hatch_build.CompileHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    for choice in ("", "pure"):
        monkeypatch.setenv("QMQ_BUILD", choice)

        data = built(hook)

        assert (data["force_include"], data["pure_python"], data["infer_tag"]) == ({}, True, False)
        assert hook.dependencies() == []


def test_a_compiled_wheel_that_cannot_be_made_says_what_is_missing(
    hook: hatch_build.CompileHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "obstacle", lambda: "there is no C compiler (cc)")

    assert hook.dependencies() == []
    with pytest.raises(RuntimeError, match=r"QMQ_BUILD=compiled, but there is no C compiler \(cc\)"):
        built(hook)


def test_a_compiled_wheel_that_fails_to_compile_says_why_and_leaves_no_copy(
    hook: hatch_build.CompileHook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler(Path(hook.root), failure="cc: out of memory")
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))

    with pytest.raises(RuntimeError, match=r"QMQ_BUILD=compiled, but compiling failed:\s+cc: out of memory"):
        built(hook)

    assert list(copies.iterdir()) == []


def test_an_editable_install_runs_the_files_that_are_edited(hook: hatch_build.CompileHook) -> None:
    assert built(hook, "editable")["force_include"] == {}


def test_another_word_for_the_build_is_a_mistake(
    hook: hatch_build.CompileHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QMQ_BUILD", "fast")

    with pytest.raises(ValueError, match="QMQ_BUILD=fast: must be pure, which is the default, or compiled"):
        built(hook)


@pytest.mark.parametrize(("compiler", "said"), [("no-such-compiler -O2", "no C compiler"), ("sh -c", "Python.h")])
def test_what_is_missing_is_named(compiler: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(native.sysconfig, "get_path", lambda name: str(tmp_path))

    assert said in (native.obstacle() or "")


def test_a_file_of_mypyc_is_compiled_with_its_name_and_its_globals(tmp_path: Path) -> None:
    source = tmp_path / "module.c"
    source.write_text('    CPy_AddTraceback("qmq/hot.py", "<module>", -1, CPyStatic_hot___globals);\n', "utf-8")

    options = native.for_traceback(str(source))

    assert options[-2:] == ['-DQMQ_FILE="qmq/hot.py"', "-DQMQ_GLOBALS=CPyStatic_hot___globals"]


def test_a_file_without_a_traceback_is_compiled_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "runtime.c").write_text("void CPy_AddTraceback(const char *filename);\n", "utf-8")

    assert native.for_traceback(str(tmp_path / "runtime.c")) == []


def test_the_library_of_a_module_finds_what_that_of_mypyc_would_find(tmp_path: Path) -> None:
    path = Path(generate_c_extension_shim("qmq.broker.___hot", "___hot", str(tmp_path), native.GROUP))
    capsule = re.search(r'PyCapsule_GetPointer\(capsule, ("[^"]+")\)', path.read_text("utf-8"))
    assert capsule is not None

    text = native.small_module("qmq.broker.___hot")

    assert "PyInit____hot(void)" in path.read_text("utf-8") and "PyInit____hot(void)" in text
    assert f"PyCapsule_Import({capsule[1]}, 0)" in text


def test_a_wheel_names_no_folder_of_the_machine_that_builds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LDSHARED", "gcc -shared -Wl,-rpath,/home/ann/lib -Wl,-O1")

    assert native.linker() == "gcc -shared -Wl,-O1"
