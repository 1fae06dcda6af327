"""One HTTP connection: logins, times, bounds, and how it ends."""

import base64
import json
from pathlib import Path
from typing import Any

import argon2
import pytest
import trio
from trio.testing import MockClock

from qmq.broker.subscriptions import stopping
from qmq.config import AuthenticationSettings, PermissionSettings, User, UserLimitSettings
from qmq.protocols.http.dialogue import BODY_BYTES_MAX, IDLE_SECONDS, REQUEST_SECONDS
from qmq.sessions.clients.login import FAILED_LOGIN_SECONDS
from tests.auth.keys import AUDIENCE, ISSUER, RSA_KEY, claims, jwk, token, write_jwks
from tests.node.rig import Rig, eventually, send
from tests.protocols.http.rig import JSON, RAW, WebClient, basic, batch, dial, web_rig
from tests.support.defined import redefine
from tests.support.depths import depths
from tests.support.world import EPOCH_US

Q = "/v1/queues/q"
MIB = 1 << 20
PASSWORD_HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
ANN, BOB = User(name="ann", password_hash=PASSWORD_HASH), User(name="bob", password_hash=PASSWORD_HASH)
ROOT = User(name="root", password_hash=PASSWORD_HASH, groups=("administrator",))
ANNS = PermissionSettings(user="ann", allow=("send", "subscribe"), destinations=("/queue/q", "/fanout/f"))
BOBS = PermissionSettings(user="bob", allow=("subscribe",), destinations=("/queue/q",))


def with_users(**settings: Any) -> Rig:
    return web_rig(users=(ANN, BOB, ROOT), permissions=(ANNS, BOBS), **settings)


# Logins


async def test_a_request_without_login_is_challenged(autojump_clock: MockClock) -> None:
    async with with_users().run() as rig:
        client = await dial(rig)

        response = await client.send(Q, b"x", content_type=JSON)

        assert (response.status, response.code) == (401, "login-required")
        assert response.headers["www-authenticate"].startswith("Basic ")
        client.user = "ann"
        assert (await client.send(Q, b"x")).status == 201


async def test_each_request_has_the_permissions_of_its_own_login(autojump_clock: MockClock) -> None:
    """As behind a proxy that sends the requests of many clients over one connection."""
    async with with_users().run() as rig:
        client = await dial(rig)

        statuses = []
        for user in ("ann", "bob", "ann", "bob", "bob"):
            client.user = user
            statuses.append((await client.send(Q, b"x")).status)
        client.user = None
        statuses.append((await client.send(Q, b"x", content_type=JSON)).status)

        assert statuses == [201, 403, 201, 403, 403, 401]
        assert depths(rig.alive)["/queue/q"] == 2
        assert [session.user for session in rig.alive.sessions.values()] == ["bob"]


async def test_an_exclusive_queue_ends_with_a_connection_that_has_become_a_websocket(
    autojump_clock: MockClock,
) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        declared = await client.post("/v1/control/declare/queue/mine", {"exclusive_to_connection": True})
        assert declared.status == 200
        upgrade = {"upgrade": "websocket", "connection": "Upgrade", "sec_websocket_version": "13"}
        key = base64.b64encode(bytes(16)).decode()
        assert (await client.get("/stomp", **upgrade, sec_websocket_key=key)).status == 101
        assert "/queue/mine" in rig.alive.settings_parts.declared_queues.texts

        client.pipe.close()

        await eventually(lambda: "/queue/mine" not in rig.alive.settings_parts.declared_queues.texts)


async def test_an_exclusive_queue_ends_when_its_connection_has_another_user(autojump_clock: MockClock) -> None:
    async with with_users().run() as rig:
        client = await dial(rig, user="root")
        assert (await client.post("/v1/control/declare/queue/mine", {"exclusive_to_connection": True})).status == 200
        assert (await client.get("/v1/control/rights")).status == 200
        assert "/queue/mine" in rig.alive.settings_parts.declared_queues.texts

        client.user = "ann"
        assert (await client.send(Q, b"x")).status == 201

        await eventually(lambda: "/queue/mine" not in rig.alive.settings_parts.declared_queues.texts)
        client.user = "root"
        assert (await client.post("/v1/control/declare/queue/mine", {"exclusive_to_connection": True})).status == 200


