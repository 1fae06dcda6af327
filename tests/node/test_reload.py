"""A running node takes up a changed configuration: all of it, from one moment on, or nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.config import (
    DestinationPolicy,
    DestinationSettings,
    LimitSettings,
    NodeSettings,
    PeersFile,
    PermissionSettings,
    StorageSettings,
    User,
)
from qmq.config.difference import CHANGES_LIVE
from qmq.errors import ConfigError
from qmq.node.node import Node
from qmq.node.reload import Reloader
from qmq.settings.rules_of_settings import QUEUES_AT_ONCE
from tests.node.rig import Rig, eventually, send, subscribe
from tests.sessions.clients.test_tls import Papers
from tests.support.conditions import present
from tests.support.defined import changed, redefine

ANN = User(
    name="ann",
    password_hash="$argon2id$v=19$m=8,t=1,p=1$v8umVTv/w1PdCilmZO4cww$ekPflGkocKjlthYotI73oOy3diUSJKwUKqr0bCyE9/o",
    groups=("client",),
)


def small(messages: int) -> DestinationSettings:
    return DestinationSettings(policies=(DestinationPolicy(pattern="/queue/small", max_messages=messages),))


def reloader(rig: Rig, **changes: Any) -> Reloader:
    """One that reads the rig's settings with `changes`."""
    return Reloader(rig.alive, rig.settings, None, lambda: (changed(rig.settings, **changes), None))


async def test_a_queue_that_exists_gets_its_new_bounds_while_its_clients_stay(autojump_clock: MockClock) -> None:
    async with Rig(destinations=small(1)).run() as rig:
        client = await rig.connect(on_error="keep-open")
        await client.send(send("/queue/small", "1", "r1"), send("/queue/small", "2", "r2"))
        assert (await client.next("ERROR")).head.headers["error-code"] == "queue-full"

        assert await reloader(rig, destinations=small(2)).reload()
        await client.send(send("/queue/small", "3", "r3"))

        assert [await client.receipt(), await client.receipt()] == ["r1", "r3"]


async def test_a_bound_that_is_less_than_what_is_there_takes_nothing_away(autojump_clock: MockClock) -> None:
    async with Rig(destinations=small(3)).run() as rig:
        client = await rig.connect(on_error="keep-open")
        await client.send(*[send("/queue/small", str(n), f"r{n}") for n in range(3)])
        await client.receipt()

        assert await reloader(rig, destinations=small(1)).reload()
        await client.send(send("/queue/small", "more", "refused"), subscribe("/queue/small"))

        assert (await client.next("ERROR")).head.headers["receipt-id"] == "refused"
        assert await client.messages(3) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("name", ["/queue/known", "/queue/new"])
