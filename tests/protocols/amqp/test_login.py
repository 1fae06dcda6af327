"""The login of AMQP clients: header, SASL, tune, open; and what is refused."""

from pathlib import Path
from typing import Any

import argon2
import pytest
import trio
from pamqp import commands, encode, frame
from trio.testing import MockClock

from qmq.config import AuthenticationSettings, User, UserLimitSettings
from qmq.protocols.amqp.codec.frames import PROTOCOL_HEADER
from tests.auth.keys import AUDIENCE, ISSUER, RSA_KEY, claims, jwk, token, write_jwks
from tests.protocols.amqp.rig import AmqpClient, Message, amqp_node, connect, dial
from tests.support.defined import redefine
from tests.support.world import EPOCH_US

HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
USERS: dict[str, Any] = {"users": (User(name="ann", password_hash=HASH, groups=("client",)),)}


async def started(client: AmqpClient) -> commands.Connection.Start:
    await client.pipe.send_all(PROTOCOL_HEADER)
    start: commands.Connection.Start = await client.next(commands.Connection.Start)
    return start


async def test_the_node_says_what_it_is_and_what_it_can(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        start = await started(await dial(rig))

        assert (start.version_major, start.version_minor) == (0, 9)
        assert start.server_properties["product"] == "QMQ"
        capabilities: Any = start.server_properties["capabilities"]  # type: ignore[index]
        for name in ("publisher_confirms", "exchange_exchange_bindings", "consumer_priorities"):
            assert capabilities[name] is True
        assert str(start.mechanisms).split() == ["PLAIN", "AMQPLAIN"]


async def test_another_protocol_gets_the_header_of_this_one(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await dial(rig)
        await client.pipe.send_all(b"AMQP\0\1\0\0")

        assert await client.pipe.receive_some(100) == PROTOCOL_HEADER
        assert await client.pipe.receive_some(100) == b""


async def test_any_login_is_served_on_loopback_while_there_are_no_users(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)

        assert (await client.declare()).queue == "jobs"


async def test_a_user_logs_in_with_plain_and_with_amqplain(autojump_clock: MockClock) -> None:
    async with amqp_node(**USERS) as rig:
        plain = await connect(rig, response="\0ann\0secret")
        table = encode.field_table({"LOGIN": "ann", "PASSWORD": "secret"})[4:]
        other = await connect(rig, mechanism="AMQPLAIN", response=table.decode("latin-1"))

        assert {session.user for session in rig.alive.sessions.values()} == {"ann"}
        for client in (plain, other):
            await client.declare()


async def test_a_wrong_password_is_refused_with_403(autojump_clock: MockClock) -> None:
    async with amqp_node(**USERS) as rig:
        client = await dial(rig)
        await started(client)
        await client.send(0, commands.Connection.StartOk({}, "PLAIN", "\0ann\0wrong", "en_US"))

        code, text = await client.closed(0)

        assert (code, text) == (403, "ACCESS_REFUSED - Unknown user or wrong passcode.")
        await client.until_ended()


async def test_a_user_that_is_removed_during_the_handshake_is_refused(autojump_clock: MockClock) -> None:
    async with amqp_node(**USERS) as rig:
        client = await dial(rig)
        await started(client)
        await client.send(0, commands.Connection.StartOk({}, "PLAIN", "\0ann\0secret", "en_US"))
        tune = await client.next(commands.Connection.Tune)

        await redefine(rig.alive, users=(User(name="bob", password_hash=HASH),))
        await client.send(0, commands.Connection.TuneOk(tune.channel_max, 0, 0), commands.Connection.Open("/"))

        assert (await client.closed(0))[1] == "CONNECTION_FORCED - The user ann may not log in here any more."
        await client.until_ended()


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (commands.Connection.StartOk({}, "PLAIN", "no nul", "en_US"), 502),
        (commands.Connection.StartOk({}, "EXTERNAL", "", "en_US"), 403),
        (commands.Connection.Open("/"), 503),
        (commands.Queue.Declare(), 503),
    ],
)
async def test_a_bad_step_of_the_login_ends_the_connection(autojump_clock: MockClock, method: Any, code: int) -> None:
    async with amqp_node() as rig:
        client = await dial(rig)
        await started(client)
        await client.send(0, method)

        assert (await client.closed(0))[0] == code
        await client.until_ended()


@pytest.mark.parametrize(
    "tune",
    [
        commands.Connection.TuneOk(0, 100, 0),
        commands.Connection.TuneOk(2048, 0, 0),
        commands.Connection.TuneOk(0, 1 << 20, 0),
    ],
)
async def test_a_tune_beyond_the_offer_is_refused_with_530(
    autojump_clock: MockClock, tune: commands.Connection.TuneOk
) -> None:
    async with amqp_node() as rig:
        client = await dial(rig)
        await started(client)
        await client.send(0, commands.Connection.StartOk({}, "PLAIN", "\0a\0b", "en_US"))
        await client.next(commands.Connection.Tune)
        await client.send(0, tune)

        assert (await client.closed(0))[0] == 530