async def test_the_connection_of_an_exclusive_queue_receives_from_it_and_no_other_does(
    autojump_clock: MockClock,
) -> None:
    async with with_users().run() as rig:
        owner, other = await dial(rig, user="root"), await dial(rig, user="root")
        declared = ("/v1/control/declare/queue/mine", {"exclusive_to_connection": True})
        assert (await owner.post(*declared)).status == 200
        assert (await other.send("/v1/queues/mine", b"x")).status == 201

        assert (await other.post("/v1/queues/mine/receive", {})).code == "resource-locked"
        (message,) = await owner.receive("mine")
        assert (await owner.post(*declared)).status == 200
        assert await owner.settle(message["ack_token"]) == ["acknowledged"]
        assert len(rig.alive.settings_parts.exclusive_queues.acts_for) == 2
        owner.pipe.close()
        other.pipe.close()

        await eventually(lambda: not rig.alive.settings_parts.exclusive_queues.acts_for)


async def test_pipelined_requests_of_two_users_are_decided_as_their_own(autojump_clock: MockClock) -> None:
    async with with_users().run() as rig:
        client = await dial(rig)
        await client.write(
            b"".join(
                client.bytes_of("POST", f"{Q}/messages", b"x", authorization=basic(user), content_type=RAW)
                for user in ("ann", "bob", "ann")
            )
        )

        assert [(await client.response()).status for _ in range(3)] == [201, 403, 201]


async def test_a_wrong_password_takes_its_time_and_the_right_one_counts_after_it(autojump_clock: MockClock) -> None:
    async with with_users().run() as rig:
        client = await dial(rig)
        for user in ("ann", "nobody"):
            began = trio.current_time()
            wrong = await client.send(Q, b"x", authorization=basic(user, "wrong"))
            assert (wrong.status, wrong.code) == (401, "login-failed")
            assert trio.current_time() - began >= FAILED_LOGIN_SECONDS

        assert (await client.send(Q, b"x", authorization=basic("ann"))).status == 201
        assert (await client.send(Q, b"x", authorization=basic("ann", "wrong"))).status == 401
        assert depths(rig.alive)["/queue/q"] == 1


@pytest.mark.parametrize("said", ["Basic", "Basic !!", "Basic YW5u", "Digest x", "Basic \xff"])
async def test_a_header_without_credentials_is_refused(autojump_clock: MockClock, said: str) -> None:
    async with with_users().run() as rig:
        client = await dial(rig)

        response = await client.send(Q, b"x", authorization=said)

        assert (response.status, response.code) == (400, "bad-header")


async def test_tokens_of_another_user_are_expired(autojump_clock: MockClock) -> None:
    async with with_users().run() as rig:
        ann, bob = await dial(rig, user="ann"), await dial(rig, user="bob")
        await ann.send(Q, b"x")
        (message,) = await ann.receive("q")

        assert await bob.settle(message["ack_token"]) == ["expired"]
        assert await ann.settle(message["ack_token"]) == ["acknowledged"]


async def test_connections_of_a_user_are_counted_once_and_freed(autojump_clock: MockClock) -> None:
    async with with_users(limits={"connections_per_user_max": 2}).run() as rig:
        for _ in range(5):
            client = await dial(rig, user="ann")
            assert (await client.send(Q, b"x")).status == 201
            assert (await client.send(Q, b"x", authorization=basic("root"))).status == 201
            assert (await client.send(Q, b"x")).status == 201
            await client.receive("q")
            client.pipe.close()
        await eventually(lambda: rig.alive.session_parts.login_path.admission._total == 0)
        clients = [await dial(rig, user="ann") for _ in range(3)]

        assert [(await one.send(Q, b"x")).status for one in clients] == [201, 201, 429]


async def test_a_client_that_leaves_during_its_password_check_is_not_counted(autojump_clock: MockClock) -> None:
    async with with_users(limits={"connections_per_user_max": 1}).run() as rig:
        for _ in range(3):
            client = await dial(rig, user="ann")
            await client.write(client.bytes_of("POST", f"{Q}/messages", b"x"))
            client.pipe.close()
        await eventually(lambda: rig.alive.session_parts.login_path.admission._total == 0)
        client = await dial(rig, user="ann")

        assert (await client.send(Q, b"x")).status == 201


