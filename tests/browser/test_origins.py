"""Pages of other origins: refused unless the listener lists them; a name that was rebound to the node; long poll."""

from typing import Any

import pytest

from ..support.cluster_wait import eventually
from .conftest import Tab, WebCluster

COUNT = 1000

TRY_ALL = """async (host) => {
    const web = `http://${host}`;
    const socket = (path) => new Promise((resolve) => {
        const socket = new WebSocket(`ws://${host}${path}`, ["v12.stomp"]);
        socket.onopen = () => { socket.close(); resolve(true); };
        socket.onerror = () => resolve(false);
    });
    const stream = (path) => new Promise((resolve) => {
        const source = new EventSource(web + path);
        source.onopen = () => { source.close(); resolve(true); };
        source.onerror = () => { source.close(); resolve(false); };
    });
    const reads = (path, options) => fetch(web + path, options).then((response) => response.ok, () => false);
    const post = (type, options) => reads("/v1/queues/forged/messages",
        { method: "POST", body: "forged", headers: { "content-type": type }, ...options });
    return {
        websocket: await socket("/stomp"),
        "raw websocket": await socket("/stomp/websocket"),
        events: await stream("/v1/fanouts/log/events"),
        script: await reads("/qmq.js"),
        read: await reads("/v1/control/status"),
        "long poll": await reads("/v1/stomp", { method: "POST", headers: { "content-type": "application/json" } }),
        post: await post("application/octet-stream"),
    };
}"""

FORGE = """async (host) => {
    const url = `http://${host}/v1/queues/forged/messages`;
    // The page may not read the response either (Cross-Origin-Resource-Policy): then fetch fails after it was sent.
    const sent = (options) => fetch(url, { method: "POST", mode: "no-cors", ...options }).catch(() => null);
    for (const type of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
        await sent({ body: "forged", headers: { "content-type": type } });
    await sent({ body: new Blob(["forged"]) });
    navigator.sendBeacon(url, "forged");
    const form = document.createElement("form");
    Object.assign(form, { method: "post", action: url, enctype: "text/plain", target: "frame" });
    document.body.insertAdjacentHTML("beforeend", '<iframe name="frame"></iframe>');
    document.body.append(form);
    const loaded = new Promise((resolve) => { document.querySelector("iframe").onload = resolve; });
    form.submit();
    await loaded;
}"""


@pytest.mark.parametrize("place", ["listed", "stranger", "node", "rebound"])
def test_only_pages_of_the_node_and_of_listed_origins_use_the_port(
    tabs: Any, mesh: WebCluster, site: str, stranger: str, place: str
) -> None:
    host = mesh.web("a")
    if place == "rebound":
        # The page came from a server of the attacker; now the same name leads to the node.
        host = host.replace("127.0.0.1", "rebound.example")
        tab = tabs("about:blank")
        tab.page.route(f"http://{host}/attack", lambda route: route.fulfill(body="<p>", content_type="text/html"))
        tab.open(f"http://{host}/attack")
    else:
        tab = tabs({"listed": site, "stranger": stranger, "node": f"http://{host}/livez"}[place])
    served = tab.run(TRY_ALL, host)

    assert set(served.values()) == {place in ("listed", "node")}, served


@pytest.mark.parametrize("place", ["listed", "stranger"])
def test_no_form_of_a_page_sends_a_message(tabs: Any, mesh: WebCluster, site: str, stranger: str, place: str) -> None:
    before = mesh.depth("a", "/queue/forged")
    tab = tabs({"listed": site, "stranger": stranger}[place])
    tab.run(FORGE, mesh.web("a"))

    assert mesh.depth("a", "/queue/forged") == before


def test_event_source_gets_each_message_once_though_its_node_restarts(tab: Tab, mesh: WebCluster) -> None:
    client = mesh.client("b")
    tab.run(
        """async (host) => {
            window.got = [];
            const source = new EventSource(`http://${host}/v1/fanouts/feed/events`);
            source.onmessage = ({ data }) => got.push(JSON.parse(data).body);
            await new Promise((resolve) => { source.onopen = resolve; });
        }""",
        mesh.web("a"),
    )
    client.publish("/fanout/feed", *[b"%d" % number for number in range(COUNT // 2)])
    tab.run("(count) => whole(got, count)", COUNT // 2)
    mesh.kill("a")
    client.publish("/fanout/feed", *[b"%d" % number for number in range(COUNT // 2, COUNT)])
    mesh.start("a")

    got = tab.run("(count) => whole(got, count)", COUNT)
    assert got == [str(number) for number in range(COUNT)]


def test_page_uses_long_poll(tab: Tab, mesh: WebCluster) -> None:
    worked = mesh.client("c").consume("/queue/polled")
    got = tab.run(
        """async (host, count) => {
            const at = `http://${host}/v1/stomp`;
            const headers = { "content-type": "application/octet-stream" };
            const { session } = await (await fetch(at, { method: "POST", headers })).json();
            const send = (body) => fetch(`${at}/${session}`, { method: "POST", headers, body });
            let text = "";
            const receive = async () => { text += await (await fetch(`${at}/${session}?wait_seconds=20`)).text(); };
            await send("CONNECT\\naccept-version:1.2\\nhost:x\\n\\n\\0");
            await send("SUBSCRIBE\\nid:1\\ndestination:/topic/polled\\n\\n\\0");
            await receive();
            const frames = (to) => numbered("polled", count).map((body) => `SEND\\ndestination:${to}\\n\\n${body}\\0`);
            await send(frames("/queue/polled").join(""));
            await send(frames("/topic/polled").join(""));
            while (!text.includes(`polled ${count - 1}\\0`)) await receive();
            const ended = await fetch(`${at}/${session}`, { method: "DELETE" });
            return [text.match(/^MESSAGE$/gm).length, ended.status];
        }""",
        mesh.web("a"),
        COUNT,
    )

    eventually(lambda: len(worked) >= COUNT, lambda: f"c has {len(worked)} of {COUNT}")
    assert got == [COUNT, 204]
