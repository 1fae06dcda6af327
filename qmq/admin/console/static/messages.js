// Messages as an operator reads them: a list, and one message with its headers and its body as text, JSON or bytes.

import { pathOf, show } from "./api.js";
import { ago, bytes, h, number, pill, replace, table, tabs } from "./dom.js";
import { ask } from "./dialogs.js";

const SHOWN = 64 * 1024; // Characters or bytes of a body that are shown at once.
const STATES = { waiting: "", delayed: "warn", "in-flight": "accent", expired: "bad", settled: "good", kept: "" };

export function bytesOf(row) {
  if (row.body_base64 === undefined) return new TextEncoder().encode(row.body ?? "");
  return Uint8Array.from(atob(row.body_base64), (one) => one.charCodeAt(0));
}

function textOf(row) {
  return row.body_base64 === undefined ? row.body ?? "" : new TextDecoder("utf-8").decode(bytesOf(row));
}

function hex(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const part = data.subarray(at, at + 16);
    const codes = [...part].map((one) => one.toString(16).padStart(2, "0")).join(" ");
    const text = [...part].map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : "·")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${codes.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

// Long bodies are shown in parts: a browser is slow with a megabyte of text.
function part(size, draw, unit) {
  const pre = h("pre", { class: "body", tabindex: "0", "aria-label": "Body" });
  const more = h("p", { class: "row small" });
  let shown = SHOWN;
  const again = () => {
    replace(pre, draw(shown));
    replace(more, size > shown && [`${number(shown)} of ${number(size)} ${unit} are shown.`,
      h("button", { type: "button", class: "small", onclick: () => { shown *= 4; again(); } }, "Show more")]);
  };
  again();
  return h("div", null, pre, more);
}

function body(row) {
  const text = textOf(row);
  const data = bytesOf(row);
  let json;
  try { json = JSON.stringify(JSON.parse(text), null, 2); } catch { json = null; }
  const views = [
    { title: "Text", make: () => [row.body_base64 !== undefined && h("p", { class: "notice warn" }, "The body is not UTF-8: bytes that are none are shown as \ufffd."), part(text.length, (size) => text.slice(0, size), "characters")] },
    { title: "JSON", make: () => (json === null ? h("p", { class: "dim" }, "The body is not JSON.") : part(json.length, (size) => json.slice(0, size), "characters")) },
    { title: "Hex", make: () => part(data.length, (size) => hex(data.subarray(0, size / 4)), "bytes") },
  ];
  return tabs("Body", views, json !== null && /^\s*[[{]/.test(text) ? 1 : row.body_base64 !== undefined ? 2 : 0).element;
}

export function openMessage(row, more = []) {
  return ask("Message", (close) => {
    const headers = table("Headers", [{ title: "Header" }, { title: "Value" }]);
    headers.rows(Object.entries(row.headers ?? {}).map(([name, value]) => h("tr", null, h("td", { class: "mono" }, name), h("td", { class: "wrap mono" }, h("bdi", null, value)))), "No headers.");
    return h("div", null,
      h("p", { class: "row" }, h("span", { class: "mono" }, row.message_id), pill(row.state, STATES[row.state]), row.failed_deliveries > 0 && pill(`${row.failed_deliveries} failed deliveries`, "bad")),
      h("p", { class: "dim small" }, `Accepted by ${row.node}, ${ago(row.at_us)}. ${bytes(row.body_bytes)}.`),
      h("details", { open: Object.keys(row.headers ?? {}).length < 9 }, h("summary", null, "Headers"), headers.element),
      h("div", { class: "panel" }, body(row)),
      h("div", { class: "row end" }, more, h("a", { class: "button", href: `#/trace/${encodeURIComponent(row.message_id)}`, onclick: close }, "Trace"), h("button", { type: "button", class: "main", onclick: close }, "Close")));
  }, true);
}

const REASON = "dead-letter-reason";
const SOURCE = "dead-letter-from";
const isDead = (row) => row.headers?.[REASON] !== undefined;

// Of a dead letter, why and where it became one: the two headers by which a redrive knows it.
function deadCells(row) {
  const source = row.headers?.[SOURCE] ?? "";
  return [h("td", null, isDead(row) && pill(row.headers[REASON], "bad")),
    h("td", { class: "name" }, source.startsWith("/queue/") ? h("a", { href: `#/queue/${encodeURIComponent(source.slice(7))}`, "data-key": `from-${row.message_id}` }, h("bdi", null, source.slice(7))) : h("bdi", null, source))];
}

// A list of messages. Dead letters have columns of their own, if there are some; with `chosen`, a set of message-ids, a
// row can be chosen.
function messageTable(caption, chosen, onChoice) {
  const box = h("div");
  const all = h("input", { type: "checkbox", "aria-label": "Choose all on this page", "data-key": "choose-all", onchange: () => {
    for (const one of shown) if (all.checked) chosen.add(one.message_id); else chosen.delete(one.message_id);
    for (const one of box.querySelectorAll("tbody input")) one.checked = all.checked;
    onChoice();
  } });
  let shown = [];
  const tick = (row) => h("td", null, h("input", { type: "checkbox", checked: chosen.has(row.message_id), "aria-label": `Choose ${row.message_id}`, "data-key": `choose-${row.message_id}`, onchange: (event) => {
    if (event.target.checked) chosen.add(row.message_id); else chosen.delete(row.message_id);
    mark();
    onChoice();
  } }));
  const mark = () => { all.checked = Boolean(chosen) && shown.length > 0 && shown.every((one) => chosen.has(one.message_id)); };
  let list;
  let hasDead;
  function draw(rows) {
    if (list && hasDead === rows.some(isDead)) return;
    hasDead = rows.some(isDead);
    list = table(caption, [chosen && { title: all }, { title: "Message" }, { title: "State" }, hasDead && { title: "Reason" }, hasDead && { title: "From" }, { title: "Failed", number: true }, { title: "Accepted" }, { title: "By" }, { title: "Size", number: true }, { title: "Beginning of the body" }].filter(Boolean));
    replace(box, list.element);
  }
  draw([]);
  return {
    element: box,
    rows(rows, empty) {
      shown = rows;
      draw(rows);
      list.rows(rows.map((row) => h("tr", null, chosen && tick(row),
        h("td", { class: "mono" }, h("button", { type: "button", class: "id", "data-key": row.message_id, onclick: () => openMessage(row) }, row.message_id)),
        h("td", null, pill(row.state, STATES[row.state])), hasDead && deadCells(row), h("td", { class: "n" }, row.failed_deliveries ? h("b", null, number(row.failed_deliveries)) : ""),
        h("td", null, ago(row.at_us)), h("td", null, row.node), h("td", { class: "n" }, bytes(row.body_bytes)),
        h("td", { class: "mono wrap" }, h("bdi", null, textOf(row).slice(0, 120))))), empty);
      mark();
    },
  };
}

// The messages of a destination, page by page: the node leaves out those before, and nothing is taken. `act(ids)` returns
// the buttons for those that are chosen; without it none can be. `empty`: a command that would send one.
export function messagePages(destination, act, empty) {
  const chosen = act && new Set();
  const choice = h("div", { class: "row chosen", role: "group", "aria-label": "With the chosen messages", hidden: true });
  const onChoice = () => {
    choice.hidden = !chosen.size;
    replace(choice, h("b", null, `${number(chosen.size)} chosen`), act([...chosen]), h("button", { type: "button", class: "small", "data-key": "choose-none", onclick: () => { chosen.clear(); read(); } }, "None"));
  };
  const list = messageTable("Messages", chosen, onChoice);
  list.rows([], "Reading …");
  const count = h("select", { "aria-label": "Messages on a page", onchange: () => read() }, [20, 100, 1000].map((one) => h("option", { value: one }, `${one} on a page`)));
  const from = h("input", { type: "number", min: "1", value: "1", class: "short", onchange: () => read() });
  const go = (title, by) => h("button", { type: "button", "data-key": title, onclick: () => { from.value = Math.max(1, first() + by()); read(); } }, title);
  let shown = 0;
  const first = () => Math.max(1, Math.floor(Number(from.value)) || 1);
  const earlier = go("Previous", () => -Number(count.value));
  const later = go("Next", () => shown);
  const about = h("span", { class: "dim" });
  let asked = 0;
  async function read() {
    const mine = (asked += 1);
    const at = first();
    try {
      const found = await show(`peek${pathOf(destination)}`, { count: count.value, offset: at - 1 });
      if (mine !== asked) return; // A later page was asked for meanwhile.
      shown = found.rows.length;
      if (chosen) {
        for (const id of chosen) if (!found.rows.some((row) => row.message_id === id)) chosen.delete(id); // On another page, or gone.
        onChoice();
      }
      list.rows(found.rows, at > 1 ? "No messages so far behind." : ["No messages. ", empty && h("code", null, empty)]);
      replace(about, shown ? `${number(at)} to ${number(at + shown - 1)}${found.more ? ", more follow" : ""}. ` : "", "Reading takes nothing.");
      earlier.disabled = at === 1;
      later.disabled = !found.more;
    } catch (error) {
      if (mine === asked) list.rows([], error.message);
    }
  }
  return {
    element: h("div", null, h("div", { class: "row top" }, earlier, later, h("label", { class: "row" }, "From message", from), count, h("button", { type: "button", onclick: () => read() }, "Read again"), about), choice, h("div", { class: "panel flush" }, list.element)),
    read,
  };
}
