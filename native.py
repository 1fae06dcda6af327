"""Compile the hot modules of QMQ with mypyc, from the source that also runs as it is.

    python native.py DIRECTORY

DIRECTORY holds a copy of the package `qmq`; beside each compiled module there is then an extension module of the same
name, which Python prefers, and next to the package one library that all of them share. The build hook of the wheel and
`make compiled` both work like this, on a copy: a checkout never has extension modules, in which an edit would be lost.

Needs mypy with its extra `mypyc`, a C compiler and the headers of this Python; `obstacle()` says what is missing.
"""

import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

COMPILED: Sequence[str] = (
    "build.py",
    "model/dots.py",
    "model/levels.py",
    "record_codec.py",
    "wire/avro/*.py",
    "wire/stomp/*.py",
    "protocols/http/websocket/*.py",
    "broker/**/*.py",
    "gateways/*.py",
    "storage/format/batch.py",
    "storage/format/shared_bodies.py",
    "storage/queues/plan.py",
    "storage/format/record.py",
    "storage/checkpoints/compaction.py",
    "storage/format/row_checksum.py",
    "storage/format/segment.py",
    "replication/anti_entropy/feed.py",
    "replication/links/pulling_side.py",
    "replication/protocol/fields.py",
    "replication/protocol/frame_table.py",
    "replication/protocol/frames.py",
    "replication/links/outbox.py",
    "replication/protocol/values.py",
)
"""Patterns in `qmq`: what every message passes, and nothing that runs seldom. None of it may await."""

NOT_COMPILED: Sequence[str] = (
    "__init__.py",  # re-exports; packages stay importable before their modules are
    "encoder.py",  # encoders that are not compiled inherit from it
    "campaigns.py",
    "election_effects.py",
    "elections.py",
    "owner_states.py",
    "leases.py",  # these decide a few times per second, and the proof of leases breaks single rules in subclasses
)

TYPES_OF_CLIENTS: Sequence[str] = ("model", "wire")
"""Rooms with sources in a compiled wheel, which type checkers read. Of the others it has the library alone."""

OPTIMISE = "s"
"""gcc -Os: a third smaller than -O1 and as fast, because most of what runs is CPython's own functions (decision 20)."""

SMALL_TO_COMPILE = ["-fvisibility=hidden", "-fno-asynchronous-unwind-tables", "-ffunction-sections", "-fdata-sections"]
SMALL_TO_LINK = ["-Wl,-s", "-Wl,--gc-sections", "-Wl,--build-id=none", "-Wl,-z,noseparate-code"]
"""Python finds a module by one symbol, and C has no exceptions: neither names nor tables for unwinding are of use."""

SMALL_HEADER = """
#include "CPy.h"
#pragma GCC visibility push(hidden)
extern PyObject *QMQ_GLOBALS;
#define OF_THIS_FILE __attribute__((noinline, cold, unused)) static void
OF_THIS_FILE qmq_add(const char *function, int line) { CPy_AddTraceback(QMQ_FILE, function, line, QMQ_GLOBALS); }
OF_THIS_FILE qmq_type_error(const char *function, int line, const char *expected, PyObject *value) {
    CPy_TypeErrorTraceback(QMQ_FILE, function, line, QMQ_GLOBALS, expected, value);
}
#define CPy_AddTraceback(file, function, line, globals) qmq_add(function, line)
#define CPy_TypeErrorTraceback(file, function, line, globals, expected, value) \\
    qmq_type_error(function, line, expected, value)
__attribute__((noinline, unused)) static void qmq_decref(PyObject *object) { Py_DECREF(object); }
#undef CPy_DECREF
#define CPy_DECREF(object) qmq_decref((PyObject *)(object))
"""
"""Before each file of mypyc. What other files define needs no address in a table: it is in the same library. The calls
for a line of a traceback leave out the two values that are the same in the whole file. A reference is dropped by a
call: so gcc -Os does it by itself for Python 3.11, and not for later ones, whose Py_DECREF is longer."""

TRACEBACK = re.compile(r'CPy_AddTraceback\(("[^"]*"), "[^"]*", -?[0-9]+, (CPyStatic_\w+)\)')

SMALL_MODULES_TO_COMPILE = ["-fno-plt", "-fno-ident"]
SMALL_MODULES_TO_LINK = ["-nostdlib", "-Wl,-z,norelro"]
"""Each compiled module is a library of one function, which finds it in the shared one; nothing runs at its start."""

SMALL_MODULE = """
#include <Python.h>

PyMODINIT_FUNC PyInit_{name}(void)
{{
    PyObject *(*init)(void) = PyCapsule_Import("{library}.init_{exported_name}", 0);
    return init ? init() : NULL;
}}
"""
"""That function, in place of mypyc's, which does the same by six calls, because it also serves groups that import each
other. A module is then nearly twice as large, and a wheel has more than a hundred of them."""