async def test_a_token_counts_until_it_expires(autojump_clock: MockClock, tmp_path: Path) -> None:
    keys = write_jwks(tmp_path / "keys.json", jwk(RSA_KEY))
    tokens = AuthenticationSettings.read(
        {"kind": "token", "jwks": keys, "issuer": ISSUER, "audience": AUDIENCE, "leeway_seconds": 0.0}
    )
    now = EPOCH_US // 1_000_000
    rows = (PermissionSettings(group="billing", allow=("send", "subscribe"), destinations=("/queue/q", "/fanout/f")),)
    both = (AuthenticationSettings(kind="users"), tokens)
    async with web_rig(authentication=both, users=(ROOT,), permissions=rows).run() as rig:
        client, stream = await dial(rig), await dial(rig)
        bearer = token(claims(now, groups=["billing"], exp=now + 60))

        assert (await client.send(Q, b"x", authorization=f"Bearer {bearer}")).status == 201
        await stream.follow(f"/v1/fanouts/f/events?access_token={bearer}")
        await trio.sleep(55)
        assert (await client.send(Q, b"x", authorization=f"Bearer {bearer}")).status == 201
        await trio.sleep(10)
        late = await client.send(Q, b"x", authorization=f"Bearer {bearer}")
        event = await stream.event()

        assert (late.status, late.code) == (401, "token-expired")
        assert (event.kind, event.facts["code"]) == ("error", "token-expired")
        await stream.until_closed()


