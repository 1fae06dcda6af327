// Who changed what: what the nodes remember, and what happens while the page is open.

import { repeat, show as ask } from "../api.js";
import { h, number, pill, replace, table, time } from "../dom.js";

const LEFT_OUT = new Set(["event", "node", "at_us", "user", "address", "destination", "count", "dry_run"]);
const REFUSALS = new Set(["login-failed", "not-allowed", "login-required", "token-expired", "authentication-unavailable"]);

export function show(main) {
  const list = table("Audit", [{ title: "When" }, { title: "What" }, { title: "On" }, { title: "Count", number: true }, { title: "User" }, { title: "Address" }, { title: "Node" }, { title: "More" }]);
  const notice = h("div", { role: "status" });
  const withLogins = h("input", { type: "checkbox", onchange: () => draw() });
  const withDryRuns = h("input", { type: "checkbox", onchange: () => draw() });
  const filter = h("input", { type: "search", placeholder: "user, destination, event", "aria-label": "Search the audit", oninput: () => draw() });
  main.append(h("h1", null, "Audit"), h("p", { class: "dim" }, "The last 500 events of each node since its start. For all of them subscribe to /system/audit of each node, or read its log."), notice,
    h("div", { class: "row top" }, filter, h("label", { class: "row" }, withLogins, "logins"), h("label", { class: "row" }, withDryRuns, "dry runs")), h("div", { class: "panel flush" }, list.element));
  let rows = [];
  function draw() {
    const text = filter.value.toLowerCase();
    const shown = rows.filter((one) => (withLogins.checked || one.event !== "login") && (withDryRuns.checked || !one.dry_run) && (!text || JSON.stringify(one).toLowerCase().includes(text)));
    list.rows(shown.slice(0, 300).map((one) => h("tr", null, h("td", null, time(one.at_us)),
      h("td", null, pill(one.event, REFUSALS.has(one.event) ? "bad" : "accent"), one.dry_run && [" ", pill("dry run")]),
      h("td", { class: "name" }, h("bdi", null, one.destination ?? one.connection ?? one.kicked_user ?? one.retired_node ?? one.name ?? "")), h("td", { class: "n" }, one.count === undefined ? "" : number(one.count)),
      h("td", null, one.user ?? h("span", { class: "dim" }, "no login")), h("td", { class: "mono" }, one.address ?? ""), h("td", null, one.node),
      h("td", { class: "wrap small" }, Object.entries(one).filter(([name, value]) => !LEFT_OUT.has(name) && value !== null && value !== "").map(([name, value]) => `${name.replaceAll("_", " ")}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ")))), "Nothing yet.");
  }
  const round = repeat(10, async () => {
    try {
      const found = await ask("audit", { scope: "mesh" });
      rows = found.rows;
      replace(notice, found.nodes_missing.length > 0 && h("div", { class: "notice warn" }, `Without the events of ${found.nodes_missing.join(", ")}.`));
      draw();
    } catch (error) {
      replace(notice, h("div", { class: "notice bad" }, error.message));
    }
  });
  // Events of this node come at once.
  const stream = new EventSource("/v1/system/audit/events");
  stream.onmessage = (event) => {
    const one = JSON.parse(JSON.parse(event.data).body);
    if (!rows.some((row) => row.node === one.node && row.at_us === one.at_us && row.event === one.event)) rows.unshift(one);
    draw();
  };
  return () => { round.stop(); stream.close(); };
}
