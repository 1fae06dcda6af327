"""What a node has reported to its operator."""

from typing import Any, Protocol

from qmq.server.admin.conditions import Conditions


class Reporter(Protocol):
    conditions: Conditions


def present(node: Reporter) -> list[dict[str, Any]]:
    """Its conditions now."""
    return node.conditions.present()


def reported(node: Reporter) -> list[dict[str, Any]]:
    """Its conditions now, then its events and the conditions that are over."""
    return [*present(node), *node.conditions.past()]
