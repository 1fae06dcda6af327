// One queue: its messages, consumers, policy and bindings, and everything that can be done with it.

import { changes, mayDo, me, pathOf, publish, repeat, show as ask } from "../api.js";
import { bind, unbind } from "../bindings.js";
import { act, ask as dialog, messagesOf } from "../dialogs.js";
import { clientCells, commandLine, field, h, number, quoted, rate, replace, s, say, span, table, tabs } from "../dom.js";
import { rules } from "../forms.js";
import { messagePages } from "../messages.js";
import { chartsOf, QUEUE_CHARTS } from "./charts.js";
import { flags } from "./queues.js";

const countInput = () => h("input", { type: "number", min: "1", placeholder: "all" });
const selectorInput = () => h("input", { placeholder: "all messages, or for example  version = '7'", spellcheck: "false" });

const IDS_CHARS = 8000; // Of one request.

// Of all messages of the queue, of some that are counted or selected, or of those with these `ids`.
function bulk(verb, destination, what, onDone, ids = []) {
  const count = countInput();
  const selector = selectorInput();
  const target = h("input", { value: "/queue/", spellcheck: "false", required: true });
  const isMove = verb === "move";
  const options = () => ({ scope: "mesh", ids: ids.join(","), count: count.value, selector: selector.value, to: isMove ? target.value : undefined });
  act({
    ...what, name: destination, danger: verb === "purge",
    fields: [isMove && field("To", target), ids.length ? h("p", { class: "dim" }, `Of the ${number(ids.length)} chosen, those that wait.`) : [field("How many, the first ones", count), field("Only messages that match (selector)", selector)]],
    isReady: () => !isMove || target.value.length > "/queue/".length,
    verb: () => [`${verb}${pathOf(destination)}`, options()],
    count: (facts) => facts.messages,
    shell: () => `qmq ${verb} ${quoted(destination)}${isMove ? ` ${quoted(target.value)}` : ""}${count.value ? ` --count ${count.value}` : ""}${selector.value ? ` --selector ${quoted(selector.value)}` : ""}${ids.length ? ` --ids ${ids.join(",")}` : ""}`,
  }, onDone);
}

const actions = {
  purge: (destination, onDone, ids) => bulk("purge", destination, {
    title: `Purge ${destination}`, unit: (count) => `waiting ${messagesOf(count)} would be deleted`,
    label: (count) => (count === null ? "Purge" : `Purge ${number(count)} ${messagesOf(count)}`), done: (facts) => `${number(facts.messages)} ${messagesOf(facts.messages)} deleted.`,
  }, onDone, ids),
  move: (destination, onDone, ids) => bulk("move", destination, {
    title: `Move messages of ${destination}`, unit: (count) => `waiting ${messagesOf(count)} would be moved`,
    label: (count) => (count === null ? "Move" : `Move ${number(count)} ${messagesOf(count)}`), done: (facts) => `${number(facts.messages)} ${messagesOf(facts.messages)} moved to ${facts.to}.`,
  }, onDone, ids),
  redrive: (destination, onDone, ids) => bulk("redrive", destination, {
    title: `Redrive dead letters of ${destination}`, unit: (count) => `dead ${count === 1 ? "letter" : "letters"} would go back to where they came from`,
    label: (count) => (count === null ? "Redrive" : `Redrive ${number(count)} ${messagesOf(count)}`), done: (facts) => `${number(facts.messages)} ${messagesOf(facts.messages)} redriven.`,
  }, onDone, ids),
  pause(destination, onDone) {
    const part = h("select", null, h("option", { value: "delivery" }, "Delivery: consumers get nothing"), h("option", { value: "acceptance" }, "Acceptance: SENDs are refused"), h("option", { value: "both" }, "Both"));
    const flag = { delivery: "", acceptance: " --acceptance", both: " --delivery --acceptance" };
    act({ title: `Pause ${destination}`, name: destination, plain: true, fields: [field("What", part)],
      verb: () => [`pause${pathOf(destination)}`, { part: part.value }], shell: () => `qmq pause ${quoted(destination)}${flag[part.value]}`,
      label: () => "Pause", done: () => `${destination} is paused.` }, onDone);
  },
  resume(destination, onDone) {
    act({ title: `Resume ${destination}`, name: destination, plain: true, fields: [], verb: () => [`resume${pathOf(destination)}`, {}],
      shell: () => `qmq resume ${quoted(destination)}`, label: () => "Resume", done: () => `${destination} is resumed.` }, onDone);
  },
  delete(destination) {
    const force = h("input", { type: "checkbox" });
    act({ title: `Delete ${destination}`, name: destination, danger: true, plain: true, fields: [h("label", { class: "row" }, force, "Although it has consumers")],
      verb: () => [`delete${pathOf(destination)}`, { scope: "mesh", force: force.checked ? "true" : undefined }], count: (facts) => facts.messages,
      unit: (count) => `${messagesOf(count)} would be deleted, with the declaration, the bindings and the pause of the queue`,
      shell: () => `qmq delete ${quoted(destination)}${force.checked ? " --force" : ""}`, label: () => "Delete the queue", done: () => `${destination} is deleted.` },
    () => { location.hash = "#/queues"; });
  },
};

