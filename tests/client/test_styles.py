"""What the client does in every style of program: on trio, on asyncio, and with threads, over real sockets."""

import asyncio
import gc
import inspect
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import argon2
import pytest
import trio
import trustme

import qmq.client
import qmq.client.aio
import qmq.client.blocking
from qmq.config import DestinationPolicy, DestinationSettings, User
from qmq.errors import NotConnected, Refused, Stale, TlsFailed
from tests.client.rig import client_context, server_context
from tests.client.styles import STYLES, Style, http_port, nodes

PATIENCE_SECONDS = 20.0
AT = "127.0.0.1:1"
ONE_MESSAGE = DestinationSettings(policies=(DestinationPolicy(pattern="/queue/small", max_messages=1),))
ANN = User(name="ann", password_hash=argon2.PasswordHasher(1, 8, 1).hash("right"), groups=("client",))


@pytest.fixture(params=STYLES)
def style(request: pytest.FixtureRequest) -> Iterator[Style]:
    with STYLES[request.param]() as style:
        yield style


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def waiting_for_room(client: Any) -> int:
    return len(client.runner._line)


def take(messages: Any, count: int) -> list[bytes]:
    bodies = []
    for _ in range(count):
        with messages.receive(timeout_seconds=PATIENCE_SECONDS) as message:
            bodies.append(message.body)
    return bodies


def test_what_is_sent_to_each_kind_of_destination_arrives_with_its_headers(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses) as client:
        for kind in ("queue", "fanout", "topic"):
            with client.subscribe(f"/{kind}/x") as messages:
                receipt = client.send(f"/{kind}/x", kind.encode(), {"colour": "green: light\n"})

                with next(messages) as message:
                    assert (message.body, message.destination) == (kind.encode(), f"/{kind}/x")
                    assert message.headers["colour"] == "green: light\n"
                    assert (message.delivery_count, message.is_redelivered) == (1, False)
                assert receipt == qmq.client.Receipt(copies=None, is_duplicate=False)


def test_threads_share_one_client_and_its_window(style: Style) -> None:
    # Without heart-beats nothing but the calls themselves makes the client write.
    with nodes() as mesh, style.connect(mesh.addresses, window_messages=4, beat_seconds=0) as client:
        with ThreadPoolExecutor(16) as pool:
            sending = [
                pool.submit(client.send, "/queue/q", b"%d" % number, timeout_seconds=PATIENCE_SECONDS)
                for number in range(200)
            ]
        assert {one.result().copies for one in sending} == {None}

        assert client.statistics().unconfirmed_messages == client.statistics().unconfirmed_bytes == 0
        with client.subscribe("/queue/q") as messages, ThreadPoolExecutor(3) as pool:
            bodies = pool.map(lambda share: take(messages, share), (50, 50, 100))
            assert sorted(int(body) for share in bodies for body in share) == list(range(200))


def test_a_large_message_has_its_turn_before_small_ones_that_came_later(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses, window_bytes=1000, redial_seconds_max=0.2) as client:
        mesh.kill("a")
        eventually(lambda: client.statistics().node is None)
        with ThreadPoolExecutor(3) as pool:
            sending = [pool.submit(client.send, "/queue/q", bytes(10), timeout_seconds=PATIENCE_SECONDS)]
            eventually(lambda: client.statistics().unconfirmed_messages == 1)
            sending.append(pool.submit(client.send, "/queue/q", bytes(5000), timeout_seconds=PATIENCE_SECONDS))
            eventually(lambda: waiting_for_room(client) == 1)
            sending.append(pool.submit(client.send, "/queue/q", bytes(20), timeout_seconds=PATIENCE_SECONDS))
            eventually(lambda: waiting_for_room(client) == 2 or client.statistics().unconfirmed_messages == 2)
            mesh.start("a")
            for one in sending:
                one.result()

        with client.subscribe("/queue/q") as messages:
            assert [len(body) for body in take(messages, 3)] == [10, 5000, 20]


def test_a_refused_message_raises_its_code_and_costs_no_connection(style: Style) -> None:
    with nodes(destinations=ONE_MESSAGE) as mesh, style.connect(mesh.addresses) as client:
        client.send("/queue/small", b"fits")

        with pytest.raises(Refused) as refused:
            client.send("/queue/small", b"one too many")

        assert refused.value.code == "queue-full"
        with pytest.raises(ValueError, match="receipt"):
            client.send("/queue/q", b"", {"receipt": "mine"})
        client.send("/queue/other", b"others go on")
        assert client.statistics().logins == 1


