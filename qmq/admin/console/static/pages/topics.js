// Topics: names and patterns with subscribers or traffic.

import { pathOf, show as ask } from "../api.js";
import { ask as dialog } from "../dialogs.js";
import { clientCells, h, number, rate, table } from "../dom.js";
import { listPage } from "./fanouts.js";
import { openPublish } from "./queue.js";

function subscribers(destination) {
  return dialog(`Subscribers of ${destination}`, (close) => {
    const list = table("Subscribers", [{ title: "Connection" }, { title: "User" }, { title: "Address" }, { title: "Product" }, { title: "Pattern" }]);
    list.rows([], "Asking the nodes …");
    ask(`list-subscribers${pathOf(destination)}`, { scope: "mesh", limit: 200 }).then((found) => list.rows(found.subscribers.map((one) => h("tr", null,
      h("td", { class: "mono" }, `${one.node}/${one.session}`), h("td", null, one.user || h("span", { class: "dim" }, "no login")), clientCells(one), h("td", { class: "mono" }, one.destination ?? ""))), "None."), (error) => list.rows([], error.message));
    return h("div", null, list.element, h("div", { class: "row end" }, h("button", { type: "button", class: "main", onclick: close }, "Close")));
  }, true);
}

export function show(main) {
  return listPage(main, {
    title: "Topics", kind: "topic", empty: ["No topic has a subscriber or traffic. ", h("code", null, "qmq listen '/topic/prices.*'")], intro: "A topic keeps nothing but a retained message: who subscribes now gets what is sent now.",
    columns: [{ title: "Topic or pattern" }, { title: "In/s", number: true }, { title: "Delivered/s", number: true }, { title: "Subscribers", number: true }, { title: "", label: "Actions" }],
    cells: (row, perSecond) => [h("td", { class: "name" }, h("bdi", null, row.destination.slice(7))), h("td", { class: "n" }, rate(perSecond(row, "accepted"))), h("td", { class: "n" }, rate(perSecond(row, "delivered"))), h("td", { class: "n" }, number(row.consumers)),
      h("td", { class: "row" }, h("button", { type: "button", class: "small", "data-key": `who-${row.destination}`, onclick: () => subscribers(row.destination) }, "Subscribers"),
        !/[*#]/.test(row.destination) && h("button", { type: "button", class: "small", "data-key": `send-${row.destination}`, onclick: () => openPublish("topics", row.destination.slice(7)) }, "Publish"))],
  });
}
