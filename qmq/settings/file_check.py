"""What is wrong with definitions of a node file, as far as the file alone shows it: `qmq config check`, and a node that
starts without a majority.

The kinds that `qmq.config` reads are checked when the file is loaded; here are the others, with the checks that their
kinds use for every change. Whether definitions fit together depends on those of the mesh, and is not checked: a binding
may name an exchange that an operator has defined.
"""

from collections.abc import Callable, Mapping
from functools import partial

from qmq.config import NodeSettings
from qmq.config.definition_values import READERS
from qmq.errors import Refused
from qmq.settings.definitions.kinds import Value
from qmq.settings.definitions.paused_queues import KINDS, checked_pause
from qmq.settings.definitions.schemas import SCHEMA, checked_schema
from qmq.settings.routing.definitions import BINDING, EXCHANGE, VHOST, checked_binding, checked_exchange, checked_vhost


def errors_in(file: NodeSettings) -> list[str]:
    """A line for each definition that no mesh accepts."""
    checks: Mapping[str, Callable[[str, Value], object]] = {
        EXCHANGE: checked_exchange,
        BINDING: partial(checked_binding, bytes_max=file.limits.destination_bytes_max),
        VHOST: checked_vhost,
        SCHEMA: checked_schema,
        **{kind: partial(checked_pause, kind) for kind in KINDS},
    }
    found = []
    for kind, of_kind in file.definitions.items():
        if kind not in checks and kind not in READERS:
            known = ", ".join(sorted({*checks, *READERS}))
            found.append(f"{file.source}: definitions: unknown kind of definition {kind!r}: it is one of {known}")
        for name, value in of_kind.items() if kind in checks else ():
            try:
                checks[kind](name, value)
            except Refused as error:
                message = error.message.removeprefix(f"{kind}: ").removeprefix(f"{kind} {name}: ")
                found.append(f"{file.source}: definitions: {kind} {name}: {message}")
    return found