export function openPublish(kind, name, onDone, keyed = false) {
  return dialog(`Send a message to ${name}`, (close) => {
    const body = h("textarea", { rows: "6", spellcheck: "false" });
    const type = h("select", null, ["text/plain", "application/json"].map((one) => h("option", null, one)));
    const headers = h("textarea", { rows: "3", placeholder: "name: value, one on each line", spellcheck: "false" });
    const priority = h("input", { type: "number", min: "0", max: "9", placeholder: "4" });
    const delay = h("input", { type: "number", min: "0", placeholder: "none" });
    const key = h("input", { spellcheck: "false" });
    const problem = h("div", { role: "alert" });
    const message = () => {
      const pairs = headers.value.split("\n").map((line) => line.split(/:(.*)/s)).filter(([one]) => one.trim());
      const options = { body: body.value, content_type: type.value, headers: Object.fromEntries(pairs.map(([one, value]) => [one.trim(), (value ?? "").trim()])) };
      if (priority.value) options.priority = Number(priority.value);
      if (delay.value) options.delay = Number(delay.value);
      return options;
    };
    const line = commandLine(() => {
      const one = message();
      const more = [["content-type", one.content_type], ...Object.entries(one.headers), one.priority !== undefined && ["priority", one.priority], one.delay && ["delay", one.delay], keyed && key.value && ["routing-key", key.value]].filter(Boolean);
      return `qmq send ${quoted(`/${kind.slice(0, -1)}/${name}`)} ${quoted(one.body)}${more.map(([header, value]) => ` --header ${quoted(`${header}:${value}`)}`).join("")}`;
    });
    const form = h("form", { oninput: line.update, onsubmit: async (event) => {
      event.preventDefault();
      try {
        const facts = await publish(kind, name, message(), keyed ? key.value : undefined);
        say(`Accepted as ${facts.messages[0].id ?? "a copy for each queue"}, on ${facts.messages[0].copies} disks.`);
        close();
        onDone?.();
      } catch (error) {
        replace(problem, h("p", { class: "notice bad" }, error.message, " ", error.detail));
      }
    } }, keyed && field("Routing key", key), field("Body", body), field("Content type", type), field("Headers", headers), h("div", { class: "row" }, field("Priority, 0 to 9", priority), field("Delay in milliseconds", delay)),
    problem, line.element, h("div", { class: "row end" }, h("button", { type: "button", onclick: close }, "Cancel"), h("button", { class: "main" }, "Send")));
    line.update();
    return form;
  });
}