def test_a_message_is_settled_once_by_its_block_or_by_hand(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses) as client:
        client.send("/queue/q", b"job")
        with client.subscribe("/queue/q", confirm=True) as messages:
            with pytest.raises(ZeroDivisionError), next(messages):
                raise ZeroDivisionError
            again = messages.receive(timeout_seconds=PATIENCE_SECONDS)
            assert (again.body, again.delivery_count) == (b"job", 2)
            again.nack()
            with messages.receive(timeout_seconds=PATIENCE_SECONDS) as third:
                assert third.ack() == qmq.client.Receipt(copies=None, is_duplicate=False)
                assert third.ack() is None
            with pytest.raises(TimeoutError):
                messages.receive(timeout_seconds=0.5)


def test_a_message_that_is_not_requeued_is_a_dead_letter(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses) as client:
        client.send("/queue/q", b"poison")
        with client.subscribe("/queue/q") as messages, client.subscribe("/queue/dead-letters") as letters:
            next(messages).nack(requeue=False)

            with letters.receive(timeout_seconds=PATIENCE_SECONDS) as letter:
                assert (letter.body, letter.headers["dead-letter-reason"]) == (b"poison", "rejected")


def test_a_transaction_takes_effect_as_a_whole_or_not_at_all(style: Style) -> None:
    with nodes(destinations=ONE_MESSAGE) as mesh, style.connect(mesh.addresses) as client:
        client.send("/queue/in", b"raw")
        with client.subscribe("/queue/in") as messages, client.subscribe("/queue/out") as out:
            with pytest.raises(ZeroDivisionError), client.transaction() as together:
                together.send("/queue/out", b"half")
                raise ZeroDivisionError
            message = next(messages)
            with pytest.raises(Refused), client.transaction() as together:
                together.send("/queue/small", b"fits")
                together.send("/queue/small", b"does not")
                together.ack(message)
            with message, client.transaction(timeout_seconds=PATIENCE_SECONDS) as together:
                together.send("/queue/out", message.body.upper())
                together.ack(message)

            assert take(out, 1) == [b"RAW"]
            assert together.receipt is not None
            with pytest.raises(TimeoutError):
                messages.receive(timeout_seconds=0.2)


def test_requests_get_their_replies_and_a_time_limit(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses) as client, style.connect(mesh.addresses) as worker:

        def work() -> None:
            for request in requests:
                with request:
                    assert request.reply(request.body * 2, {"colour": "green"})

        with worker.subscribe("/queue/work") as requests:
            thread = threading.Thread(target=work)
            thread.start()
            with ThreadPoolExecutor(8) as pool:
                answers = pool.map(lambda number: client.request("/queue/work", b"%d" % number), range(50))
                assert [answer.body for answer in answers] == [b"%d%d" % (number, number) for number in range(50)]
        thread.join()  # the iteration has ended with the block

        with pytest.raises(TimeoutError):
            client.request("/queue/unserved", b"", timeout_seconds=0.2)
        assert client.statistics().waiting_requests == 0


def test_a_fanout_comes_exactly_once_however_often_its_line_breaks(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses, redial_seconds_max=0.2) as client:
        with client.subscribe("/fanout/f", buffer_bytes=5000) as messages:
            for turn in range(3):
                for number in range(20):
                    client.send("/fanout/f", b"%d" % (20 * turn + number))
                seen = take(messages, 10)
                mesh.break_lines()
                seen += take(messages, 10)
                assert seen == [b"%d" % (20 * turn + number) for number in range(20)]
            position = messages.position
        assert client.statistics().logins > 1
        client.send("/fanout/f", b"later")
        with client.subscribe("/fanout/f", start=position) as messages:
            assert take(messages, 1) == [b"later"]


def test_a_queue_message_of_a_broken_line_is_stale_and_comes_again(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses, redial_seconds_max=0.2) as client:
        client.send("/queue/q", b"job")
        with client.subscribe("/queue/q") as messages:
            message = next(messages)
            mesh.break_lines()
            eventually(lambda: client.statistics().logins == 2)

            assert message.is_stale
            with pytest.raises(Stale):
                message.ack()
            assert take(messages, 1) == [b"job"]


