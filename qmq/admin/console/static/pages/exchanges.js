// Exchanges, and which queue or exchange gets what through them.

import { repeat, show as ask } from "../api.js";
import { bind, unbind } from "../bindings.js";
import { act } from "../dialogs.js";
import { field, h, number, pill, quoted, replace, table } from "../dom.js";
import { openPublish } from "./queue.js";
import { link } from "./queues.js";

export function show(main) {
  const list = table("Exchanges", [{ title: "Exchange" }, { title: "Type" }, { title: "Alternate" }, { title: "Sent to by" }, { title: "Bindings", number: true }, { title: "", label: "Actions" }]);
  const bindings = table("Bindings", [{ title: "Source" }, { title: "Key" }, { title: "Target" }, { title: "Arguments" }, { title: "State" }, { title: "", label: "Actions" }]);
  const notice = h("div", { role: "status" });
  let known = [];
  const declare = () => {
    const name = h("input", { spellcheck: "false" });
    const type = h("select", null, ["direct", "topic", "fanout", "headers"].map((one) => h("option", null, one)));
    const alternate = h("input", { spellcheck: "false", placeholder: "none", list: "alternates" });
    const flags = ["internal", "delayed"].map((one) => h("input", { type: "checkbox", value: one }));
    const [internal, delayed] = flags;
    const value = () => ({ type: type.value, ...(alternate.value && { alternate: alternate.value }), ...Object.fromEntries(flags.filter((one) => one.checked).map((one) => [one.value, true])) });
    act({ title: "Declare an exchange", name: "", plain: true, fields: [field("Name", name), field("Type", type), field("Alternate: the exchange that gets what no binding matches", alternate), h("datalist", { id: "alternates" }, known.map((one) => h("option", { value: one }))),
        field("Internal: clients cannot send to it", internal), field("Delayed: messages wait for the milliseconds of their header x-delay", delayed)], isReady: () => name.value,
      verb: () => [`declare/exchange/${encodeURIComponent(name.value)}`, {}, value()],
      shell: () => `qmq exchanges declare ${quoted(name.value)} ${type.value}${alternate.value ? ` --alternate ${quoted(alternate.value)}` : ""}${flags.map((one) => (one.checked ? ` --${one.value}` : "")).join("")}`, label: () => "Declare", done: () => "Declared." }, () => round.now());
  };
  main.append(h("h1", null, "Exchanges"), notice, h("div", { class: "row top" }, h("button", { type: "button", onclick: declare }, "Declare an exchange")),
    h("div", { class: "panel flush" }, list.element), h("section", { class: "panel flush" }, h("h2", null, "Bindings"), bindings.element));
  const round = repeat(10, async () => {
    try {
      const rows = (await ask("exchanges")).exchanges;
      const bound = (await ask("bindings")).bindings;
      const nameOf = (row) => (row.name ?? row.exchange).replace(/^\/exchange\//, "");
      known = rows.map(nameOf);
      list.rows(rows.map((row) => {
        const name = nameOf(row);
        const own = bound.filter((one) => one.source === `/exchange/${name}`);
        return h("tr", null, h("td", { class: "name" }, name), h("td", null, row.type), h("td", null, row.alternate ?? ""), h("td", null, row.internal ? "exchanges only" : "all"), h("td", { class: "n" }, number(own.length)),
          h("td", { class: "row" }, !row.internal && h("button", { type: "button", class: "small", "data-key": `send-${name}`, onclick: () => openPublish("exchanges", name, null, true) }, "Publish"),
            h("button", { type: "button", class: "small", "data-key": `bind-${name}`, onclick: () => bind(`/exchange/${name}`, () => round.now()) }, "Bind"),
            !row.predefined && h("button", { type: "button", class: "small bad", "data-key": `delete-${name}`, onclick: () => act({ title: `Delete the exchange ${name}`, name, plain: true, danger: true, fields: [], verb: () => [`delete/exchange/${encodeURIComponent(name)}`, {}], count: (facts) => facts.bindings,
              unit: (count) => (count === 1 ? "binding would be deleted with it" : "bindings would be deleted with it"), shell: () => `qmq exchanges delete ${quoted(name)}`, label: () => "Delete the exchange", done: () => "Deleted." }, () => round.now()) }, "Delete")));
      }), "No exchanges.");
      bindings.rows(bound.map((one) => h("tr", null, h("td", { class: "mono" }, one.source), h("td", { class: "mono" }, one.key), h("td", { class: "name" }, one.queue ? h("a", { href: link(one.queue), "data-key": one.name }, one.queue) : one.exchange), h("td", { class: "mono wrap" }, Object.keys(one.arguments ?? {}).length ? JSON.stringify(one.arguments) : ""),
        h("td", null, one.effective ? pill("in force", "good") : pill("an exchange is missing", "warn")),
        h("td", null, h("button", { type: "button", class: "small bad", "data-key": `unbind-${one.name}`, onclick: () => unbind(one.queue ?? one.exchange, one, () => round.now()) }, "Unbind")))), ["No bindings. ", h("code", null, "qmq bindings add /exchange/amq.topic /queue/jobs --key 'eu.#'")]);
      replace(notice);
    } catch (error) {
      replace(notice, h("div", { class: "notice bad" }, error.message));
    }
  });
  return round.stop;
}
