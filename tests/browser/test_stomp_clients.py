"""Clients of others: @stomp/stompjs over WebSocket, and the old stomp.js."""

from typing import Any

from ..support.cluster_bodies import bodies
from ..support.cluster_wait import eventually
from .conftest import Tab, WebCluster

COUNT = 1000
PATTERN_BYTES = 1 << 20
STOMPJS = "@stomp/stompjs/bundles/stomp.umd.js"
STOMP_JS = "stompjs/lib/stomp.js"

START = """async (urls, options) => {
    window.life = [];
    window.connections = 0;
    window.beats = { PING: 0, PONG: 0 };
    const factory = (url) => new WebSocket(url, ["v12.stomp"]);
    window.client = new StompJs.Client({
        webSocketFactory: () => factory(urls[connections++ % urls.length]),
        reconnectDelay: 100,
        debug: (text) => { const beat = /PING|PONG/.exec(text); if (beat) beats[beat[0]]++; },
        ...options,
        onConnect: () => { life.push("connected"); window.onUp?.(); },
        onStompError: ({ headers }) => life.push(headers["error-code"]),
        onWebSocketClose: ({ code, reason }) => life.push(`closed ${code} ${reason}`),
    });
    window.confirmed = (destination, body, headers = {}) => new Promise((resolve) => {
        const receipt = `r${Math.random()}`;
        client.watchForReceipt(receipt, resolve);
        const form = typeof body === "string" ? { body } : { binaryBody: body };
        client.publish({ destination, headers: { ...headers, receipt }, ...form });
    });
    client.activate();
    if (!options.connectHeaders) await until(() => client.connected, () => `not connected: ${life}`);
}"""


def started(tab: Tab, urls: list[str], **options: Any) -> Tab:
    """The page with a client over WebSocket."""
    tab.load(STOMPJS)
    tab.run(START, urls, {"heartbeatIncoming": 0, "heartbeatOutgoing": 0, **options})
    return tab


def test_a_thousand_messages_pass_each_way(tab: Tab, mesh: WebCluster) -> None:
    name = "stompjs"
    worked = mesh.client("c").consume(f"/queue/{name}")
    started(tab, mesh.urls("a"))
    tab.run(
        """async (name, count) => {
            window.got = [];
            client.subscribe(`/fanout/${name}`, ({ body }) => got.push(body), { "x-stream-offset": "first" });
            await Promise.all(numbered("page 100 % grün %41", count).map((body) => confirmed(`/queue/${name}`, body)));
        }""",
        name,
        COUNT,
    )
    mesh.client("b").publish(f"/fanout/{name}", *[f"node 100 % grün %41 {n}".encode() for n in range(COUNT)])

    got = tab.run("(count) => whole(got, count)", COUNT)
    eventually(lambda: len(worked) >= COUNT, lambda: f"c has {len(worked)} of {COUNT}")
    assert bodies(worked) == [f"page 100 % grün %41 {n}".encode() for n in range(COUNT)]
    assert got == [f"node 100 % grün %41 {n}" for n in range(COUNT)]


def test_a_megabyte_of_text_passes_unchanged(tab: Tab, mesh: WebCluster) -> None:
    started(tab, mesh.urls("a"))
    is_same = tab.run(
        """async (size) => {
            const body = "grün ☃ \\u0001\\n%\\\\\\"".repeat(size / 16);
            const got = [];
            client.subscribe("/topic/megabyte", (message) => got.push(message.body));
            await confirmed("/topic/megabyte", body);
            await until(() => got.length, "nothing came");
            return got[0] === body;
        }""",
        PATTERN_BYTES,
    )

    assert is_same


def test_bodies_of_bytes_pass_over_websocket(tab: Tab, mesh: WebCluster) -> None:
    started(tab, mesh.urls("a"))
    are_same = tab.run(
        """async (size) => {
            const got = [];
            client.subscribe("/queue/stompjs-bytes", (message) => got.push(message.binaryBody));
            for (const one of [0, 256, size]) await confirmed("/queue/stompjs-bytes", pattern(one));
            await until(() => got.length === 3, () => `${got.length} came`);
            return got.map((body, at) => isPattern(body, [0, 256, size][at]));
        }""",
        PATTERN_BYTES,
    )

    assert are_same == [True] * 3