def test_a_client_goes_on_at_another_node_when_its_own_dies_or_is_silent(style: Style) -> None:
    with nodes("abc") as mesh, style.connect(mesh.addresses, beat_seconds=0.3) as client:
        with client.subscribe("/fanout/f") as messages:
            client.send("/fanout/f", b"1")
            assert mesh.of(client) == "a"
            mesh.kill("a")
            client.send("/fanout/f", b"2")
            assert mesh.of(client) == "b"
            mesh.silence("b")
            client.send("/fanout/f", b"3")
            assert mesh.of(client) == "c"

            assert set(take(messages, 3)) == {b"1", b"2", b"3"}


def test_a_quiet_line_is_kept_alive_while_the_application_is_busy(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses, beat_seconds=0.2) as client:
        time.sleep(1.5)
        client.send("/topic/t", b"")
        assert client.statistics().logins == 1


def test_with_all_nodes_down_calls_wait_up_to_their_time_limit_and_then_go_on(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses, redial_seconds_max=0.2, window_messages=1) as client:
        with client.subscribe("/queue/q") as messages:
            mesh.kill("a")
            eventually(lambda: client.statistics().node is None)
            for call in (
                lambda: client.send("/queue/q", b"given up", timeout_seconds=0.1),
                lambda: client.request("/queue/q", b"given up", timeout_seconds=0.1),
                lambda: messages.receive(timeout_seconds=0.1),
                client.subscribe("/queue/other", timeout_seconds=0.1).__enter__,
            ):
                with pytest.raises(TimeoutError, match=r"not within 0\.1 s"):
                    call()
            with pytest.raises(TimeoutError), client.transaction(timeout_seconds=0.1) as together:
                together.send("/queue/q", b"given up")
            assert (client.statistics().unconfirmed_messages, client.statistics().subscriptions) == (0, 1)

            with ThreadPoolExecutor(1) as pool:
                kept = pool.submit(client.send, "/queue/q", b"kept")
                mesh.start("a")
                kept.result(PATIENCE_SECONDS)
            assert take(messages, 1) == [b"kept"]


def test_a_waiting_receive_of_a_left_subscription_ends(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses) as client, ThreadPoolExecutor(1) as pool:
        with client.subscribe("/queue/q") as messages:
            ended = pool.submit(list, messages)
        assert ended.result(PATIENCE_SECONDS) == []
        with pytest.raises(NotConnected, match="the subscription was stopped or left"):
            messages.receive()


def test_a_stopped_subscription_takes_no_more_messages_and_settles_those_it_has(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses) as client, ThreadPoolExecutor(1) as pool:
        client.send("/queue/q", b"one")
        with client.subscribe("/queue/q", prefetch=2, confirm=True) as messages:
            with messages.receive(timeout_seconds=PATIENCE_SECONDS) as one:
                ended = pool.submit(list, messages)
                messages.stop()
                assert ended.result(PATIENCE_SECONDS) == []
                client.send("/queue/q", b"two")
                with pytest.raises(NotConnected, match="the subscription was stopped or left"):
                    messages.receive()
            assert not one.is_stale and one.ack() is None

        with client.subscribe("/queue/q") as messages:
            assert take(messages, 1) == [b"two"]


def test_a_subscription_that_is_stopped_while_no_node_has_it_ends(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses) as client, ThreadPoolExecutor(1) as pool:
        mesh.kill("a")
        eventually(lambda: client.statistics().node is None)
        subscription = client.subscribe("/queue/q")

        def take_all() -> list[Any]:
            with subscription as messages:
                return list(messages)

        ended = pool.submit(take_all)
        eventually(lambda: client.statistics().subscriptions == 1)
        subscription.stop()

        assert ended.result(PATIENCE_SECONDS) == []
        assert client.statistics().subscriptions == 0


def test_without_a_node_connect_warns_after_one_round_and_ends_in_time(
    style: Style, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NotConnected, match=r"no node can be reached within 1 s\. 127\.0\.0\.1:1: .*; 127\.0\.0\.1:2: "):
        with style.connect(["127.0.0.1:1", "127.0.0.1:2"], connect_timeout_seconds=1):
            raise AssertionError("no node is there")

    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("! no node can be reached; trying again until one does. 127.0.0.1:1: ")


