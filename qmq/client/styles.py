"""Which module is for which style of program, and the error of a program that uses the module of another style."""

import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import NoReturn

from qmq.client.blocks import not_entered
from qmq.client.client import Client

MODULES = {"trio": "qmq.client", "asyncio": "qmq.client.aio", "": "qmq.client.blocking"}
"""By the event loop, "" for programs without one."""


def loop_of_caller() -> str:
    """`trio`, `asyncio`, or "". A library that was never imported runs nothing, and is not imported here."""
    trio, asyncio = sys.modules.get("trio"), sys.modules.get("asyncio")
    if trio is not None and trio.lowlevel.in_trio_task():
        return "trio"
    return "asyncio" if asyncio is not None and asyncio._get_running_loop() is not None else ""


def wrong_style(used: str) -> RuntimeError:
    """For the module of `used`, a key of MODULES."""
    loop = loop_of_caller()
    if loop == used:
        return RuntimeError(f"{MODULES[used]} is used with `async with`; without an event loop, import {MODULES['']}")
    needed, found = (f"on {one}" if one else "without an event loop" for one in (used, loop))
    return RuntimeError(f"{MODULES[used]} is for code {needed}, and this code runs {found}: import {MODULES[loop]}")


def outside_of_block(client: type, name: str, block: str) -> Exception:
    """For an attribute of what `connect` returns: it has none, but the client inside of it may."""
    return not_entered("connect()", block) if hasattr(client, name) else AttributeError(name)


class Connecting(AbstractAsyncContextManager[Client]):
    """What `connect` returns: a client inside `async with`, connected as long as the block runs."""

    def __init__(self, loop: str, open: Callable[[], AbstractAsyncContextManager[Client]]) -> None:
        self._loop = loop
        self._open = open

    def __getattr__(self, name: str) -> NoReturn:
        raise outside_of_block(Client, name, "async with")

    async def __aenter__(self) -> Client:
        if loop_of_caller() != self._loop:
            raise wrong_style(self._loop)
        self._opened = self._open()
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)

    def __enter__(self) -> NoReturn:
        raise wrong_style(self._loop)

    def __exit__(self, *_: object) -> None: ...
