"""A STOMP client for a mesh: sends until receipted, follows fanouts exactly once, outlives its nodes (docs/client.md).

`connect` is where it begins. There are three styles, with the same names: this module is for trio, `qmq.client.aio` for
asyncio, and `qmq.client.blocking` for threads and scripts. What decides (`qmq.client.core`) is pure, and the same for
all. trio is imported only when a name of this module is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qmq.client.client import Client as Client
    from qmq.client.client import Statistics as Statistics
    from qmq.client.message import Message as Message
    from qmq.client.message import Receipt as Receipt
    from qmq.client.on_trio import connect as connect
    from qmq.client.subscription import Subscription as Subscription
    from qmq.client.transaction import Transaction as Transaction
else:
    HOMES = {
        "Client": "client",
        "Message": "message",
        "Receipt": "message",
        "Statistics": "client",
        "Subscription": "subscription",
        "Transaction": "transaction",
        "connect": "on_trio",
    }

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name not in HOMES:
            raise AttributeError(f"module {__name__} has no attribute {name}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *HOMES})