def test_a_client_that_every_node_refuses_ends_with_the_refusal(style: Style) -> None:
    with nodes(users=(ANN,)) as mesh:
        with pytest.raises(Refused, match="login-failed"):
            with style.connect(mesh.addresses, login="ann", passcode="wrong"):
                pass
        given = ["right", "right"]
        with style.connect(mesh.addresses, login="ann", passcode=given.pop) as client:
            mesh.break_lines()
            eventually(lambda: client.statistics().logins == 2)
            client.send("/queue/q", b"")


def test_large_messages_travel_over_tls(style: Style) -> None:
    authority = trustme.CA()
    body = bytes(range(256)) * 4000
    with nodes(tls=server_context(authority, "127.0.0.1")) as mesh:
        with style.connect(mesh.addresses, tls=client_context(authority)) as client:
            with client.subscribe("/queue/q") as messages, ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda _: client.send("/queue/q", body), range(6)))
                assert take(messages, 6) == [body] * 6


def no_context(_: trustme.CA) -> None:
    return None


@pytest.mark.parametrize(
    ("server", "client", "said"),
    [
        ("127.0.0.1", lambda _: client_context(trustme.CA()), "its certificate is not trusted"),
        ("elsewhere.example", client_context, "its certificate is not trusted: .*127.0.0.1"),
        ("", client_context, "is TLS on at this address?"),
    ],
    ids=["another authority", "another name", "plaintext port"],
)
def test_trouble_with_tls_is_said_and_not_tried_for_ever(
    style: Style, server: str, client: Callable[[trustme.CA], ssl.SSLContext], said: str
) -> None:
    authority = trustme.CA()
    with nodes(tls=server_context(authority, server) if server else None) as mesh:
        with pytest.raises(TlsFailed, match=f"{mesh.addresses[0]}: .*{said}"):
            with style.connect(mesh.addresses, tls=client(authority), connect_timeout_seconds=PATIENCE_SECONDS):
                pass


def test_a_certificate_that_is_asked_for_and_missing_is_said(style: Style) -> None:
    authority = trustme.CA()
    server = server_context(authority, "127.0.0.1")
    server.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(server)
    with nodes(tls=server) as mesh:
        with pytest.raises(NotConnected) as ended:
            with style.connect(mesh.addresses, tls=client_context(authority), connect_timeout_seconds=2):
                pass
    assert mesh.addresses[0] in str(ended.value)


def test_plaintext_to_a_port_with_tls_says_that_it_may_need_it(style: Style) -> None:
    with nodes(tls=server_context(trustme.CA(), "127.0.0.1")) as mesh:
        with pytest.raises(NotConnected, match="TLS"):
            with style.connect(mesh.addresses, connect_timeout_seconds=1):
                pass


def test_an_exception_of_the_block_leaves_the_client_as_it_is_and_closes_it(style: Style) -> None:
    with nodes() as mesh:
        with pytest.raises(ZeroDivisionError):
            with style.connect(mesh.addresses) as client:
                raise ZeroDivisionError
        with pytest.raises(NotConnected):
            client.send("/queue/q", b"")


def test_a_durable_subscription_continues_where_its_name_stands(style: Style) -> None:
    with nodes() as mesh:
        for expected in ([b"0", b"1"], [b"2", b"3"]):
            with style.connect(mesh.addresses, client_id="billing") as client:
                with client.subscribe("/fanout/f", durable="invoices", confirm=True) as messages:
                    for body in expected:
                        client.send("/fanout/f", body)
                    assert take(messages, 2) == expected


@pytest.mark.parametrize("addresses", [[], ["here"], ["host:0"]])
def test_what_is_no_list_of_nodes_is_refused(style: Style, addresses: list[str]) -> None:
    with pytest.raises(ValueError):
        with style.connect(addresses):
            pass