async def test_a_newer_token_of_a_connection_is_not_counted_as_another_connection(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    keys = write_jwks(tmp_path / "keys.json", jwk(RSA_KEY))
    tokens = AuthenticationSettings.read({"kind": "token", "jwks": keys, "issuer": ISSUER, "audience": AUDIENCE})
    now = EPOCH_US // 1_000_000
    rows = (PermissionSettings(group="billing", allow=("send",), destinations=("/queue/q",)),)
    limit = UserLimitSettings(user="*", connections_max=1)
    async with web_rig(authentication=(tokens,), permissions=rows, user_limits=(limit,)).run() as rig:
        client = await dial(rig)
        for seconds in (60, 120):
            bearer = token(claims(now, groups=["billing"], exp=now + seconds))
            assert (await client.send(Q, b"x", authorization=f"Bearer {bearer}")).status == 201

        second = await (await dial(rig)).send(Q, b"x", authorization=f"Bearer {bearer}")

        assert second.code == "too-many-connections"
        assert sum(rig.alive.session_parts.login_path.logins._users.values()) == 1


async def test_a_user_that_is_removed_is_refused_at_once(autojump_clock: MockClock) -> None:
    async with with_users().run() as rig:
        client = await dial(rig, user="ann")
        assert (await client.send(Q, b"x")).status == 201

        await redefine(rig.alive, users=(BOB, ROOT), permissions=(BOBS,))

        await client.until_closed()
        again = await dial(rig, user="ann")
        assert (await again.send(Q, b"x")).status == 401


async def test_a_permission_that_is_taken_away_counts_for_the_next_request(autojump_clock: MockClock) -> None:
    async with with_users().run() as rig:
        client = await dial(rig, user="ann")
        await client.send(Q, b"x")
        (message,) = await client.receive("q")

        await redefine(rig.alive, permissions=(BOBS,))

        assert (await client.send(Q, b"x")).status == 403
        assert (await client.post(f"{Q}/receive", b"{}")).status == 403
        assert (await (await dial(rig, user="bob")).receive("q"))[0]["id"] == message["id"]


async def test_control_requests_need_permission(autojump_clock: MockClock) -> None:
    async with with_users().run() as rig:
        client = await dial(rig, user="ann")

        assert (await client.get("/v1/control/list/queue")).status == 403
        assert (await client.post("/v1/control/purge/queue/q", b"")).status == 403
        client.user = "root"
        assert (await client.get("/v1/control/list/queue")).status == 200
        wrong = await client.get("/v1/control/purge/queue/q")
        assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
        refused = await client.post("/v1/control/nothing", b"")
        assert refused.status == 400, refused.body
        assert (await client.post("/v1/control/purge/queue/q", b"")).status == 200


# Pages of other sites


async def test_a_page_of_another_site_changes_nothing(autojump_clock: MockClock) -> None:
    async with web_rig(listener={"origins": ("https://app.example.org",)}).run() as rig:
        client = await dial(rig)

        assert (await client.send(Q, b"x", origin="http://evil.example")).status == 403
        assert (await client.send(Q, b"x", origin="null")).status == 403
        assert (await client.send(Q, b"x", host="evil.example:61680")).status == 421
        assert (await client.send(Q, b"x", content_type="text/plain")).status == 415
        assert (await client.ask("OPTIONS", f"{Q}/messages", origin="http://evil.example")).status == 403
        assert depths(rig.alive).get("/queue/q", 0) == 0

        preflight = await client.ask("OPTIONS", f"{Q}/messages", origin="https://app.example.org")
        allowed = await client.send(Q, b"x", origin="https://app.example.org")
        refused = await client.get("/nothing", origin="https://app.example.org")
        assert (preflight.status, allowed.status, refused.status) == (204, 201, 404)
        for one in (preflight, allowed, refused):
            assert one.headers["access-control-allow-origin"] == "https://app.example.org"
            assert "access-control-allow-credentials" not in one.headers
        assert (await client.send(Q, b"x")).headers.get("access-control-allow-origin") is None


# Times and bounds


async def test_an_idle_connection_ends_and_one_in_use_stays(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        idle, used = await dial(rig), await dial(rig)
        for client in (idle, used):
            assert (await client.send(Q, b"x")).status == 201
        for _ in range(3):
            await trio.sleep(IDLE_SECONDS - 10)
            assert (await used.send(Q, b"x")).status == 201

        assert idle.pipe.incoming.items, "the node has not closed it"  # type: ignore[attr-defined]
        assert await idle.until_closed() == b""


async def test_a_connection_that_asks_nothing_ends_like_a_login_that_is_pending(autojump_clock: MockClock) -> None:
    async with web_rig(limits={"login_seconds": 5.0}).run() as rig:
        client = await dial(rig)
        began = trio.current_time()

        assert await client.until_closed() == b""
        assert trio.current_time() - began < 12


@pytest.mark.parametrize("part", [b"POST /v1/queues/q/mess", b"", b"x"])
async def test_a_slow_request_is_ended_with_a_reason(autojump_clock: MockClock, part: bytes) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        whole = client.bytes_of("POST", f"{Q}/messages", b"xyz")
        await client.write(part if part.startswith(b"POST") else whole[: len(whole) - 3] + part)
        began = trio.current_time()
        with trio.move_on_after(REQUEST_SECONDS - 10):
            raise AssertionError(await client.response())

        response = await client.response()

        assert (response.status, response.code) == (408, "request-timeout")
        assert trio.current_time() - began < REQUEST_SECONDS + 10
        await client.until_closed()
        assert depths(rig.alive).get("/queue/q", 0) == 0


async def test_a_body_that_comes_byte_by_byte_is_taken(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        for byte in client.bytes_of("POST", f"{Q}/messages", b"xyz"):
            await client.write(bytes([byte]))
            await trio.sleep(0.05)

        assert (await client.response()).status == 201


async def test_a_client_without_login_cannot_make_the_node_hold_a_body(autojump_clock: MockClock) -> None:
    async with with_users().run() as rig:
        client = await dial(rig)
        request = client.bytes_of("POST", f"{Q}/messages", b"x" * BODY_BYTES_MAX)
        await client.write(request[:1000])

        response = await client.response()

        assert (response.status, response.code) == (401, "login-required")
        assert response.headers["connection"] == "close"
        await client.until_closed()


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"origin": "http://evil.example"}, 403), ({"host": "evil"}, 421), ({"content_type": "text/plain"}, 415)],
)
async def test_a_request_is_refused_before_its_body_is_sent(
    autojump_clock: MockClock, headers: dict[str, str], status: int
) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await client.write(
            client.bytes_of("POST", f"{Q}/messages", expect="100-continue", **{"content_length": "100", **headers})
        )

        assert (await client.response()).status == status


