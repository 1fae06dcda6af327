"""Browsers: files of the console, login by cookie, what a cookie alone may not do, and the stream of tabs."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.admin.console.feed import POLL_SECONDS
from qmq.admin.console.logins import CSRF_HEADER, IDLE_SECONDS_MAX, LOGIN_SECONDS_MAX, LOGINS_MAX, BrowserLogins
from qmq.config import AuthenticationSettings
from qmq.protocols.http.openapi import openapi
from tests.auth.keys import AUDIENCE, ISSUER, RSA_KEY, claims, jwk, token, write_jwks
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Rig, eventually
from tests.protocols.http.rig import WebClient, basic, dial, dial_node, web_rig
from tests.sessions.clients.test_access import users
from tests.support.defined import redefine
from tests.support.world import EPOCH_US

STAFF = ("observer", "operator", "administrator")


class Browser:
    """A client that keeps its cookie, and knows the token of its page."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.cookie = ""
        self.csrf = ""

    async def log_in(self, user: str, passcode: str = "secret") -> Any:
        return await self.log_in_with(basic(user, passcode))

    async def log_in_with(self, authorization: str) -> Any:
        client = await dial(self._rig)
        response = await client.post("/v1/console/login", b"", authorization=authorization)
        if response.status == 200:
            self.cookie = response.headers["set-cookie"].partition(";")[0]
            self.csrf = response.facts["csrf"]
        return response

    async def get(self, path: str, **headers: str) -> Any:
        return await (await dial(self._rig)).get(path, cookie=self.cookie, **headers)

    async def post(self, path: str, **headers: str) -> Any:
        lines = {CSRF_HEADER.replace("-", "_"): self.csrf, "cookie": self.cookie, **headers}
        return await (await dial(self._rig)).post(path, b"", **lines)


def tokens_of(folder: Path) -> AuthenticationSettings:
    jwks = write_jwks(folder / "keys.json", jwk(RSA_KEY))
    issued = {"issuer": ISSUER, "audience": AUDIENCE}
    return AuthenticationSettings.read({"kind": "token", "jwks": jwks, **issued})


async def logged_in(rig: Rig, user: str) -> Browser:
    browser = Browser(rig)
    assert (await browser.log_in(user)).status == 200
    return browser


# Files


