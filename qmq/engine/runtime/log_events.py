"""Log lines about an event: they carry the fields of the event, for formats of the log that have fields."""

import logging
from collections.abc import Mapping
from typing import Any, Final

ATTRIBUTE: Final = "event_facts"
"""Of the log record."""


def about(event: str, **facts: Any) -> dict[str, Any]:
    """For `extra` of a log call: the line is about this event, with the fields that it has on `/system/events`."""
    return {ATTRIBUTE: {"event": event, **facts}}


def facts_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """The fields of the event that the line is about; none if it is about none."""
    facts: Mapping[str, Any] = getattr(record, ATTRIBUTE, {})
    return facts
