// Fanouts: logs that every node has a copy of.

import { repeat, show as ask } from "../api.js";
import { bytes, h, number, rate, replace, table } from "../dom.js";

// A page of the list of a kind by name: the node sends them in this order. Returns what stops it.
export function listPage(main, { title, kind, columns, cells, empty, intro }) {
  const list = table(title, columns);
  const notice = h("div", { role: "status" });
  const filter = h("input", { type: "search", placeholder: "beginning of a name", "aria-label": `Show ${title.toLowerCase()} whose names begin so`, oninput: () => { starts = [""]; round.now(); } });
  const next = h("button", { type: "button", onclick: () => { starts.push(following); round.now(); } }, "Next");
  const before = h("button", { type: "button", onclick: () => { starts.pop(); round.now(); } }, "Previous");
  let starts = [""];
  let following = "";
  let known = {};
  let at = 0;
  main.append(h("h1", null, title), intro && h("p", { class: "dim" }, intro), notice, h("div", { class: "row top" }, filter, h("span", { class: "grow" }), before, next), h("div", { class: "panel flush" }, list.element));
  const round = repeat(5, async () => {
    try {
      const prefix = filter.value ? `/${encodeURIComponent(filter.value)}*` : "";
      const found = await ask(`list/${kind}${prefix}`, { scope: "mesh", limit: 50, after: starts.at(-1) });
      const now = Date.now();
      const perSecond = (row, total) => {
        const old = known[row.destination];
        return old ? Math.max(0, (row[total] ?? 0) - (old[total] ?? 0)) / ((now - at) / 1000) : undefined;
      };
      list.rows(found.destinations.map((row) => h("tr", null, cells(row, perSecond))), empty);
      known = Object.fromEntries(found.destinations.map((row) => [row.destination, row]));
      at = now;
      following = found.next ?? "";
      next.disabled = !following;
      before.disabled = starts.length < 2;
      replace(notice, found.nodes_missing?.length > 0 && h("div", { class: "notice warn" }, `Without the numbers of ${found.nodes_missing.join(", ")}.`));
    } catch (error) {
      replace(notice, h("div", { class: "notice bad" }, error.message));
    }
  });
  return round.stop;
}

export function show(main) {
  return listPage(main, {
    title: "Fanouts", kind: "fanout", empty: ["No fanouts yet. ", h("code", null, "qmq send /fanout/log hello")], intro: "A fanout keeps its messages for every subscriber, and each node has a copy.",
    columns: [{ title: "Fanout" }, { title: "Messages kept", number: true }, { title: "Size", number: true }, { title: "In/s", number: true }, { title: "Delivered/s", number: true }, { title: "Subscribers", number: true }],
    cells: (row, perSecond) => [h("td", { class: "name" }, h("a", { href: `#/fanout/${encodeURIComponent(row.destination.slice(8))}`, "data-key": row.destination }, h("bdi", null, row.destination.slice(8)))),
      h("td", { class: "n" }, number(row.messages)), h("td", { class: "n" }, bytes(row.bytes)), h("td", { class: "n" }, rate(perSecond(row, "accepted"))), h("td", { class: "n" }, rate(perSecond(row, "delivered"))), h("td", { class: "n" }, number(row.consumers))],
  });
}
