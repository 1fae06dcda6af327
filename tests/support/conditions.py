"""What a node has reported to its operator."""

from dataclasses import asdict
from typing import Any, Protocol

from qmq.admin.facts.conditions import Conditions


class Reporter(Protocol):
    conditions: Conditions


def present(node: Reporter) -> list[dict[str, Any]]:
    """Its conditions now."""
    return [asdict(one) for one in node.conditions.present()]


def reported(node: Reporter) -> list[dict[str, Any]]:
    """Its conditions now, then its events and the conditions that are over."""
    return [*present(node), *(asdict(one) for one in node.conditions.past())]