@pytest.mark.parametrize(
    ("addresses", "options", "said"),
    [
        (AT, {"colour": "green"}, r"^connect\(\) has no option 'colour'$"),
        (AT, {"tls": True}, r"^tls must be an ssl\.SSLContext, not bool$"),
        (("127.0.0.1", 1), {}, r"^'127\.0\.0\.1' is not host:port"),
        ([("127.0.0.1", 1)], {}, r"^\('127\.0\.0\.1', 1\) is no address: it is text"),
        (AT, {"farewell_seconds": -1}, "farewell_seconds are not negative"),
        (AT, {"attempt_seconds": float("nan")}, "attempt_seconds are positive"),
        (AT, {"beat_seconds": float("nan")}, "beat_seconds and"),
    ],
)
def test_what_connect_cannot_use_is_an_error_that_names_it(
    style: Style, addresses: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        with style.connect(addresses, **options):
            pass


def test_a_port_of_http_is_said(style: Style) -> None:
    with http_port() as address, pytest.raises(NotConnected, match="answers HTTP, not STOMP"):
        with style.connect(address, connect_timeout_seconds=1):
            pass


# What works only inside its block


def test_a_subscription_or_a_transaction_outside_of_its_block_is_an_error(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses) as client:
        outside = client.subscribe("/queue/q")
        for use in (outside.receive, lambda: next(outside), lambda: outside.receive(timeout_seconds=1)):
            with pytest.raises(RuntimeError, match="subscription works only inside its block: enter it with `"):
                use()
        client.send("/queue/q", b"job")
        with client.subscribe("/queue/q") as messages, messages.receive(timeout_seconds=PATIENCE_SECONDS) as message:
            never_entered = client.transaction()
            with client.transaction() as left:
                left.send("/queue/other", b"")
            for together in (never_entered, left):
                with pytest.raises(RuntimeError, match="transaction works only inside its block: enter it with `"):
                    together.send("/queue/q", b"")
                with pytest.raises(RuntimeError, match="transaction works only inside its block: enter it with `"):
                    together.ack(message)


@pytest.mark.parametrize(
    ("connect", "block"),
    [
        (qmq.client.connect, "async with"),
        (qmq.client.aio.connect, "async with"),
        (qmq.client.blocking.connect, "with"),
    ],
)
def test_a_call_of_what_connect_returns_says_to_enter_it(connect: Callable[[str], Any], block: str) -> None:
    with pytest.raises(RuntimeError, match=f"enter it with `{block}`"):
        connect(AT).send("/queue/q", b"")
    assert not hasattr(connect(AT), "colour")


# Arguments that make no sense


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_time_limit_that_is_negative_is_an_error(style: Style, seconds: float) -> None:
    with nodes() as mesh, style.connect(mesh.addresses) as client, client.subscribe("/queue/q") as messages:

        def commit() -> None:
            with client.transaction(timeout_seconds=seconds) as together:
                together.send("/queue/q", b"")

        for use in (
            commit,
            lambda: client.send("/queue/q", b"", timeout_seconds=seconds),
            lambda: client.request("/queue/q", b"", timeout_seconds=seconds),
            lambda: messages.receive(timeout_seconds=seconds),
            client.subscribe("/queue/other", timeout_seconds=seconds).__enter__,
        ):
            with pytest.raises(ValueError, match="timeout_seconds is not negative"):
                use()
        gc.collect()
        assert client.statistics().unconfirmed_messages == client.statistics().waiting_requests == 0


def test_a_body_that_is_no_bytes_is_an_error_of_the_call(style: Style) -> None:
    with nodes() as mesh, style.connect(mesh.addresses) as client:
        with client.transaction() as together:
            for use in (client.send, client.request, together.send):
                with pytest.raises(TypeError, match="^body must be bytes, not str$"):
                    use("/queue/q", "text")
        with client.subscribe("/queue/q") as messages:
            client.send("/queue/q", bytearray(b"mutable"))
            assert take(messages, 1) == [b"mutable"]


# A module that is for another style


async def enter(context: Any) -> None:
    async with context:
        raise AssertionError("it is for another style")


def enter_plainly(context: Any) -> None:
    with context:
        raise AssertionError("it is for another style")


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda: asyncio.run(enter(qmq.client.connect(AT))), "runs on asyncio: import qmq.client.aio$"),
        (lambda: asyncio.run(enter(qmq.client.blocking.connect(AT))), "runs on asyncio: import qmq.client.aio$"),
        (lambda: trio.run(enter, qmq.client.aio.connect(AT)), "runs on trio: import qmq.client$"),
        (lambda: trio.run(enter, qmq.client.blocking.connect(AT)), "runs on trio: import qmq.client$"),
        (lambda: enter_plainly(qmq.client.connect(AT)), "runs without an event loop: import qmq.client.blocking$"),
        (lambda: enter_plainly(qmq.client.aio.connect(AT)), "runs without an event loop: import qmq.client.blocking$"),
    ],
)
def test_the_client_of_another_style_says_which_module_to_import(use: Callable[[], None], said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        use()


def test_with_instead_of_async_with_is_said() -> None:
    async def use() -> None:
        enter_plainly(qmq.client.aio.connect(AT))

    with pytest.raises(RuntimeError, match="is used with `async with`"):
        asyncio.run(use())


def test_on_asyncio_the_socket_is_closed_when_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Exception | None] = []
    lost = qmq.client.aio.Wire.connection_lost

    def connection_lost(wire: qmq.client.aio.Wire, error: Exception | None) -> None:
        closed.append(error)
        lost(wire, error)

    async def use(addresses: list[str], *, fails: bool) -> None:
        with pytest.raises(ZeroDivisionError if fails else NotConnected):
            async with qmq.client.aio.connect(addresses) as client:
                assert closed == []
                if fails:
                    raise ZeroDivisionError
            await client.send("/queue/q", b"")
        assert closed == [None]

    monkeypatch.setattr(qmq.client.aio.Wire, "connection_lost", connection_lost)
    with nodes() as mesh:
        for fails in (True, False):
            closed.clear()
            asyncio.run(use(mesh.addresses, fails=fails))


