"""The setting `QMQ` of a Django project: what it may have, and what is wrong with it."""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from django import conf
from django.core.checks import CheckMessage, Error
from django.utils.module_loading import import_string

from qmq.client.options import ConnectOptions, plan
from qmq.errors import ConfigError

CONSUMERS: Final = "consumers"
OWN: Final = frozenset({"addresses", CONSUMERS})

Handler = Callable[[Any], object]
"""Gets a `qmq.client.blocking.Message`. What it raises refuses the message."""


def setting() -> Mapping[str, Any]:
    """The setting. Raises ImproperlyConfigured where there is no project, AttributeError where it is missing."""
    return cast(Mapping[str, Any], conf.settings.QMQ)


def connect_options() -> ConnectOptions:
    """The options of `qmq.client.blocking.connect` in the setting."""
    return cast(ConnectOptions, {key: value for key, value in setting().items() if key not in OWN})


def consumers() -> Mapping[str, str]:
    """The consumers of the setting: destination → where its function is."""
    return cast(Mapping[str, str], setting().get(CONSUMERS, {}))


def check_setting(app_configs: object, **_: object) -> list[CheckMessage]:
    """What `manage.py check` says of the setting."""
    found = getattr(conf.settings, "QMQ", None)
    if not isinstance(found, Mapping) or not found.get("addresses"):
        hint = 'For example QMQ = {"addresses": ["127.0.0.1:61613", "127.0.0.1:61614"]}.'
        return [Error("The setting QMQ is an object with addresses.", hint=hint, id="qmq.E001")]
    known = OWN | ConnectOptions.__annotations__.keys()
    wrong: list[CheckMessage] = [
        Error(f"QMQ has no key {key!r}.", hint=f"It has {', '.join(sorted(known))}.", id="qmq.E002")
        for key in found
        if key not in known
    ]
    try:
        if not wrong:
            plan(found["addresses"], **connect_options())
    except (ValueError, TypeError, ConfigError) as error:
        wrong.append(Error(f"QMQ: {error}", id="qmq.E003"))
    for destination, path in found.get(CONSUMERS, {}).items():
        try:
            if not callable(import_string(path)):
                raise ImportError(f"{path} is no function")
        except ImportError as error:
            wrong.append(Error(f"QMQ: the consumer of {destination}: {error}", id="qmq.E004"))
    return wrong
