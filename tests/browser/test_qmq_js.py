"""The client of the nodes themselves, qmq.js: messages both ways, a node that dies, refusals, and pages that close."""

from collections.abc import Iterator
from typing import Any

import pytest

from ..support.cluster_bodies import bodies
from ..support.cluster_wait import eventually
from .conftest import PASSCODE, Tab, WebCluster

COUNT = 1000
PATTERN_BYTES = 1 << 20

CONNECT = """async (script, urls, options) => {
    const { connect } = await import(script);
    window.states = [];
    const onState = (state, detail) => states.push([state, detail?.code ?? detail]);
    window.mesh = connect(urls, { ...options, onState });
}"""


COUNT_BEATS = """() => {
    window.beats = { sent: 0, received: 0 };
    const isBeat = (data) => data === "\\n" || (data.byteLength === 1 && new Uint8Array(data)[0] === 10);
    window.WebSocket = class extends WebSocket {
        constructor(...given) {
            super(...given);
            this.addEventListener("message", ({ data }) => { beats.received += isBeat(data); });
        }
        send(data) { beats.sent += isBeat(data); super.send(data); }
    };
}"""


@pytest.fixture(scope="module", autouse=True)
def idle(browser: Any, cluster: WebCluster, site: str) -> Iterator[Tab]:
    """A page that is connected with node c, and counts heartbeats."""
    cluster.make_healthy()
    with browser.new_context() as context:
        tab = Tab(context.new_page()).open(site)
        tab.run(COUNT_BEATS)
        yield connected(tab, cluster, "c")


def connected(tab: Tab, mesh: WebCluster, *names: str, **options: Any) -> Tab:
    """The page with a client that goes to these nodes in turn; all without names."""
    tab.run(CONNECT, f"http://{mesh.web('b')}/qmq.js", mesh.urls(*names), options)
    return tab


def test_a_thousand_messages_pass_each_way(tab: Tab, mesh: WebCluster) -> None:
    worked = mesh.client("c").consume("/queue/from-page")
    connected(tab, mesh)
    tab.run("() => { window.got = []; mesh.subscribe('/fanout/to-page', (message) => got.push(message.body)); }")
    sent = tab.run(
        """async (count) => {
            const sends = numbered("page", count).map((body) => mesh.send("/queue/from-page", body));
            return (await Promise.all(sends)).length;
        }""",
        COUNT,
    )
    mesh.client("c").publish("/fanout/to-page", *[f"node {number}".encode() for number in range(COUNT)])

    got = tab.run("(count) => whole(got, count)", COUNT)
    eventually(lambda: len(worked) >= COUNT, lambda: f"c has {len(worked)} of {COUNT}")
    assert sent == COUNT
    assert bodies(worked) == [f"page {number}".encode() for number in range(COUNT)]
    assert got == [f"node {number}" for number in range(COUNT)]


def test_bodies_of_bytes_and_of_a_megabyte_pass_unchanged(tab: Tab, mesh: WebCluster) -> None:
    connected(tab, mesh)
    whole = tab.run(
        """async (size) => {
            const got = [];
            mesh.subscribe("/queue/bytes", (message) => got.push(message));
            for (const one of [0, 1, 256, size]) await mesh.send("/queue/bytes", pattern(one));
            await mesh.send("/queue/bytes", "grün ☃ \\0".repeat(size / 16), { kind: "a:b\\\\c\\nd", constructor: "x" });
            await until(() => got.length === 5, () => `${got.length} came`);
            const text = got.pop();
            return [
                got.map((message, at) => isPattern(message.bytes, [0, 1, 256, size][at])),
                text.body === "grün ☃ \\0".repeat(size / 16),
                text.headers.kind,
                text.headers.constructor,
            ];
        }""",
        PATTERN_BYTES,
    )

    assert whole == [[True] * 4, True, "a:b\\c\nd", "x"]


def test_nothing_is_lost_or_doubled_when_the_node_of_a_page_dies(tab: Tab, mesh: WebCluster) -> None:
    connected(tab, mesh, "a", "b", "c")
    tab.run(
        """async (count) => {
            await until(() => states.length, "not connected");
            window.got = [];
            window.confirmed = 0;
            window.failed = [];
            mesh.subscribe("/fanout/moves", (message) => got.push(message.body));
            const bodies = numbered("move", count);
            (async () => {
                for (let at = 0; at < count; at += 50) {
                    const sends = bodies.slice(at, at + 50).flatMap((body) =>
                        [mesh.send("/fanout/moves", body), mesh.send("/queue/moves", body)]);
                    for (const send of sends) send.then(() => confirmed++, (error) => failed.push(String(error)));
                    await Promise.race([Promise.allSettled(sends), new Promise((go) => setTimeout(go, 200))]);
                }
            })();
            await until(() => got.length > 100, "nothing came");
        }""",
        COUNT,
    )
    mesh.kill("a")
    got = tab.run(
        """async (count) => {
            await until(() => confirmed + failed.length === 2 * count, () => `${confirmed} were confirmed`, 60);
            await until(() => got.length >= count, () => `${got.length} came`);
            return { got, failed, states };
        }""",
        COUNT,
    )
    mesh.make_healthy()
    mesh.wait_until_same()
    late = tab.run("() => got.length")
    worked = mesh.client("b").consume("/queue/moves")
    eventually(lambda: len(worked) >= COUNT, lambda: f"b has {len(worked)} of {COUNT}")

    wanted = [f"move {number}" for number in range(COUNT)]
    assert got["failed"] == []
    assert [state for state, _ in got["states"]][:3] == ["connected", "disconnected", "connected"]
    assert sorted(got["got"]) == sorted(wanted)
    assert late == COUNT
    assert sorted(bodies(worked)) == sorted(body.encode() for body in wanted)


