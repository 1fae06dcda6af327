// Connections of clients to all nodes.

import { me, repeat, show as ask } from "../api.js";
import { kick } from "./queue.js";
import { bytes, clientCells, h, number, replace, table } from "../dom.js";

const SHOWN = 200;
const LOCAL = "local-administrator";

// A kick would hit the operator itself. Of a long product a node keeps the beginning.
const whose = (one) => (one.user === LOCAL ? h("span", { class: "dim" }, " on the machine of the node") : one.product && navigator.userAgent.startsWith(one.product) && one.user === (me.user ?? "") ? h("span", { class: "dim" }, " such as this page") : null);

export function show(main) {
  const list = table("Connections", [{ title: "Connection" }, { title: "User" }, { title: "Address" }, { title: "Product" }, { title: "Protocol" }, { title: "Subscriptions", number: true }, { title: "In flight", number: true }, { title: "In/s", number: true }, { title: "Out/s", number: true }, { title: "", label: "Actions" }]);
  const notice = h("div", { role: "status" });
  const about = h("span", { class: "dim" });
  const filter = h("input", { type: "search", placeholder: "user, address, protocol, product or node", "aria-label": "Search connections", oninput: () => draw() });
  const sort = h("select", { "aria-label": "Sort by", onchange: () => draw() }, [["id", "connection"], ["in_flight", "in flight"], ["subscriptions", "subscriptions"], ["out", "bytes out"], ["in", "bytes in"]].map(([value, title]) => h("option", { value }, `by ${title}`)));
  main.append(h("h1", null, "Connections"), notice, h("div", { class: "row top" }, filter, sort, about), h("div", { class: "panel flush" }, list.element));
  let rows = [];
  let before = new Map();
  let total = 0;
  function draw() {
    const text = filter.value.toLowerCase();
    const found = rows.filter((one) => !text || `${one.id} ${one.user} ${one.address}:${one.port} ${one.protocol} ${one.product}`.toLowerCase().includes(text));
    if (sort.value !== "id") found.sort((a, b) => (b[sort.value] ?? 0) - (a[sort.value] ?? 0));
    list.rows(found.slice(0, SHOWN).map((one) => h("tr", null, h("td", { class: "mono" }, one.id), h("td", null, one.user || h("span", { class: "dim" }, "no login"), whose(one)), clientCells(one), h("td", null, one.protocol),
      h("td", { class: "n" }, number(one.subscriptions)), h("td", { class: "n" }, number(one.in_flight)), h("td", { class: "n" }, one.in === undefined ? "" : bytes(one.in)), h("td", { class: "n" }, one.out === undefined ? "" : bytes(one.out)),
      h("td", null, me.may.kick && h("button", { type: "button", class: "small bad", "data-key": `kick-${one.id}`, onclick: () => kick({ ...one, session: one.id.split("/")[1] }, () => round.now()) }, "Kick")))), "No connection matches.");
    replace(about, `${number(found.length)} of ${number(total)}${found.length > SHOWN ? `, the first ${SHOWN} are shown` : ""}`);
  }
  let at = 0;
  const round = repeat(5, async () => {
    try {
      const found = await ask("connections", { scope: "mesh" });
      const now = Date.now();
      rows = found.rows.map((one) => {
        const old = before.get(one.id);
        const seconds = (now - at) / 1000;
        return old ? { ...one, in: Math.max(0, one.bytes_in - old.bytes_in) / seconds, out: Math.max(0, one.bytes_out - old.bytes_out) / seconds } : one;
      });
      before = new Map(found.rows.map((one) => [one.id, one]));
      at = now;
      total = found.connections;
      replace(notice, found.nodes_missing.length > 0 && h("div", { class: "notice warn" }, `Without the connections of ${found.nodes_missing.join(", ")}.`));
      draw();
    } catch (error) {
      replace(notice, h("div", { class: "notice bad" }, error.message));
    }
  });
  return round.stop;
}
