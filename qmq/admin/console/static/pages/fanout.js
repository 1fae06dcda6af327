// One fanout: what it keeps and for how long, who follows it, and how far each is behind.

import { changes, mayDo, me, pathOf, repeat, show as ask } from "../api.js";
import { act, messagesOf } from "../dialogs.js";
import { bytes, clientCells, h, number, pill, quoted, rate, replace, table, tabs } from "../dom.js";
import { rules } from "../forms.js";
import { messagePages } from "../messages.js";
import { kick, openPublish } from "./queue.js";

export function show(main, name) {
  const destination = `/fanout/${name}`;
  let may = {};
  const facts = h("dl", { class: "facts" });
  const buttons = h("div", { class: "row top" });
  const notice = h("div", { role: "status" });
  const messages = messagePages(destination, null, `qmq send ${quoted(destination)} hi`);
  const peek = () => may.subscribe && messages.read();
  const isChanged = changes();
  const followers = table("Subscribers", [{ title: "Connection" }, { title: "User" }, { title: "Address" }, { title: "Product" }, { title: "Subscription" }, { title: "Behind", number: true }, { title: "", label: "Actions" }]);
  const durables = table("Durable subscriptions", [{ title: "Name" }, { title: "Behind", number: true }, { title: "In use" }, { title: "In flight", number: true }]);
  const drawFollowers = async () => {
    const found = await ask(`list-subscribers${pathOf(destination)}`, { scope: "mesh", limit: 200 });
    // Without a number the log cannot be read there.
    const behind = (one) => (one.behind === undefined ? "not known" : one.behind ? pill(`${number(one.behind)} ${messagesOf(one.behind)}${one.dropped ? `, ${number(one.dropped)} dropped` : ""}`, "warn") : one.dropped ? `0, ${number(one.dropped)} dropped` : "0");
    followers.rows(found.subscribers.map((one) => h("tr", null, h("td", { class: "mono" }, `${one.node}/${one.session}`), h("td", null, one.user || h("span", { class: "dim" }, "no login")), clientCells(one), h("td", { class: "mono" }, one.id), h("td", { class: "n" }, behind(one)),
      h("td", null, me.may.kick && h("button", { type: "button", class: "small bad", "data-key": `kick-${one.node}-${one.session}`, onclick: () => kick(one, drawFollowers) }, "Kick")))), ["No subscribers now. ", h("code", null, `qmq listen ${quoted(destination)}`)]);
    durables.rows((found.durables ?? []).map((one) => h("tr", null, h("td", { class: "name" }, h("bdi", null, one.name)), h("td", { class: "n" }, behind(one)), h("td", null, one.in_use ? pill("here", "good") : "not on this node"), h("td", { class: "n" }, number(one.in_flight)))), "None.");
  };
  const parts = tabs("Parts of the fanout", [
    { title: "Messages", make: () => (may.subscribe ? messages.element : h("p", { class: "dim" }, "You may not read messages of this fanout.")) },
    { title: "Subscribers", make: () => { drawFollowers().catch((error) => followers.rows([], error.message)); return [h("div", { class: "panel flush" }, followers.element), h("div", { class: "panel flush" }, h("h2", null, "Durable subscriptions"), durables.element)]; } },
    { title: "Retention", make: () => rules(destination, "fanout") },
  ]);
  main.append(h("p", { class: "small" }, h("a", { href: "#/fanouts" }, "← Fanouts")), h("h1", null, h("bdi", null, destination)), notice, buttons, h("div", { class: "panel" }, facts), parts.element);
  let known = null;
  let at = 0;
  async function refresh() {
    let isNew = true;
    try {
      const found = await ask(`list${pathOf(destination)}`, { scope: "mesh", limit: 1 });
      isNew = isChanged({ ...found.destinations[0], missing: found.nodes_missing });
      const row = found.destinations.find((one) => one.destination === destination) ?? { messages: 0, bytes: 0, consumers: 0 };
      const now = Date.now();
      const perSecond = (total) => (known ? rate(Math.max(0, (row[total] ?? 0) - (known[total] ?? 0)) / ((now - at) / 1000)) : "–");
      const fact = (title, value) => h("div", null, h("dt", null, title), h("dd", null, value));
      replace(facts, fact("Messages kept", number(row.messages)), fact("Size of a copy", bytes(row.bytes)), fact("In/s", perSecond("accepted")), fact("Delivered/s", perSecond("delivered")), fact("Subscribers", number(row.consumers)));
      known = row;
      at = now;
      replace(notice, found.nodes_missing?.length > 0 && h("div", { class: "notice warn" }, `Without the numbers of ${found.nodes_missing.join(", ")}.`));
    } catch (error) {
      replace(notice, h("div", { class: "notice bad" }, error.message));
    }
    if (isNew) await peek();
    if (followers.element.isConnected) await drawFollowers().catch((error) => followers.rows([], error.message));
  }
  const round = repeat(5, refresh);
  mayDo(destination).then((found) => {
    may = found;
    replace(buttons, may.send && h("button", { type: "button", class: "main", onclick: () => openPublish("fanouts", name, refresh) }, "Publish"),
      may.administer && h("button", { type: "button", class: "bad", onclick: () => act({ title: `Delete ${destination}`, name: destination, danger: true, plain: true, fields: [], verb: () => [`delete${pathOf(destination)}`, {}], count: (one) => one.messages,
        unit: (count) => `${messagesOf(count)} would be deleted; its subscribers are disconnected`, shell: () => `qmq delete ${quoted(destination)}`, label: () => "Delete the fanout", done: () => `${destination} is deleted.` }, () => { location.hash = "#/fanouts"; }) }, "Delete"));
    parts.select(0);
    peek();
  }).catch(() => {});
  return round.stop;
}