async def test_a_client_that_expects_100_gets_it_and_its_response(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await client.write(client.bytes_of("POST", f"{Q}/messages", expect="100-continue", content_length="3"))
        assert (await client.head())[0] == 100

        await client.write(b"xyz")

        assert (await client.response()).status == 201
        assert (await client.send(Q, b"x")).status == 201


async def test_unfinished_bodies_count_as_memory_and_the_largest_goes(autojump_clock: MockClock) -> None:
    limits = {"memory_bytes_max": 8 * MIB, "body_bytes_max": MIB, "outbox_bytes_max": 4 * MIB}
    async with web_rig(limits=limits).run() as rig:
        small = await dial(rig)
        assert (await small.send(Q, b"x")).status == 201
        large = [await dial(rig, f"10.0.1.{n}") for n in range(8)]

        async def keep_back_the_last_byte(client: WebClient) -> None:
            body = json.dumps(batch("x" * 900_000, "x" * 900_000)).encode()
            try:
                await client.write(client.bytes_of("POST", f"{Q}/messages", body)[:-1])
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

        async with trio.open_nursery() as nursery:
            for client in large:
                nursery.start_soon(keep_back_the_last_byte, client)
        await trio.sleep(5)

        assert rig.alive.session_parts.host.budget.ended > 0
        assert rig.alive.session_parts.host.budget.bytes <= 8 * MIB
        assert (await small.send(Q, b"x")).status == 201


async def test_a_body_counts_as_memory_until_its_request_is_answered(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        assert (await client.send(Q, b"x")).status == 201
        taken, goes_on = trio.Event(), trio.Event()

        async def stuck(*_: object, **__: object) -> None:
            taken.set()
            await goes_on.wait()

        rig.alive.engine.path.slot = stuck  # type: ignore[method-assign]
        await client.write(client.bytes_of("POST", f"{Q}/messages", json.dumps(batch("x" * MIB)).encode()))
        await taken.wait()

        assert rig.alive.session_parts.host.budget.bytes > MIB
        goes_on.set()
        assert (await client.response()).status == 201
        assert rig.alive.session_parts.host.budget.bytes == 0


@pytest.mark.parametrize(
    ("method", "path", "bytes_max"),
    [
        ("POST", f"{Q}/receive", 64 << 10),
        ("POST", "/v1/acks", 512 << 10),
        ("POST", "/v1/control/purge/queue/q", MIB),
        ("GET", "/livez", 4 << 10),
        ("GET", "/stomp", 4 << 10),
    ],
)
@pytest.mark.parametrize("framing", ["content_length", "transfer_encoding"])
async def test_no_request_has_a_larger_body_than_its_call_needs(
    autojump_clock: MockClock, method: str, path: str, bytes_max: int, framing: str
) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        length = {framing: str(bytes_max + 1) if framing == "content_length" else "chunked"}
        await client.write(client.bytes_of("GET", "/livez"))
        assert (await client.response()).status == 200
        lines = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {JSON}\r\n"
        lines += "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in length.items())
        begun = b"" if framing == "content_length" else b"%x\r\n" % (bytes_max + 1)
        await client.write(lines.encode() + b"\r\n" + begun)

        response = await client.response()

        assert (response.status, response.code) == (413, "body-too-large")
        await client.until_closed()


@pytest.mark.parametrize("row", [{"messages_per_second_max": 10}, {"bytes_per_second_max": 2048}])
async def test_requests_of_all_kinds_wait_for_the_rates_of_their_user(
    autojump_clock: MockClock, row: dict[str, int]
) -> None:
    async with with_users(user_limits=(UserLimitSettings(user="root", **row),)).run() as rig:
        client = await dial(rig, user="root")
        began = trio.current_time()

        for _ in range(40):
            assert (await client.post("/v1/control/status")).status == 200
        for _ in range(40 if "bytes_per_second_max" in row else 0):
            assert (await client.post("/v1/acks", {"acks": [{"ack_token": "x"}]})).status == 200

        assert trio.current_time() - began >= 2.5


async def test_a_login_does_not_pay_of_the_one_before(autojump_clock: MockClock) -> None:
    async with with_users(user_limits=(UserLimitSettings(user="root", bytes_per_second_max=2048),)).run() as rig:
        client = await dial(rig, user="ann")
        for _ in range(5):
            assert (await client.send(Q, bytes(100_000))).status == 201

        client.user = "root"
        began = trio.current_time()
        assert (await client.get("/v1/control/status")).status == 200
        assert trio.current_time() - began < 2


async def test_a_client_that_reads_no_response_is_not_answered_any_further(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        other = await dial(rig)
        for number in range(200):
            await other.send(f"/v1/queues/{number:0100}", b"x")
        client = await dial(rig, "10.0.0.2")
        request = client.bytes_of("GET", "/v1/control/list/queue?limit=1000")
        await client.write(request * 500)
        await trio.sleep(2)
        (session,) = [one for one in rig.alive.sessions.values() if one.peer_address == "10.0.0.2"]

        assert 0 < session.outbox.size < 100_000
        assert (await other.send(Q, b"x")).status == 201
        await trio.sleep(REQUEST_SECONDS + 20)
        assert session.finishing


async def test_a_client_that_reads_slowly_gets_all_responses(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        other = await dial(rig)
        for number in range(200):
            await other.send(f"/v1/queues/{number:0100}", b"x")
        client = await dial(rig, "10.0.0.2")
        count = 20
        request = client.bytes_of("GET", "/v1/control/list/queue?limit=1000")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.write, request * count)
            for _ in range(count):
                await trio.sleep(10)
                assert (await client.response()).status == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n", 414),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 101 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\na: " + b"x" * 40_000, 431),
        (b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20000000\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"SEND\ndestination:/queue/q\n\n\0", 400),
        (b"GET / HTTP/2.0\r\nhost: localhost\r\n\r\n", 505),
    ],
)
async def test_a_request_that_is_none_is_answered_and_ends(autojump_clock: MockClock, data: bytes, status: int) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await client.write(data)

        assert (await client.response()).status == status
        await client.until_closed()


