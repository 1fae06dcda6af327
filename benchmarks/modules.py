"""What the memory of an idle node is made of, by the packages that it loads.

    python -m benchmarks.modules

A module counts what the process grew while it was loaded, without the modules that it loaded in turn. A module that
several others need counts for the first of them. This module imports next to nothing, for the same reason.
"""

import sys
from importlib import _bootstrap
from typing import Any

MIB = 1 << 20
PAGE_BYTES = 4096
SHOWN_MIB = 0.5

bootstrap: Any = _bootstrap  # its own part, which no type description has


def resident_mib() -> float:
    """Of this process, now."""
    with open("/proc/self/statm") as file:  # noqa: PTH123  # pathlib is one of those to be measured
        return int(file.read().split()[1]) * PAGE_BYTES / MIB


class Loading:
    """Python's own way to load a module, with a look at the memory before and after."""

    def __init__(self) -> None:
        self.grown: dict[str, float] = {}
        self._load: Any = bootstrap._load_unlocked
        self._inner = [0.0]

    def __call__(self, spec: Any) -> Any:
        """Load one module and what it imports."""
        before = resident_mib()
        self._inner.append(0.0)
        try:
            return self._load(spec)
        finally:
            total = resident_mib() - before
            package = spec.name.partition(".")[0]
            self.grown[package] = self.grown.get(package, 0.0) + total - self._inner.pop()
            self._inner[-1] += total


def main() -> None:
    """Load what `qmq serve` loads and print the table."""
    start = resident_mib()
    bootstrap._load_unlocked = loading = Loading()
    import qmq.cli  # noqa: PLC0415
    import qmq.node.main  # noqa: F401, PLC0415

    rows = sorted(loading.grown.items(), key=lambda row: -row[1])
    shown = [row for row in rows if row[1] >= SHOWN_MIB]
    others = sum([size for _, size in rows[len(shown) :]])
    shown = [("Python itself", start), *shown, (f"{len(rows) - len(shown)} others", others), ("all", resident_mib())]
    print("| package | MiB |\n|---|---:|")
    for name, size in shown:
        print(f"| {name} | {size:.1f} |")
    print(f"\n{len(sys.modules)} modules")


if __name__ == "__main__":
    main()