def test_a_client_from_before_a_fork_says_to_connect_in_the_child() -> None:
    with nodes() as mesh:
        script = f"""
import os, qmq.client.blocking
with qmq.client.blocking.connect({mesh.addresses!r}) as client:
    if os.fork() == 0:
        try:
            client.send("/queue/q", b"")
        except RuntimeError as error:
            os._exit(7 if "connect in the child" in str(error) else 1)
        os._exit(2)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("7\n", "")


def test_a_child_of_a_fork_waits_for_no_thread_of_its_parent() -> None:
    """A thread of the parent holds the lock at the fork, which the child sees held for ever."""
    with nodes() as mesh:
        script = f"""
import os, signal, qmq.client.blocking
with qmq.client.blocking.connect({mesh.addresses!r}) as client, client.subscribe("/queue/q") as messages:
    client.send("/queue/q", b"")
    message = messages.receive().__enter__()
    together = client.transaction().__enter__()
    with client.runner.locked():
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            uses = [
                client.statistics,
                lambda: messages.position,
                messages.receive,
                lambda: message.__exit__(None, None, None),
                lambda: together.ack(message),
                lambda: client.send("/queue/q", b""),
            ]
            said = 0
            for use in uses:
                try:
                    use()
                except RuntimeError as error:
                    said += "connect in the child" in str(error)
            message.__enter__().__exit__(SystemExit, SystemExit(), None)
            messages.__exit__(None, None, None)
            try:
                with qmq.client.blocking.connect({mesh.addresses!r}) as own:
                    own.send("/queue/q", b"")
            finally:
                os._exit(said)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("6\n", "")


@pytest.mark.parametrize(
    ("module", "others"),
    [("qmq.client", "trio asyncio"), ("qmq.client.blocking", "trio asyncio"), ("qmq.client.aio", "trio")],
)
def test_a_style_imports_no_event_loop_of_another(module: str, others: str) -> None:
    check = f"import sys, {module}; print([one for one in {others.split()} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=Path(__file__).parents[2])

    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert {"connect", "Client", "Message", "Subscription", "Transaction", "Receipt", "Statistics"} <= set(
        dir(sys.modules[module])
    )


@pytest.mark.parametrize("name", ["Client", "Message", "Subscription", "Transaction"])
def test_what_is_awaited_in_one_style_has_the_same_arguments_and_words_where_it_blocks(name: str) -> None:
    one, other = getattr(qmq.client, name), getattr(qmq.client.blocking, name)
    awaited = {call for call, value in vars(one).items() if call[0] != "_" and inspect.iscoroutinefunction(value)}

    for call in awaited - {"commit", "leave", "request_delivery"}:
        here, there = (list(inspect.signature(getattr(side, call)).parameters) for side in (one, other))
        assert here == there, f"{name}.{call}"
        assert inspect.getdoc(getattr(one, call)) == inspect.getdoc(getattr(other, call))
    undocumented = {call for call, value in vars(other).items() if call[0] != "_" and not inspect.getdoc(value)}
    assert undocumented == set()