async def test_head_and_options_and_unknown_paths(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)

        head = await client.ask("HEAD", "/v1/openapi.json")
        assert (head.status, head.body) == (200, b"") and int(head.headers["content-length"]) > 0
        assert (await client.ask("HEAD", f"{Q}/messages")).headers["allow"] == "POST"
        assert (await client.ask("OPTIONS", f"{Q}/messages")).status == 405
        assert (await client.ask("DELETE", f"{Q}/messages")).status == 405
        assert (await client.get("/v1/queues//messages")).status == 400
        assert (await client.get("/v1/topics/t/receive")).status == 404


async def test_a_connection_too_many_is_refused_with_a_response(autojump_clock: MockClock) -> None:
    async with web_rig(limits={"connections_max": 1}).run() as rig:
        first, second = await dial(rig), await dial(rig)
        assert (await first.send(Q, b"x")).status == 201

        response = await second.response()

        assert (response.status, response.code) == (503, "too-many-connections")


# Ends


async def test_a_stop_lets_a_request_finish_and_ends_idle_connections_at_once(autojump_clock: MockClock) -> None:
    rig = web_rig(limits={"drain_seconds": 100.0})
    async with rig.run():
        idle, amid, stream = [await dial(rig) for _ in range(3)]
        assert (await idle.send(Q, b"x")).status == 201
        assert (await amid.send(Q, b"x")).status == 201
        await stream.follow("/v1/fanouts/f/events")
        request = amid.bytes_of("POST", f"{Q}/messages", b"last")
        await amid.write(request[:-2])
        await trio.sleep(1)
        rig.alive.stop()
        began = trio.current_time()

        assert await idle.until_closed() == b""
        event = await stream.event()
        assert (event.kind, event.facts["code"]) == ("error", "stopping")
        await trio.sleep(5)
        await amid.write(request[-2:])
        assert (await amid.response()).status == 201
        await amid.until_closed()
        for client in (stream, amid):
            client.pipe.close()
        await rig.alive.ended.wait()
        assert trio.current_time() - began < 10

    async with rig.run():
        assert depths(rig.alive)["/queue/q"] == 3


async def test_a_stop_waits_for_the_messages_that_a_client_has_received(autojump_clock: MockClock) -> None:
    rig = web_rig(limits={"drain_seconds": 100.0})
    async with rig.run():
        client = await dial(rig)
        await client.send(Q, b"x")
        (message,) = await client.receive("q")
        rig.alive.stop()
        began = trio.current_time()
        await trio.sleep(5)

        refused = await client.post(f"{Q}/receive", b"{}")
        assert (refused.status, refused.code) == (503, "stopping")
        assert await client.settle(message["ack_token"]) == ["acknowledged"]

        await client.until_closed()
        await rig.alive.ended.wait()
        assert trio.current_time() - began < 10
    async with rig.run():
        assert depths(rig.alive).get("/queue/q", 0) == 0