async def test_page_is_served_without_login_and_allows_nothing_from_elsewhere(autojump_clock: MockClock) -> None:
    async with web_rig(users=users("observer")).run() as rig:
        client = await dial(rig)

        page = await client.get("/")
        script = await client.get("/console/app.js")

        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert (page.headers["x-frame-options"], page.headers["x-content-type-options"]) == ("DENY", "nosniff")
        assert (script.status, script.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
        assert b"http://" not in page.body and b"https://" not in page.body


@pytest.mark.parametrize("path", ["/console/none.js", "/console/..%2F__init__.py", "/console/__init__.py"])
async def test_no_other_file_is_served(autojump_clock: MockClock, path: str) -> None:
    async with web_rig().run() as rig:
        assert (await (await dial(rig)).get(path)).status == 404


# Login


async def test_cookie_stands_for_the_login(autojump_clock: MockClock) -> None:
    async with web_rig(users=users(*STAFF)).run() as rig:
        browser = await logged_in(rig, "operator")

        facts = (await browser.get("/v1/control/rights")).facts
        again = (await browser.get("/v1/console/login")).facts

        assert facts["user"] == "operator"
        assert (again["user"], again["csrf"]) == ("operator", browser.csrf)


async def test_responses_have_the_fields_that_are_described(autojump_clock: MockClock) -> None:
    schemas = json.loads(openapi())["components"]["schemas"]
    async with web_rig(users=users("observer")).run() as rig:
        browser = Browser(rig)
        login = (await browser.log_in("observer")).facts
        logout = (await browser.post("/v1/console/logout")).facts

    assert set(login) == set(schemas["LoginState"]["properties"])
    assert set(logout) == set(schemas["LoggedOut"]["properties"])


async def test_cookie_is_for_this_site_only_and_no_script_reads_it(autojump_clock: MockClock) -> None:
    async with web_rig(users=users("observer")).run() as rig:
        response = await Browser(rig).log_in("observer")

        parts = {part.strip() for part in response.headers["set-cookie"].split(";")[1:]}
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= parts
        assert "Secure" not in parts


def test_cookie_is_secure_with_tls() -> None:
    logins = BrowserLogins(None, "a")  # type: ignore[arg-type]

    assert logins.set_cookie("t", is_secure=True)[1].endswith("; Secure")


async def test_wrong_passcode_gives_no_cookie_and_no_challenge(autojump_clock: MockClock) -> None:
    async with web_rig(users=users("observer")).run() as rig:
        response = await Browser(rig).log_in("observer", "wrong")

        assert (response.status, response.code) == (401, "login-failed")
        assert "set-cookie" not in response.headers
        assert "www-authenticate" not in response.headers


async def test_page_is_not_challenged_and_other_clients_are(autojump_clock: MockClock) -> None:
    async with web_rig(users=users("observer")).run() as rig:
        page = await (await dial(rig)).get("/v1/control/status", x_qmq_csrf="")
        other = await (await dial(rig)).get("/v1/control/status")

        assert (page.status, "www-authenticate" in page.headers) == (401, False)
        assert (other.status, "www-authenticate" in other.headers) == (401, True)


async def test_cookie_alone_changes_nothing(autojump_clock: MockClock) -> None:
    async with web_rig(users=users(*STAFF)).run() as rig:
        browser = await logged_in(rig, "operator")

        without = await browser.post("/v1/control/pause/queue/q", x_qmq_csrf="")
        wrong = await browser.post("/v1/control/pause/queue/q", x_qmq_csrf="é" + browser.csrf)
        right = await browser.post("/v1/control/pause/queue/q")

        assert (without.status, without.code) == (403, "bad-csrf")
        assert (wrong.status, wrong.code) == (403, "bad-csrf")
        assert right.status == 200


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
async def test_page_of_another_port_of_the_host_does_not_use_the_cookie(autojump_clock: MockClock, site: str) -> None:
    async with web_rig(users=users(*STAFF)).run() as rig:
        browser = await logged_in(rig, "operator")

        response = await browser.get("/v1/control/connections", sec_fetch_site=site)

        assert (response.status, response.code) == (403, "bad-origin")


async def test_cookie_of_one_login_does_not_go_with_the_token_of_another(autojump_clock: MockClock) -> None:
    async with web_rig(users=users(*STAFF)).run() as rig:
        one, other = await logged_in(rig, "operator"), await logged_in(rig, "observer")

        response = await one.post("/v1/control/pause/queue/q", x_qmq_csrf=other.csrf)

        assert response.code == "bad-csrf"


async def test_authorization_counts_more_than_a_cookie(autojump_clock: MockClock) -> None:
    async with web_rig(users=users(*STAFF)).run() as rig:
        browser = await logged_in(rig, "observer")

        facts = (await browser.get("/v1/control/rights", authorization=basic("operator"))).facts

        assert facts["user"] == "operator"


async def test_logout_ends_the_login(autojump_clock: MockClock) -> None:
    async with web_rig(users=users(*STAFF)).run() as rig:
        browser = await logged_in(rig, "operator")
        client = await dial(rig)
        assert (await client.get("/v1/control/rights", cookie=browser.cookie)).status == 200

        response = await browser.post("/v1/console/logout")

        assert "Max-Age=0" in response.headers["set-cookie"]
        assert (await browser.get("/v1/control/rights")).status == 401
        # Also on a connection that was logged in before.
        assert (await client.get("/v1/control/rights", cookie=browser.cookie)).status == 401


async def test_logout_with_credentials_ends_the_login_of_the_cookie_too(autojump_clock: MockClock) -> None:
    """A browser that was asked for a passcode sends it by itself from then on."""
    async with web_rig(users=users(*STAFF)).run() as rig:
        browser = await logged_in(rig, "operator")

        await browser.post("/v1/console/logout", authorization=basic("operator"))

        assert (await browser.get("/v1/control/rights")).status == 401


async def test_login_with_the_cookie_of_an_older_one_ends_that(autojump_clock: MockClock) -> None:
    async with web_rig(users=users(*STAFF)).run() as rig:
        browser = await logged_in(rig, "operator")

        response = await browser.post("/v1/console/login", authorization=basic("observer"))

        assert response.status == 200
        assert (await browser.get("/v1/control/rights")).status == 401


async def test_login_shows_no_token_of_another_user(autojump_clock: MockClock) -> None:
    async with web_rig(users=users(*STAFF)).run() as rig:
        browser = await logged_in(rig, "operator")

        facts = (await browser.get("/v1/console/login", authorization=basic("observer"))).facts

        assert (facts["user"], facts["csrf"]) == ("observer", None)
        assert (await browser.get("/v1/console/login")).facts["csrf"] == browser.csrf


async def test_cookie_alone_does_not_begin_its_hours_again(autojump_clock: MockClock) -> None:
    async with web_rig(users=users(*STAFF)).run() as rig:
        browser = await logged_in(rig, "operator")

        response = await browser.post("/v1/console/login")

        assert response.code == "login-required"
        assert (await browser.get("/v1/control/rights")).status == 200


@pytest.mark.parametrize(
    ("pauses", "is_over"), [((IDLE_SECONDS_MAX + 1,), True), ((IDLE_SECONDS_MAX - 60,) * 3, False)]
)
async def test_login_ends_when_it_is_not_used(
    autojump_clock: MockClock, pauses: tuple[float, ...], is_over: bool
) -> None:
    async with web_rig(users=users(*STAFF)).run() as rig:
        browser = await logged_in(rig, "operator")
        for seconds in pauses:
            await trio.sleep(seconds)
            response = await browser.get("/v1/control/rights")

        assert response.status == (401 if is_over else 200)


async def test_login_ends_after_a_day_of_work(autojump_clock: MockClock) -> None:
    async with web_rig(users=users(*STAFF)).run() as rig:
        browser = await logged_in(rig, "operator")

        for _ in range(int(LOGIN_SECONDS_MAX // 3000)):
            await trio.sleep(3000)
            assert (await browser.get("/v1/control/rights")).status == 200
        await trio.sleep(3000)

        assert (await browser.get("/v1/control/rights")).status == 401


async def test_login_ends_with_its_user_and_with_its_passcode(autojump_clock: MockClock) -> None:
    async with web_rig(users=users(*STAFF)).run() as rig:
        one, other = await logged_in(rig, "operator"), await logged_in(rig, "observer")
        administrator = await dial(rig, user="administrator")
        made = (await administrator.post("/v1/control/password-hash", {"passcode": "new"})).facts

        value = {**made, "groups": ["operator"]}
        assert (await administrator.post("/v1/control/definitions/put/user/operator", value)).status == 200
        assert (await administrator.post("/v1/control/definitions/delete/user/observer")).status == 200

        assert (await one.get("/v1/control/rights")).status == 401
        assert (await other.get("/v1/control/rights")).status == 401


async def test_login_by_token_ends_when_its_name_becomes_that_of_a_user(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    kinds = (AuthenticationSettings(kind="users"), tokens_of(tmp_path))
    async with web_rig(users=users("operator"), authentication=kinds).run() as rig:
        browser = Browser(rig)
        said = token(claims(EPOCH_US / 1e6, sub="administrator", groups=["observer"]))
        assert (await browser.log_in_with(f"Bearer {said}")).status == 200
        assert (await browser.get("/v1/control/rights")).facts["user"] == "administrator"

        await redefine(rig.alive, users=users("operator", "administrator"))

        assert (await browser.get("/v1/control/rights")).status == 401


async def test_logins_are_bounded_and_the_one_unused_longest_ends(autojump_clock: MockClock) -> None:
    async with web_rig(users=users("observer")).run() as rig:
        browser = await logged_in(rig, "observer")
        logins = rig.alive.protocols.of("http").shared.console._logins
        login = logins.find(browser.cookie.partition("=")[2], 0)
        assert login is not None
        await trio.sleep(1)

        tokens = [logins.begin(login.grant) for _ in range(LOGINS_MAX)]

        assert (await browser.get("/v1/control/rights")).status == 401
        assert logins.find(tokens[0], 0) is not None


async def test_node_without_users_needs_no_login(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        facts = (await (await dial(rig)).get("/v1/console/login")).facts
        refused = await (await dial(rig)).post("/v1/console/login")

        assert (facts["user"], facts["csrf"]) == (None, None)
        assert refused.status == 401


async def test_form_cannot_log_in(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        response = await (await dial(rig)).post("/v1/console/logout", b"", content_type="text/plain")

        assert response.status == 415


# Tabs


async def test_tabs_share_one_question_to_the_mesh(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as rig:
        asked = 0
        answer = rig.nodes["b"].admin.console.of_node.facts

        async def counted() -> dict[str, Any]:
            nonlocal asked
            asked += 1
            return await answer()

        rig.nodes["b"].admin.console.of_node.facts = counted  # type: ignore[method-assign]
        tabs = [await (await dial_node(rig, "a")).follow("/v1/console/events") for _ in range(10)]

        for _ in range(5):
            events = [await tab.event() for tab in tabs]
            assert (events[0].kind, sorted(events[0].facts["nodes"])) == ("overview", ["a", "b"])
            assert all(event == events[0] for event in events)

        assert asked <= 7


async def test_node_asks_nothing_when_no_tab_is_open(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        tab = await (await dial(rig)).follow("/v1/console/events")
        await tab.event()
        feed = rig.alive.protocols.of("http").shared.console._feed

        tab.pipe.close()
        await eventually(lambda: not feed._is_running)

        assert not feed._tabs


async def test_tab_ends_with_its_login(autojump_clock: MockClock) -> None:
    async with web_rig(users=users(*STAFF)).run() as rig:
        browser = await logged_in(rig, "observer")
        tab: WebClient = await (await dial(rig)).follow("/v1/console/events", cookie=browser.cookie)
        await tab.event()

        await browser.post("/v1/console/logout")
        with trio.fail_after(2 * POLL_SECONDS):
            await tab.until_closed()


async def test_client_that_may_not_observe_gets_no_overview(autojump_clock: MockClock) -> None:
    async with web_rig(users=users("client")).run() as rig:
        response = await (await dial(rig, user="client")).get("/v1/console/events")

        assert (response.status, response.code) == (403, "not-allowed")


def test_token_is_found_among_other_cookies() -> None:
    logins = BrowserLogins(None, "a")  # type: ignore[arg-type]
    name = logins.cookie

    assert logins.token_in(f"x=1; {name}=abc; y=2") == "abc"
    assert logins.token_in(f"x{name}=abc; {name}=") is None
