"""Paths and methods to calls."""

import pytest

from qmq.protocols.http.codec import HttpRefusal
from qmq.protocols.http.gateway.routes import Call, Route, route_of
from tests.protocols.http.gateway.support import request_of


@pytest.mark.parametrize(
    ("method", "target", "route"),
    [
        ("POST", "/v1/queues/q/messages", Route(Call.SEND, "/queue/q")),
        ("POST", "/v1/topics/a.b/messages", Route(Call.SEND, "/topic/a.b")),
        ("POST", "/v1/fanouts/f/messages", Route(Call.SEND, "/fanout/f")),
        ("POST", "/v1/exchanges/e%2Fkey.1/messages", Route(Call.SEND, "/exchange/e/key.1")),
        ("POST", "/v1/queues/a%2Fb%20%C3%A9/messages?x=1", Route(Call.SEND, "/queue/a/b \xe9")),
        ("POST", "/v1/queues/q/receive", Route(Call.RECEIVE, "/queue/q")),
        ("GET", "/v1/topics/%23/events", Route(Call.EVENTS, "/topic/#")),
        ("GET", "/v1/fanouts/f/events", Route(Call.EVENTS, "/fanout/f")),
        ("POST", "/v1/acks", Route(Call.ACKS)),
        ("GET", "/v1/control/list/queue", Route(Call.CONTROL, "/control/list/queue")),
        ("POST", "/v1/control/kick/a/5", Route(Call.CONTROL, "/control/kick/a/5")),
        ("HEAD", "/v1/openapi.json", Route(Call.OPENAPI)),
        ("GET", "/metrics", Route(Call.METRICS)),
        ("GET", "/livez", Route(Call.LIVEZ)),
        ("HEAD", "/readyz", Route(Call.READYZ)),
        ("GET", "/stomp", Route(Call.STOMP)),
        ("GET", "/stomp/websocket", Route(Call.STOMP)),
        ("POST", "/v1/stomp", Route(Call.LONG_POLL)),
        ("GET", "/v1/stomp/ab12", Route(Call.LONG_POLL, "ab12")),
        ("POST", "/v1/stomp/ab12", Route(Call.LONG_POLL, "ab12")),
        ("DELETE", "/v1/stomp/ab12", Route(Call.LONG_POLL, "ab12")),
    ],
)
def test_each_path_is_one_call(method: str, target: str, route: Route) -> None:
    assert route_of(request_of(method, target)) == route


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/v1", 404),
        ("GET", "/v1/control", 404),
        ("GET", "/v1/queues/q", 404),
        ("GET", "/v1/queues/q/events", 404),
        ("POST", "/v1/topics/t/receive", 404),
        ("POST", "/v1/exchanges/e/receive", 404),
        ("POST", "/v1/queues/a/b/messages", 404),
        ("POST", "/V1/queues/q/messages", 404),
        ("POST", "/v1/queues/q/messages/", 404),
        ("POST", "/v1/queues//messages", 400),
        ("GET", "/v1/queues/q/messages", 405),
        ("PUT", "/v1/queues/q/messages", 405),
        ("POST", "/v1/fanouts/f/events", 405),
        ("GET", "/v1/acks", 405),
        ("POST", "/stomp", 405),
        ("GET", "/stomp/info", 404),
        ("POST", "/stomp/000/abc/xhr", 404),
        ("GET", "/v1/stomp", 405),
        ("GET", "/v1/stomp/", 404),
        ("POST", "/v1/stomp/", 404),
        ("PUT", "/v1/stomp/ab12", 405),
        ("GET", "/v1/stomp/ab12/x", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/v1/control/list/queue", 405),
        ("OPTIONS", "/v1/acks", 405),
    ],
)
def test_what_is_no_call_is_refused(method: str, target: str, status: int) -> None:
    with pytest.raises(HttpRefusal) as refused:
        route_of(request_of(method, target))

    assert refused.value.status == status
    assert ("allow" in dict(refused.value.headers)) == (status == 405)