GROUP = "qmq"
"""The shared library is GROUP__mypyc."""

PROCESSORS = len(os.sched_getaffinity(0))


def modules(package: Path) -> list[Path]:
    """What is compiled, as paths below `package`."""
    found = {path for pattern in COMPILED for path in package.glob(pattern) if path.name not in NOT_COMPILED}
    return sorted(path.relative_to(package) for path in found)


def obstacle() -> str | None:
    """Why this machine cannot compile, None if nothing is known to be missing."""
    if sys.implementation.name != "cpython":
        return f"mypyc compiles for CPython, and this is {sys.implementation.name}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the broker's threads count on the GIL, which this Python has not"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        return f"there is no C compiler ({compiler[0]})"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.exists():
        return f"the headers of this Python are not installed ({headers})"
    return None


def compile_in(directory: Path) -> None:
    """Compile the copy of the package in `directory`. Raises, or leaves the process, when it cannot be done."""
    # Late: the build hook asks for obstacles before these are installed.
    from mypyc.build import mypycify
    from setuptools import Distribution  # before distutils, which Python 3.12 does not bring
    from distutils.ccompiler import CCompiler  # isort: skip

    os.chdir(directory)
    paths = [str(Path("qmq", module)) for module in modules(Path("qmq"))]
    extensions = mypycify(
        # Types are checked by `make types`. Here libraries may be missing, and their types are then unknown: modules
        # that are imported and not compiled may have errors for that reason alone.
        ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", *paths],
        opt_level=OPTIMISE,
        debug_level="0",
        group_name=GROUP,
        multi_file=True,  # One file of C for each module: gcc needs half the time that one of 580,000 lines takes.
    )
    for extension in extensions:  # They share one list: each addition in place would be one for all.
        extension.extra_compile_args = [*extension.extra_compile_args, *SMALL_TO_COMPILE]
        extension.extra_link_args = [*extension.extra_link_args, *SMALL_TO_LINK]
        if extension.name != f"{GROUP}__mypyc":
            extension.extra_compile_args += SMALL_MODULES_TO_COMPILE
            extension.extra_link_args += SMALL_MODULES_TO_LINK
            (source,) = extension.sources
            Path(source).write_text(small_module(extension.name), "utf-8")
    Path("build", "small.h").write_text(SMALL_HEADER, "utf-8")
    os.environ["LDSHARED"] = linker()
    build = Distribution({"ext_modules": extensions, "packages": ["qmq"]}).get_command_obj("build_ext")
    build.inplace = True
    build.parallel = PROCESSORS
    build.ensure_finalized()
    with patch.object(CCompiler, "compile", compile_at_once):
        build.run()
    shutil.rmtree("build")


def small_module(name: str) -> str:
    """The source of the library that finds the module `name`."""
    from mypyc.namegen import exported_name

    last = name.rpartition(".")[2]
    return SMALL_MODULE.format(name=last, library=f"{GROUP}__mypyc", exported_name=exported_name(name))


def linker() -> str:
    """The command of this Python for extension modules. It names no folder of this machine: the wheel is for others."""
    command = shlex.split(os.environ.get("LDSHARED") or sysconfig.get_config_var("LDSHARED"))
    return shlex.join(word for word in command if not word.startswith("-Wl,-rpath"))


def compile_at_once(compiler: Any, sources: list[str], output_dir: str | None = None, **options: Any) -> list[str]:
    """In place of the method of setuptools, which compiles the files of an extension one after the other."""

    def compile_one(file: str) -> None:
        source, suffix = build[file]
        compiler._compile(file, source, suffix, arguments, [*extra, *for_traceback(source)], flags)

    _, objects, extra, flags, build = compiler._setup_compile(
        output_dir, options["macros"], options["include_dirs"], sources, options["depends"], options["extra_postargs"]
    )
    arguments = compiler._get_cc_args(flags, options["debug"], None)
    with ThreadPoolExecutor(PROCESSORS) as pool:
        done = [pool.submit(compile_one, one) for one in objects]
    for one in done:
        one.result()
    return list(objects)


def for_traceback(source: str) -> list[str]:
    """The options with which a file gets SMALL_HEADER; none for one that adds no line to a traceback."""
    found = TRACEBACK.search(Path(source).read_text("utf-8"))
    if found is None:
        return []
    return ["-include", "build/small.h", f"-DQMQ_FILE={found[1]}", f"-DQMQ_GLOBALS={found[2]}"]


if __name__ == "__main__":
    missing = obstacle()
    if missing is not None:
        sys.exit(f"cannot compile: {missing}")
    compile_in(Path(sys.argv[1]))