def test_idle_client_and_node_send_heartbeats(tab: Tab, mesh: WebCluster) -> None:
    # The client leaves a node that is silent for twice as long; a busy machine may hold it up for a while.
    started(tab, mesh.urls("a"), heartbeatIncoming=2500, heartbeatOutgoing=1000)
    life = tab.run(
        """async () => {
            await until(() => Math.min(beats.PING, beats.PONG) >= 2, () => JSON.stringify(beats));
            return life;
        }"""
    )

    assert life == ["connected"]


def test_client_goes_to_another_node_when_its_own_dies(tab: Tab, mesh: WebCluster) -> None:
    started(tab, mesh.urls("a", "b"))
    tab.run(
        """async () => {
            window.got = [];
            window.onUp = () => client.subscribe("/queue/elsewhere", ({ body }) => got.push(body));
            onUp();
            await confirmed("/queue/elsewhere", "one");
            await until(() => got.length === 1, "nothing came");
        }"""
    )
    mesh.kill("a")
    got = tab.run(
        """async () => {
            await until(() => life.length === 3, () => `${life}`);
            await confirmed("/queue/elsewhere", "two");
            await until(() => got.length === 2, () => `${got}`);
            return [got, life[2]];
        }"""
    )

    assert got == [["one", "two"], "connected"]


def test_login_is_refused_with_the_code_of_the_error(tab: Tab, mesh: WebCluster) -> None:
    started(tab, mesh.urls("a"), connectHeaders={"login": "ann", "passcode": "wrong"}, reconnectDelay=0)

    life = tab.run("async () => { await until(() => life.length === 2, () => `${life}`); return life; }")
    assert life[0] == "login-failed"
    assert life[1].startswith("closed 1000 ")


def test_destination_that_is_not_allowed_is_refused(tab: Tab, mesh: WebCluster) -> None:
    started(tab, mesh.urls("a"), reconnectDelay=0)
    tab.run("() => client.publish({ destination: '/queue/locked', body: 'x' })")

    life = tab.run("async () => { await until(() => life.length === 3, () => `${life}`); return life; }")
    assert life[:2] == ["connected", "not-allowed"]


def test_what_a_closed_page_has_not_acknowledged_goes_to_another_client(tab: Tab, mesh: WebCluster) -> None:
    queue = "/queue/left"
    mesh.client("b").publish(queue, *[b"%d" % number for number in range(20)])
    started(tab, mesh.urls("a"))
    tab.run(
        """async (queue) => {
            const got = [];
            const headers = { ack: "client-individual", "prefetch-count": "20" };
            client.subscribe(queue, (message) => got.push(message), headers);
            await until(() => got.length === 20, () => `${got.length} came`);
            for (const message of got.slice(0, 5)) message.ack();
            await confirmed("/topic/none", "");
        }""",
        queue,
    )
    tab.page.close()
    worked = mesh.client("b").consume(queue)

    eventually(lambda: len(worked) >= 15, lambda: f"b has {len(worked)} of 15")
    assert sorted(bodies(worked), key=int) == [b"%d" % number for number in range(5, 20)]


def test_the_old_stomp_js_works_with_text(tab: Tab, mesh: WebCluster) -> None:
    tab.load(STOMP_JS)
    got = tab.run(
        """async (url, count) => {
            const client = Stomp.client(url);
            client.debug = null;
            client.heartbeat = { incoming: 10000, outgoing: 1000 };
            const got = [];
            await new Promise((resolve, reject) => client.connect({}, resolve, reject));
            client.subscribe("/queue/old", (message) => { got.push(message.body); message.ack(); }, { ack: "client" });
            for (const body of numbered("grün", count)) client.send("/queue/old", {}, body);
            await until(() => got.length >= count, () => `${got.length} came`);
            return got;
        }""",
        mesh.urls("a")[0],
        COUNT,
    )

    assert got == [f"grün {number}" for number in range(COUNT)]