async def test_queues_without_a_policy_follow_the_limits(name: str, autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect(on_error="keep-open")
        await client.send(send("/queue/known", "1", "r1"))
        await client.receipt()

        assert await reloader(rig, limits=LimitSettings(queue_messages_max=1)).reload()
        await client.send(send(name, "2", "r2"), send(name, "3", "r3"))

        assert (await client.next("ERROR")).head.headers["error-code"] == "queue-full"


async def test_also_the_last_of_many_queues_follows(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect(on_error="keep-open")
        names = [f"/queue/{number}" for number in range(QUEUES_AT_ONCE + 1)]
        await client.send(*[send(name, "1") for name in names[:-1]], send(names[-1], "1", "all"))
        await client.receipt()

        assert await reloader(rig, limits=LimitSettings(queue_messages_max=1)).reload()
        await client.send(send(names[-1], "2", "refused"))

        assert (await client.next("ERROR")).head.headers["receipt-id"] == "refused"


async def test_header_blocks_that_were_worked_out_before_are_judged_by_the_new_policies(
    autojump_clock: MockClock,
) -> None:
    async with Rig().run() as rig:
        client, other = await rig.connect(on_error="keep-open"), await rig.connect("10.0.0.2", on_error="keep-open")
        for sender in (client, other):
            await sender.send(send("/queue/a", "1", "before"))
            assert await sender.receipt() == "before"

        assert await reloader(rig, destinations=DestinationSettings(create_on_use=False)).reload()

        for sender in (client, other):
            await sender.send(send("/queue/a", "2", "after"))
            assert (await sender.next("ERROR")).head.headers["error-code"] == "unknown-destination"


async def test_header_blocks_that_were_refused_before_are_taken_when_a_policy_allows_them(
    autojump_clock: MockClock,
) -> None:
    async with Rig(destinations=DestinationSettings(create_on_use=False)).run() as rig:
        client = await rig.connect(on_error="keep-open")
        await client.send(send("/queue/small", "1", "before"))
        await client.next("ERROR")

        assert await reloader(rig, destinations=small(5)).reload()
        await client.send(send("/queue/small", "2", "after"))

        assert await client.receipt() == "after"


async def test_durability_follows_the_policy_from_the_reload_on(autojump_clock: MockClock) -> None:
    memory = DestinationSettings(policies=(DestinationPolicy(pattern="/queue/*", durable=False),))
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await client.send(send("/queue/q", "durable", "r1"))
        await client.receipt()
        assert await reloader(rig, destinations=memory).reload()
        await client.send(send("/queue/q", "memory", "r2"))
        await client.receipt()

    async with rig.run():
        client = await rig.connect()
        await client.send(subscribe("/queue/q"), send("/queue/q", "last"))

        assert sorted(await client.messages(2)) == [b"durable", b"last"]


async def test_new_children_get_their_copies(autojump_clock: MockClock) -> None:
    with_child = DestinationPolicy(pattern="/fanout/f", children=("/queue/child",))
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(subscribe("/queue/child"), send("/fanout/f", "before", "r1"))
        await client.receipt()

        assert await reloader(rig, destinations=DestinationSettings(policies=(with_child,))).reload()
        await client.send(send("/fanout/f", "after", "r2"))

        assert await client.messages(1) == [b"after"]


async def test_a_shorter_retention_drops_on_a_quiet_node(autojump_clock: MockClock) -> None:
    short = DestinationPolicy(pattern="/fanout/*", retention_seconds=1.0)
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(send("/fanout/f", "old", "r"))
        await client.receipt()
        before = rig.alive.engine.checkpoints.count

        assert await reloader(rig, destinations=DestinationSettings(policies=(short,))).reload()

        await eventually(lambda: rig.alive.engine.checkpoints.count > before)


async def test_a_removed_user_is_disconnected_with_a_reason_and_others_stay(autojump_clock: MockClock) -> None:
    may = PermissionSettings(user="anonymous", allow=("send",), destinations=("/queue/q",))
    async with Rig(users=(ANN,), permissions=(may,), anonymous=True).run() as rig:
        nobody, ann = await rig.connect("10.0.0.1"), await rig.connect("10.0.0.2", login="ann", passcode="secret")

        await redefine(rig.alive, users=())

        assert (await ann.until_closed())[-1].head.headers["error-code"] == "user-removed"
        await nobody.send(send("/queue/q", "x", "still here"))
        assert await nobody.receipt() == "still here"


async def test_a_new_user_may_log_in_and_an_old_password_may_not(autojump_clock: MockClock) -> None:
    other = ANN.replace({"password_hash": ANN.password_hash[:-4] + "AAAA"})
    async with Rig().run() as rig:
        assert await reloader(rig, users=(ANN,)).reload()
        first = await rig.connect("10.0.0.1", login="ann", passcode="secret")

        assert await reloader(rig, users=(other,)).reload()
        second = await rig.dial("10.0.0.2")
        await second.send("CONNECT\naccept-version:1.2\nhost:x\nlogin:ann\npasscode:secret\n\n")

        assert (await second.until_closed())[-1].head.headers["error-code"] == "login-failed"
        assert (await first.until_closed())[-1].head.headers["error-code"] == "passcode-changed"


async def test_a_user_removed_while_the_password_is_checked_does_not_come_in(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(users=(ANN,)).run() as rig:
        checking, go_on = trio.Event(), trio.Event()
        right = rig.alive.session_parts.login_path.logins._is_right

        async def slowly(*about: Any) -> bool:
            checking.set()
            await go_on.wait()
            return await right(*about)

        monkeypatch.setattr(rig.alive.session_parts.login_path.logins, "_is_right", slowly)
        ann = await rig.dial()
        await ann.send("CONNECT\naccept-version:1.2\nhost:x\nlogin:ann\npasscode:secret\n\n")
        await checking.wait()

        await redefine(rig.alive, users=(ANN.replace({"name": "bob"}),))
        go_on.set()

        assert (await ann.until_closed())[-1].head.headers["error-code"] == "login-failed"
        assert not rig.alive.sessions


async def test_a_bad_file_changes_nothing_and_raises_a_condition(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def read() -> tuple[NodeSettings, PeersFile | None]:
        raise ConfigError(["node.toml:3: this", "node.toml:9: that"])

    async with Rig().run() as rig:
        before = rig.alive.settings

        assert not await Reloader(rig.alive, rig.settings, None, read).reload()

        assert rig.alive.settings is before
        assert rig.alive.settings_parts.rules.generation == 1
        assert [one["code"] for one in present(rig.alive)] == ["reload"]
    assert "node.toml:3: this" in caplog.text and "node.toml:9: that" in caplog.text


async def test_a_file_on_which_the_checks_fail_ends_no_node(autojump_clock: MockClock) -> None:
    def read() -> tuple[NodeSettings, PeersFile | None]:
        raise TypeError("unhashable type: 'dict'")

    async with Rig().run() as rig:
        assert not await Reloader(rig.alive, rig.settings, None, read).reload()

        assert [one["code"] for one in present(rig.alive)] == ["reload"]


async def test_the_condition_names_the_last_refusal_and_ends_when_a_reload_is_taken_up(
    autojump_clock: MockClock,
) -> None:
    answers: list[str | None] = ["node.toml:3: this", "node.toml:9: that", None]

    async with Rig().run() as rig:

        def read() -> tuple[NodeSettings, PeersFile | None]:
            mistake = answers.pop(0)
            if mistake is not None:
                raise ConfigError([mistake])
            return rig.settings, None

        change = Reloader(rig.alive, rig.settings, None, read)
        assert not await change.reload()
        assert not await change.reload()
        assert [one["message"][-4:] for one in present(rig.alive)] == ["that"]

        assert await change.reload()

        assert present(rig.alive) == []


async def test_a_certificate_is_renewed_with_all_else_or_not_at_all(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level("INFO")
    papers = Papers(tmp_path)
    tls = papers.of("node")
    async with Rig().run() as rig:
        rig.alive.certificates.for_clients(tls)
        change = reloader(rig, destinations=small(2))

        papers.of("node")
        tls.key.write_text("junk", "utf-8")
        assert not await change.reload()
        assert rig.alive.settings.destinations == rig.settings.destinations
        papers.of("node")
        assert await change.reload()

        assert rig.alive.settings.destinations == small(2)
        assert rig.alive.certificates.changed() == []
    assert f"{tls.certificate}: renewed" in caplog.text


async def test_one_change_that_needs_a_restart_keeps_all_others_away(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Rig().run() as rig:
        before = rig.alive.settings
        changed = reloader(rig, destinations=small(2), storage=StorageSettings(sync="never"), name="b")

        assert not await changed.reload()

        assert rig.alive.settings is before
    assert 'name: "a" → "b", which needs a restart' in caplog.text
    assert 'storage.sync: "always" → "never", which needs a restart' in caplog.text


async def test_the_next_reload_is_compared_with_what_was_taken_up(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with Rig().run() as rig:
        again = reloader(rig, destinations=small(2))
        assert await again.reload()
        assert "= reload: definitions[policy /queue/small]: (absent) → { max_messages = 2 }" in caplog.text
        caplog.clear()

        assert await again.reload()

        assert "nothing has changed" in caplog.text


async def test_what_the_system_does_not_allow_is_cut_down_and_is_no_difference(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def fit(settings: NodeSettings) -> NodeSettings:
        return settings.replace({"limits": settings.limits.replace({"connections_max": 7})})

    async with Rig().run() as rig:
        assert await Reloader(rig.alive, rig.settings, None, lambda: (rig.settings, None), fit).reload()

        assert rig.alive.settings.limits.connections_max == 7
    assert "nothing has changed" in caplog.text


LIVE_LIMITS = [key.removeprefix("limits.") for key in CHANGES_LIVE if key.startswith("limits.")]


def parts(node: Node) -> dict[str, object]:
    """Everything in a node that was made of limits, as far as it is not read at use."""
    broker, rules = node.broker, node.settings_parts.rules
    slots: Callable[[object], dict[str, object]] = lambda thing: {  # noqa: E731
        name: getattr(thing, name) for name in dir(thing) if name.endswith("_max")
    }
    return {
        "limits": node.settings.limits,
        "broker": slots(broker),
        "replies": slots(broker.replies),
        "retained": slots(broker.retained),
        "rules": {**slots(rules), "prefetch_default": rules.prefetch_default},
        "logins": node.session_parts.login_path.logins._limits,
        "door": node.session_parts.login_path.admission._limits,
    }


async def test_after_a_reload_of_limits_a_node_is_as_one_that_was_started_with_them(autojump_clock: MockClock) -> None:
    defaults = LimitSettings(farewell_seconds=1.0)
    other = {key: getattr(defaults, key) + 1 for key in LIVE_LIMITS} | {"bytes_per_second_per_address_max": 1024}
    async with Rig(limits=other).run() as rig:
        started_with_them = parts(rig.alive)
    async with Rig().run() as rig:
        assert parts(rig.alive) != started_with_them

        assert await reloader(rig, limits=LimitSettings(**other)).reload()

        assert parts(rig.alive) == started_with_them
