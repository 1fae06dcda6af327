"""A mesh in a Django project: messages from views and models, and `manage.py qmq_consume` (docs/django.md).

Needs the extra `django`. `INSTALLED_APPS` has `"qmq.client.django"`, and the setting `QMQ` says where the nodes are.
"""

import json
from functools import cache, partial
from typing import Any, Final

from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction

from qmq.client import blocking
from qmq.client.core.encode import Headers
from qmq.client.django.conf import connect_options, setting
from qmq.client.process_client import ProcessClient

SEND_SECONDS: Final = 30.0


@cache
def _process_client() -> ProcessClient:
    return ProcessClient(setting()["addresses"], **connect_options())


def client() -> blocking.Client:
    """The client of this process, which all threads share: connected on first use. Raises NotConnected, Refused."""
    return _process_client().client


def close() -> None:
    """Disconnect, when what was sent is confirmed. The next use connects again."""
    _process_client().close()


def send(
    destination: str, body: Any = b"", headers: Headers | None = None, *, timeout_seconds: float = SEND_SECONDS
) -> blocking.Receipt | None:
    """Send a message; on return a node has confirmed it. `body` is bytes, text, or what Django writes as JSON.

    Raises TimeoutError, NotConnected and Refused; after the first two the message may have been accepted.
    """
    content, more = _content(body)
    return client().send(destination, content, {**more, **dict(headers or {})}, timeout_seconds=timeout_seconds)


def send_on_commit(
    destination: str,
    body: Any = b"",
    headers: Headers | None = None,
    *,
    timeout_seconds: float = SEND_SECONDS,
    using: str | None = None,
) -> None:
    """Send it when the transaction of the database `using` is committed, and not at all if it is rolled back; at once
    if there is none. The body is what it is now.

    Not atomic with the database: the process may end, or the send may fail, after the commit.
    """
    content, more = _content(body)
    sent = {**more, **dict(headers or {})}
    transaction.on_commit(partial(send, destination, content, sent, timeout_seconds=timeout_seconds), using=using)


def _content(body: Any) -> tuple[bytes, dict[str, str]]:
    if isinstance(body, bytes):
        return body, {}
    if isinstance(body, str):
        return body.encode(), {"content-type": "text/plain;charset=utf-8"}
    return json.dumps(body, cls=DjangoJSONEncoder).encode(), {"content-type": "application/json"}