export function kick(row, onDone) {
  const id = `${row.node}/${row.session}`;
  const reason = h("input", { maxlength: "200", placeholder: "the client sees it" });
  act({ title: `End the connection ${id}`, name: id, fields: [h("p", null, `${row.user || "no login"} at ${row.address}. What it has in flight is delivered again.`), field("Reason", reason)],
    verb: () => [`kick/${encodeURIComponent(row.node)}/${row.session}`, { scope: "mesh", reason: reason.value }], count: (facts) => facts.connections, unit: (count) => (count === 1 ? "connection would end" : "connections would end"),
    shell: () => `qmq kick ${id}${reason.value ? ` --reason ${quoted(reason.value)}` : ""}`, label: () => "End the connection", danger: true, done: (facts) => `${facts.connections} ended.` }, onDone);
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function bindingsPicture(name, rows) {
  const height = Math.max(60, rows.length * 44 + 10);
  const middle = height / 2;
  return s("svg", { class: "picture bound", viewBox: `0 0 640 ${height}`, role: "img", "aria-label": rows.map((one) => `${one.source} with key ${one.key || "none"} to ${name}`).join("; ") },
    rows.map((one, at) => {
      const y = 27 + at * 44;
      return [s("path", { class: one.effective ? "link" : "link bad", d: `M220 ${y}C330 ${y} 320 ${middle} 430 ${middle}` }), s("rect", { class: "box", x: 10, y: y - 16, width: 210, height: 32, rx: 6 }),
        s("text", { x: 20, y: y + 4 }, short(one.source, 27)), s("text", { class: "dim", x: 236, y: y - 5 }, one.key ? `key ${short(one.key, 24)}` : "")];
    }),
    s("rect", { class: "box good", x: 430, y: middle - 16, width: 200, height: 32, rx: 6 }), s("text", { x: 440, y: middle + 4 }, short(name, 25)));
}

export function show(main, name) {
  const destination = `/queue/${name}`;
  const sendCommand = `qmq send ${quoted(destination)} hi`;
  let may = {};
  let row = null;
  let asked = 0;
  const facts = h("dl", { class: "facts" });
  const state = h("span", { class: "row" });
  const buttons = h("div", { class: "row top" });
  const notice = h("div", { role: "status" });
  const drawButtons = () => {
    const button = (title, call, kind = "") => h("button", { type: "button", class: kind, "data-key": title, onclick: call }, title);
    replace(buttons,
      may.send && button("Publish", () => openPublish("queues", name, refresh), "main"),
      may.administer && [
        row?.paused ? button("Resume", () => actions.resume(destination, refresh)) : null, button("Pause", () => actions.pause(destination, refresh)),
        may.subscribe && button("Move", () => actions.move(destination, refresh)), me.may.redrive && button("Redrive", () => actions.redrive(destination, refresh)),
        button("Purge", () => actions.purge(destination, refresh), "bad"), button("Delete", () => actions.delete(destination), "bad")]);
  };

  // Messages
  const chosenButtons = (ids) => {
    if (ids.join(",").length > IDS_CHARS) return h("span", { class: "dim" }, "These are too many for one request: choose fewer.");
    const button = (title, verb, kind = "") => h("button", { type: "button", class: `small ${kind}`, "data-key": `chosen-${verb}`, onclick: () => actions[verb](destination, refresh, ids) }, title);
    return [button("Move chosen", "move"), me.may.redrive && button("Redrive chosen", "redrive"), button("Delete chosen", "purge", "bad")];
  };
  let messages = messagePages(destination, null, sendCommand);
  const peek = () => may.subscribe && messages.read();
  const isChanged = changes();
  const messagePart = () => (may.subscribe ? messages.element : h("p", { class: "dim" }, "You may not read messages of this queue."));

  // Consumers
  const consumers = table("Consumers", [{ title: "Connection" }, { title: "User" }, { title: "Address" }, { title: "Product" }, { title: "Subscription" }, { title: "Credit", number: true }, { title: "In flight", number: true }, { title: "Delivered", number: true }, { title: "", label: "Actions" }]);
  const drawConsumers = async () => {
    const found = await ask(`list-subscribers${pathOf(destination)}`, { scope: "mesh", limit: 200 });
    consumers.rows(found.subscribers.map((one) => h("tr", null, h("td", { class: "mono" }, `${one.node}/${one.session}`), h("td", null, one.user || h("span", { class: "dim" }, "no login")), clientCells(one), h("td", { class: "mono" }, one.id),
      h("td", { class: "n" }, number(one.credit)), h("td", { class: "n" }, number(one.in_flight)), h("td", { class: "n" }, number(one.delivered)),
      h("td", null, me.may.kick && h("button", { type: "button", class: "small bad", "data-key": `kick-${one.node}-${one.session}`, onclick: () => kick(one, drawConsumers) }, "Kick")))), "No consumers.");
  };

  // Bindings
  const bindingPart = () => {
    const box = h("div");
    const load = async () => {
      const rows = (await ask("bindings")).bindings.filter((one) => one.queue === destination);
      replace(box, rows.length ? [bindingsPicture(destination, rows), h("ul", { class: "bound" }, rows.map((one) => h("li", { class: "row" }, h("span", { class: "mono" }, `${one.source} ${one.key}`), !one.effective && h("span", { class: "pill warn" }, "an exchange is missing"),
        may.declare && h("button", { type: "button", class: "small bad", onclick: () => unbind(destination, one, load) }, "Unbind"))))] : h("p", { class: "dim" }, "No exchange and no fanout copies into this queue."),
      may.declare && h("button", { type: "button", onclick: () => bind(destination, load) }, "Bind"));
    };
    load().catch((error) => replace(box, h("p", { class: "notice bad" }, error.message)));
    return h("div", { class: "panel" }, box);
  };

  // Charts
  let charts;
  const chartPart = () => {
    const wait = h("p", { class: "dim" });
    const drawn = (nodes) => replace(wait, Object.values(nodes).some((one) => one.at_us.length) ? "" : "Nodes take samples of the deepest queues, and of those that were looked at: of this one from now on, every 10 seconds.");
    charts ??= chartsOf(QUEUE_CHARTS, () => ask(`queue-history${pathOf(destination)}`, { scope: "mesh" }), drawn);
    charts.shown ??= h("div", null, h("div", { class: "row top" }, charts.buttons, wait), charts.element);
    requestAnimationFrame(charts.draw); // Where it is shown, its width is known.
    return charts.shown;
  };

  const parts = tabs("Parts of the queue", [
    { title: "Messages", make: messagePart }, { title: "Charts", make: chartPart },
    { title: "Consumers", make: () => { drawConsumers().catch((error) => consumers.rows([], error.message)); return h("div", { class: "panel flush" }, consumers.element); } },
    { title: "Policy", make: () => rules(destination, "queue") }, { title: "Bindings", make: bindingPart },
  ]);
  main.append(h("p", { class: "small" }, h("a", { href: "#/queues" }, "← Queues")), h("div", { class: "row" }, h("h1", null, h("bdi", null, destination)), state), notice, buttons, h("div", { class: "panel" }, facts), parts.element);

  async function refresh() {
    let isNew = true;
    try {
      const found = await ask(`list${pathOf(destination)}`, { limit: 1, scope: "mesh", oldest: "true" });
      const before = row;
      isNew = isChanged({ ...found.destinations[0], missing: found.nodes_missing });
      row = found.destinations.find((one) => one.destination === destination) ?? null;
      const now = Date.now();
      const perSecond = (total) => (before && row && asked ? rate(Math.max(0, (row[total] ?? 0) - (before[total] ?? 0)) / ((now - asked) / 1000)) : "–");
      const fact = (title, value) => h("div", null, h("dt", null, title), h("dd", null, value));
      replace(state, row ? flags(row) : h("span", { class: "pill" }, "unknown to all nodes that respond"));
      const shown = row ?? { messages: 0, in_flight: 0, consumers: 0 };
      replace(facts, fact("Messages", number(shown.messages)), fact("In flight", number(shown.in_flight)), fact("Consumers", number(shown.consumers)), fact("Oldest", shown.oldest_age_us === undefined ? "–" : span(shown.oldest_age_us / 1e6)),
        fact("In/s", perSecond("accepted")), fact("Acknowledged/s", perSecond("acknowledged")), fact("Redelivered", number(shown.redelivered)), fact("Dead letters", number(shown.dead_lettered)), fact("Expired", number(shown.expired)));
      if (!asked) setTimeout(() => round.now(), 1000); // For rates.
      asked = now;
      replace(notice, found.nodes_missing?.length > 0 && h("div", { class: "notice warn" }, `Without the numbers of ${found.nodes_missing.join(", ")}.`));
      drawButtons();
    } catch (error) {
      replace(notice, h("div", { class: "notice bad" }, error.message));
    }
    if (isNew) await peek();
  }
  const round = repeat(5, refresh);
  mayDo(destination).then((found) => { may = found; if (may.administer && may.subscribe) messages = messagePages(destination, chosenButtons, sendCommand); drawButtons(); parts.select(0); peek(); }).catch(() => {});
  return () => { round.stop(); charts?.stop(); };
}