async def test_a_settle_is_answered_before_a_node_that_stops_ends_its_connection(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with web_rig(limits={"drain_seconds": 100.0}).run() as rig:
        run_commit = rig.alive.environment.run_commit

        async def slowly(call: Any, *, is_lone: bool = False) -> Any:
            await trio.sleep(1.5)
            return await run_commit(call, is_lone=is_lone)

        client = await dial(rig)
        await client.send(Q, b"x")
        (message,) = await client.receive("q")
        monkeypatch.setattr(rig.alive.environment, "run_commit", slowly)
        rig.alive.stop()
        await trio.sleep(1)

        assert await client.settle(message["ack_token"]) == ["acknowledged"]

        await client.until_closed()


async def test_a_receive_whose_session_the_node_ends_before_it_begins_says_why(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await client.send(Q, b"x")
        (message,) = await client.receive("q")
        assert await client.settle(message["ack_token"]) == ["acknowledged"]
        (pull,) = [one for one in rig.alive.sessions.values() if one.protocol == "http-pull"]
        path = rig.alive.engine.path
        slot = path.slot

        async def slowly(session: int = 0, **options: Any) -> None:
            if session == pull.id:
                pull.end_in_order(stopping(" (a new version)"))  # as a drain ends what is idle
            await slot(session, **options)

        monkeypatch.setattr(path, "slot", slowly)
        refused = await client.post("/v1/queues/q/receive", {"wait_seconds": 5})

        assert (refused.status, refused.code) == (503, "stopping")


async def test_a_receive_that_waits_ends_when_the_node_stops(autojump_clock: MockClock) -> None:
    async with web_rig(limits={"drain_seconds": 100.0}).run() as rig:
        client = await dial(rig)
        await client.write(client.bytes_of("POST", f"{Q}/receive", b'{"wait_seconds": 60}'))
        await trio.sleep(1)
        rig.alive.stop()
        began = trio.current_time()

        assert (await client.response()).code == "stopping"
        await client.until_closed()
        await rig.alive.ended.wait()
        assert trio.current_time() - began < 5


async def test_a_kick_during_a_request_answers_it(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client, other = await dial(rig, "10.0.0.2"), await dial(rig)
        await client.write(client.bytes_of("POST", f"{Q}/receive", b'{"wait_seconds": 60}'))
        await trio.sleep(1)

        (id, _) = sorted(id for id, one in rig.alive.sessions.items() if one.peer_address == "10.0.0.2")
        # Not the session of its receives, which is younger.
        assert (await other.post(f"/v1/control/kick/a/{id}", b"")).status == 200
        response = await client.response()

        assert (response.status, response.code) == (403, "kicked")
        await other.send(Q, b"x")
        assert (await other.receive("q"))[0]["delivery_count"] == 1
        await client.until_closed()


async def test_a_connection_that_ends_leaves_nothing(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        for n in range(20):
            client = await dial(rig)
            await client.write(client.bytes_of("POST", f"{Q}/messages", b"xyz")[: 20 * n])
            client.pipe.close()
        await eventually(lambda: rig.alive.session_parts.login_path.admission._total == 0)

        assert rig.alive.sessions == {}
        assert rig.alive.session_parts.host.budget.bytes == 0
        assert rig.alive.broker.sessions == {}
        stomp = await rig.connect()
        await stomp.send(send("/queue/q", "x", "r"))
        assert await stomp.receipt() == "r"


async def test_the_user_agent_of_a_client_is_its_product_also_while_it_receives(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        web = await dial(rig)
        await web.send("/v1/queues/q", b"x", user_agent="shop/1.2")
        await web.post("/v1/queues/q/receive", {}, user_agent="shop/1.2")

        rows = (await web.get("/v1/control/connections", user_agent="shop/1.2")).facts["rows"]

        assert [row["product"] for row in rows] == ["shop/1.2", "shop/1.2"]
        assert len({row["port"] for row in rows}) == 1
