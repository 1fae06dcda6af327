"""Which pages may use the port: names of the host, origins, and content types of forms."""

import pytest

from qmq.config import Address
from qmq.protocols.http.codec import HttpRefusal
from qmq.protocols.http.gateway.authorization import parse_authorization
from qmq.protocols.http.gateway.origins import Origins, check_unasked
from qmq.protocols.http.listener import HttpListenerSettings
from tests.protocols.http.gateway.support import request_of


def origins(host: str = "127.0.0.1", *, is_anonymous: bool = True, **more: tuple[str, ...]) -> Origins:
    """Those of a listener."""
    listener = HttpListenerSettings.read({"address": Address(host, 61680), "insecure": True, **more})
    return Origins(listener.served_hosts(is_anonymous), listener.origins)


def status_of(rule: Origins, **headers: str) -> int:
    try:
        rule.check(request_of("GET", "/", **headers))
    except HttpRefusal as refusal:
        return refusal.status
    return 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:61680", "localhost", "LOCALHOST:80", "[::1]", "[::1]:61680", "localhost:"]
)
def test_names_of_loopback_are_served(host: str) -> None:
    assert status_of(origins(), host=host) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:61680", "localhost.evil.example", "127.0.0.1.evil.example", "[::2]", "::1", ""],
)
def test_a_name_that_was_rebound_to_this_address_is_refused(host: str) -> None:
    try:
        status = status_of(origins(), host=host)
    except HttpRefusal as refusal:  # of the codec
        status = refusal.status
    assert status in (400, 421)


@pytest.mark.parametrize(("listens", "host"), [("::1", "[::1]:61680"), ("fd00::1", "[fd00::1]:61680")])
def test_a_listener_serves_its_own_address_of_ipv6(listens: str, host: str) -> None:
    assert status_of(origins(listens), host=host) == 200


def test_a_configured_name_is_served_in_any_case() -> None:
    rule = origins(hosts=("Broker.example.org",))

    assert status_of(rule, host="broker.EXAMPLE.org:443") == 200
    assert status_of(rule, host="other.example.org") == 421


def test_a_port_whose_clients_log_in_serves_any_name_unless_names_are_given() -> None:
    assert status_of(origins(is_anonymous=False), host="any.example") == 200
    assert status_of(origins(is_anonymous=False, hosts=("one.example",)), host="any.example") == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:61680", 200),
        ("https://localhost:61680", 200),
        ("https://app.example.org", 200),
        ("http://app.example.org", 403),
        ("https://app.example.org:8443", 403),
        ("https://app.example.org.evil.example", 403),
        ("http://localhost", 403),
        ("http://localhost:1", 403),
        ("null", 403),
        ("file://", 403),
        ("", 403),
    ],
)
def test_only_its_own_page_and_listed_origins_may_ask(origin: str, status: int) -> None:
    assert status_of(origins(origins=("https://app.example.org",)), origin=origin) == status


def test_only_a_listed_origin_gets_the_header_that_lets_its_page_read() -> None:
    rule = origins(origins=("https://app.example.org",))

    allowed = rule.check(request_of("GET", "/", origin="https://app.example.org"))

    assert dict(allowed) == {"access-control-allow-origin": "https://app.example.org", "vary": "origin"}
    assert rule.check(request_of("GET", "/")) == ()
    assert rule.check(request_of("GET", "/", origin="http://localhost:61680")) == ()


def test_a_preflight_allows_the_headers_that_are_asked_for() -> None:
    lines = dict(origins().preflight(request_of("OPTIONS", "/", access_control_request_headers="qmq-priority")))

    assert lines["access-control-allow-headers"] == "qmq-priority"
    assert lines["access-control-allow-methods"] == "GET, POST, DELETE"
    assert "authorization" in dict(origins().preflight(request_of("OPTIONS", "/")))["access-control-allow-headers"]


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text/plain",
        "TEXT/PLAIN; charset=utf-8",
        "multipart/form-data; boundary=x",
        " application/x-www-form-urlencoded",
    ],
)
def test_a_post_that_any_page_can_send_needs_a_login(kind: str) -> None:
    headers = {"content_type": kind} if kind else {}
    with pytest.raises(HttpRefusal) as refused:
        check_unasked(request_of("POST", "/", **headers))

    assert refused.value.status == 415
    check_unasked(request_of("POST", "/", authorization="Basic eDp5", **headers))
    check_unasked(request_of("GET", "/", **headers))


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_a_get_that_a_page_of_another_site_sends_without_asking_is_refused(site: str, status: int) -> None:
    found = 200
    try:
        check_unasked(request_of("GET", "/", sec_fetch_site=site))
    except HttpRefusal as refusal:
        found = refusal.status

    assert found == status
    # With an origin, that decides.
    check_unasked(request_of("GET", "/", sec_fetch_site=site, origin="https://app.example.org"))


@pytest.mark.parametrize("kind", ["application/json", "application/octet-stream", "avro/binary", "image/png"])
def test_a_post_that_a_page_must_ask_for_needs_none(kind: str) -> None:
    check_unasked(request_of("POST", "/", content_type=kind))


@pytest.mark.parametrize("blanks", [" ", "  "])
def test_blanks_may_follow_the_scheme_of_a_login(blanks: str) -> None:
    assert parse_authorization(f"Basic{blanks}eDp5") == ("x", "y", None)
    assert parse_authorization(f"Bearer{blanks}t") == (None, "", "t")