async def test_there_is_one_virtual_host(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await dial(rig)
        with pytest.raises(AssertionError, match="no virtual host 'other'"):
            await client.log_in(host="other")


async def test_a_login_that_takes_too_long_ends(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await dial(rig)
        await started(client)

        assert "login-timeout" not in (await client.closed(0))[1]
        await client.until_ended()


async def test_a_client_that_closes_gets_close_ok_and_then_the_end(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", b"last", delivery_mode=2)
        await client.call(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
        await client.until_ended()

        again = await connect(rig)
        assert (await again.declare(passive=True)).message_count == 1


async def test_heartbeats_are_sent_and_silence_ends_the_connection(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig, heartbeat=2)
        with trio.move_on_after(3):
            while True:
                await client._read()

        assert client.heartbeats >= 2
        with trio.fail_after(10):
            await client.until_ended()


async def test_a_node_that_stops_says_connection_forced(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        rig.alive.stop()

        assert (await client.closed(0))[0] == 320


async def test_bytes_of_a_content_are_not_kept_before_the_login(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await dial(rig)
        await started(client)
        await client.pipe.send_all(client.publishing("q", b"x" * 1000, channel=0))

        assert (await client.closed(0))[0] == 503


# Tokens


NOW = EPOCH_US // 1_000_000


def with_tokens(tmp_path: Path) -> dict[str, Any]:
    settings = {"kind": "token", "jwks": write_jwks(tmp_path / "keys.json", jwk(RSA_KEY)), "leeway_seconds": 0.0}
    tokens = AuthenticationSettings.read({**settings, "issuer": ISSUER, "audience": AUDIENCE})
    return {"authentication": (AuthenticationSettings(kind="users"), tokens)}


def said(**changes: Any) -> str:
    return token(claims(NOW, **changes))


async def test_a_token_is_renewed_and_the_connection_stays_until_the_last_one_expires(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with amqp_node(**with_tokens(tmp_path)) as rig:
        client = await connect(rig, response=f"\0\0{said(exp=NOW + 100)}")
        await client.call(
            0, commands.Connection.UpdateSecret(said(exp=NOW + 300), "renewed"), commands.Connection.UpdateSecretOk
        )
        began = trio.current_time()

        await trio.sleep(280)
        await client.declare()
        code, text = await client.closed(0)

        assert "The token of this connection has expired." in text
        assert code == 320
        assert 299 < trio.current_time() - began < 301


async def test_a_token_is_renewed_by_a_client_that_has_all_connections_that_it_may_have(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    limit = UserLimitSettings(user="*", connections_max=1)
    async with amqp_node(**with_tokens(tmp_path), user_limits=(limit,)) as rig:
        client = await connect(rig, response=f"\0\0{said(exp=NOW + 100)}")

        await client.call(
            0, commands.Connection.UpdateSecret(said(exp=NOW + 300), ""), commands.Connection.UpdateSecretOk
        )

        assert sum(rig.alive.session_parts.login_path.logins._users.values()) == 1


@pytest.mark.parametrize("changes", [{"sub": "other"}, {"groups": ["observer"]}, {"exp": NOW - 1}])
async def test_a_token_that_is_not_as_good_ends_the_connection(
    autojump_clock: MockClock, tmp_path: Path, changes: dict[str, Any]
) -> None:
    async with amqp_node(**with_tokens(tmp_path)) as rig:
        client = await connect(rig, response=f"\0\0{said()}")
        await client.send(0, commands.Connection.UpdateSecret(said(**changes), ""))

        assert (await client.closed(0))[0] in (403, 320)
        await client.until_ended()
        await trio.sleep(5)
        assert not rig.alive.session_parts.login_path.logins._users


async def test_where_no_login_is_needed_a_secret_is_taken_and_means_nothing(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.call(0, commands.Connection.UpdateSecret("x", ""), commands.Connection.UpdateSecretOk)


async def test_a_client_may_write_all_that_follows_the_login_at_once(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await dial(rig)
        await started(client)
        await client.call(
            0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), commands.Connection.Tune
        )

        await client.pipe.send_all(
            frame.marshal(commands.Connection.TuneOk(255, 131072, 0), 0)
            + frame.marshal(commands.Connection.Open("/"), 0)
            + frame.marshal(commands.Channel.Open(), 1)
            + frame.marshal(commands.Queue.Declare(0, "jobs"), 1)
            + client.publishing("jobs", b"x" * 50_000)
            + frame.marshal(commands.Basic.Get(0, "jobs"), 1)
        )

        assert (await client.next(Message)).body == b"x" * 50_000


@pytest.mark.parametrize(
    ("properties", "product"),
    [
        ({"product": "pika", "version": "1.3"}, "pika 1.3"),
        ({"product": "pika"}, "pika"),
        ({"product": 7}, ""),
        ({}, ""),
    ],
)
async def test_the_product_of_a_client_is_kept(
    autojump_clock: MockClock, properties: dict[str, object], product: str
) -> None:
    async with amqp_node() as rig:
        await connect(rig, properties=properties)

        assert [session.dialogue.product for session in rig.alive.sessions.values()] == [product]