def test_a_feed_from_next_gets_what_is_sent_while_it_moves(tab: Tab, mesh: WebCluster) -> None:
    client = mesh.client("c")
    client.publish("/fanout/next", b"old")
    mesh.wait_until_same()
    connected(tab, mesh, "a", "b")
    tab.run(
        """async () => {
            window.got = [];
            mesh.subscribe("/fanout/next", (message) => got.push(message.body), { from: "next" });
            await mesh.send("/control/status");
            await mesh.send("/control/status");
        }"""
    )
    mesh.kill("a")
    client.publish("/fanout/next", b"new")

    assert tab.run("async () => { await until(() => got.length, 'nothing came'); return got; }") == ["new"]


def test_wrong_passcode_ends_the_client(tab: Tab, mesh: WebCluster) -> None:
    connected(tab, mesh, login="ann", passcode="wrong")
    said = tab.run(
        """async () => {
            const error = await mesh.send("/queue/x", "x").catch((error) => error);
            const later = await mesh.send("/queue/x", "x").catch((error) => error);
            return [error.code, later.code, states];
        }"""
    )

    assert said == ["login-failed", "closed", [["refused", "login-failed"]]]


def test_right_passcode_is_accepted(tab: Tab, mesh: WebCluster) -> None:
    connected(tab, mesh, login="ann", passcode=PASSCODE)

    assert tab.run("async () => Object.keys(await mesh.send('/queue/of-ann', 'x')).includes('receipt-id')")


def test_what_is_not_allowed_is_refused_and_the_connection_stays(tab: Tab, mesh: WebCluster) -> None:
    connected(tab, mesh)
    said = tab.run(
        """async () => {
            mesh.subscribe("/queue/locked", () => {});
            const error = await mesh.send("/fanout/locked", "x").catch((error) => error);
            await mesh.send("/queue/open", "x");
            return [error.code, states.map(([state, code]) => state === "refused" ? code : state)];
        }"""
    )

    assert said == ["not-allowed", ["connected", "not-allowed"]]


def test_body_over_the_limit_is_refused_once(tab: Tab, mesh: WebCluster) -> None:
    connected(tab, mesh, "a")
    said = tab.run(
        """async () => {
            const error = await mesh.send("/queue/large", new Uint8Array(17 << 20)).catch((error) => error);
            await mesh.send("/queue/large", "x");
            return [error.code, states.map(([state]) => state)];
        }"""
    )

    assert said[0] == "body-too-large"
    assert said[1].count("disconnected") <= 1


def test_handler_that_throws_stops_no_other_message(tab: Tab, mesh: WebCluster) -> None:
    connected(tab, mesh)
    got = tab.run(
        """async () => {
            const got = [];
            mesh.subscribe("/fanout/throws", ({ body }) => {
                got.push(body);
                if (body === "0") throw new Error("thrown");
            });
            await Promise.all([..."0123"].map((body) => mesh.send("/fanout/throws", body)));
            await until(() => got.length === 4, () => `${got.length} came`);
            return got;
        }"""
    )

    assert got == ["0", "1", "2", "3"]
    assert tab.errors == ["thrown"]
    tab.errors.clear()


def test_what_a_closed_page_has_not_acknowledged_goes_to_another_client(tab: Tab, mesh: WebCluster) -> None:
    mesh.client("b").publish("/queue/half-done", *[b"%d" % number for number in range(20)])
    connected(tab, mesh, "a")
    tab.run(
        """async () => {
            const got = [];
            const options = { ack: "client-individual", headers: { "prefetch-count": 20 } };
            mesh.subscribe("/queue/half-done", (message) => { if (got.push(message) <= 5) message.ack(); }, options);
            await until(() => got.length === 20, () => `${got.length} came`);
            await mesh.send("/control/status");
        }"""
    )
    tab.page.close()
    worked = mesh.client("b").consume("/queue/half-done")

    eventually(lambda: len(worked) >= 15, lambda: f"b has {len(worked)} of 15")
    assert sorted(bodies(worked), key=int) == [b"%d" % number for number in range(5, 20)]
    assert all(message.is_redelivered for message in worked)


def test_a_page_of_a_node_needs_no_origin(tabs: Any, mesh: WebCluster) -> None:
    tab = tabs(f"http://{mesh.web('a')}/livez")
    connected_from = tab.run(
        """async (url) => {
            const { connect } = await import("/qmq.js");
            const mesh = connect(url);
            const receipt = await mesh.send("/queue/own", "x");
            mesh.close();
            return Boolean(receipt);
        }""",
        mesh.urls("a")[0],
    )

    assert connected_from


def test_closed_client_stays_closed(tab: Tab, mesh: WebCluster) -> None:
    connected(tab, mesh, "a")
    codes = tab.run(
        """async () => {
            mesh.close();
            const send = await mesh.send("/queue/x", "x").catch((error) => error.code);
            let subscribe = "";
            try { mesh.subscribe("/queue/x", () => {}); } catch (error) { subscribe = error.code; }
            return [send, subscribe];
        }"""
    )

    assert codes == ["closed", "closed"]


def test_idle_client_and_node_send_heartbeats(mesh: WebCluster, idle: Tab) -> None:
    """The page is idle since the first test of this file."""
    idle.run("async () => { await until(() => Math.min(beats.sent, beats.received), () => JSON.stringify(beats)); }")

    assert idle.run("() => states.map(([state]) => state)") == ["connected"]
