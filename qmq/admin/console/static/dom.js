// Elements, and how values are shown. Everything that comes from the node becomes a text node: nothing is ever markup,
// and what shows nothing is shown by its code.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : name.startsWith("aria-") || name === "title" ? visible(value) : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

// Focus what has this `data-key` now.
export const focusOn = (element, key) => [...element.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key)?.focus();

// What the pointer holds down now. Removed before it is let go, it would not be clicked.
let pressed = null;
const postponed = new Map();
addEventListener("pointerdown", (event) => { pressed = event.target; }, true);
for (const end of ["pointerup", "pointercancel", "contextmenu"]) addEventListener(end, () => setTimeout(letGo), true); // After the click.

function letGo() {
  pressed = null;
  const all = [...postponed];
  postponed.clear();
  for (const [element, children] of all) replace(element, ...children);
}

// Put new children in place of the old ones; what has the focus keeps it, by its `data-key`. Under a pointer that is held
// down this waits until it is let go.
export function replace(element, ...children) {
  if (pressed && element.contains(pressed)) {
    postponed.set(element, children);
    return;
  }
  const key = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const scrolled = element.scrollTop;
  element.replaceChildren();
  append(element, children);
  if (scrolled) element.scrollTop = scrolled;
  if (key) focusOn(element, key);
}

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

// Text of a stranger: characters that show nothing, or turn the direction of what follows, become visible.
export const visible = (text) =>
  String(text).replace(HIDDEN, (one) => `‹U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);

export const number = (value) => (value ?? 0).toLocaleString("en-US");

export function bytes(value) {
  if (value === undefined || value === null) return "";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${at && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function rate(value) {
  if (value === undefined || value === null) return "";
  return value >= 100 ? number(Math.round(value)) : value >= 10 ? value.toFixed(0) : value ? value.toFixed(1) : "0";
}

export function span(seconds) {
  if (seconds === undefined || seconds === null) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export const micros = (us) => (us === undefined ? "" : us < 1000 ? `${us} µs` : us < 1e6 ? `${(us / 1000).toFixed(1)} ms` : `${(us / 1e6).toFixed(1)} s`);

export function time(us) {
  const date = new Date(us / 1000);
  const two = (value) => String(value).padStart(2, "0");
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const today = new Date().toDateString() === date.toDateString();
  return today ? clock : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock}`;
}

export const ago = (us) => `${span(Math.max(0, Date.now() / 1000 - us / 1e6))} ago`;

export const pill = (text, kind = "") => h("span", { class: `pill ${kind}` }, text);

// A table. `columns`: { title, number?, sort?, wrap? }; `sorting`: { by, order, set(by) } of a list that the node sorts.
export function table(caption, columns, sorting) {
  const body = h("tbody");
  const heads = columns.map((column) => {
    const kind = column.number ? "n" : undefined;
    if (!column.sort) return h("th", { scope: "col", class: kind }, column.title || h("span", { class: "unseen" }, column.label ?? "Actions"));
    const button = h("button", { type: "button", "data-key": `sort-${column.sort}`, onclick: () => sorting.set(column.sort) }, column.title);
    return h("th", { scope: "col", class: kind, "aria-sort": "none", "data-sort": column.sort }, button);
  });
  const mark = () => {
    for (const head of heads) {
      if (head.dataset.sort) head.setAttribute("aria-sort", head.dataset.sort !== sorting.by ? "none" : sorting.order === "asc" ? "ascending" : "descending");
    }
  };
  if (sorting) mark();
  const element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, h("table", null, h("thead", null, h("tr", null, heads)), body));
  return {
    element, mark,
    rows(rows, empty = "Nothing here.") {
      replace(body, rows.length ? rows : h("tr", null, h("td", { colspan: columns.length, class: "dim" }, empty)));
    },
  };
}

// Tabs of one page: { title, make() → element }. Returns the element; `select(at)` shows one.
export function tabs(label, parts, first = 0) {
  const panel = h("div", { role: "tabpanel", tabindex: "-1" });
  const buttons = parts.map((part, at) =>
    h("button", { type: "button", role: "tab", "aria-selected": "false", tabindex: "-1", onclick: () => select(at) }, part.title));
  const bar = h("div", { class: "tabs", role: "tablist", "aria-label": label, onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = (buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length;
    buttons[at].focus();
    select(at);
  } }, buttons);
  function select(at) {
    buttons.forEach((button, index) => { button.setAttribute("aria-selected", String(index === at)); button.tabIndex = index === at ? 0 : -1; });
    panel.setAttribute("aria-label", parts[at].title);
    replace(panel, parts[at].make());
  }
  select(first);
  return { element: h("div", null, bar, panel), select };
}

export const GAP_US = 30e6; // Longer between two samples: the node was not there.

// When a node has ended, by the times of its samples: where one is followed by none in time, before `end`, or at all.
export const endsOf = (times, end, isGone) => times.filter((at, place) => (times[place + 1] ?? (isGone ? Infinity : end)) - at > GAP_US);

// `marks`: { place, text } of values at which a node has ended.
export function spark(values, marks = []) {
  const most = Math.max(1, ...values);
  const step = 88 / Math.max(1, values.length - 1);
  const path = values.map((value, at) => `${at ? "L" : "M"}${(1 + at * step).toFixed(1)} ${(18 - (16 * value) / most).toFixed(1)}`).join("");
  return s("svg", { class: "spark", viewBox: "0 0 90 20", preserveAspectRatio: "xMinYMid", role: "img", "aria-label": `from ${number(values[0])} to ${number(values.at(-1))}${marks.map((one) => `; ${one.text}`).join("")}` },
    marks.map((one) => s("line", { class: "ended", x1: 1 + one.place * step, x2: 1 + one.place * step, y1: 0, y2: 20 }, s("title", null, one.text))), s("path", { d: path || "M0 18" }));
}

export function say(text) {
  const line = h("p", null, text);
  document.getElementById("said").append(line);
  setTimeout(() => line.remove(), 6000);
}

export const field = (title, input) => h("label", { class: "field" }, h("span", null, title), input);

export function commandLine(text) {
  const copy = h("button", { type: "button", class: "small", onclick: async () => { await navigator.clipboard?.writeText(text()); say("Copied."); } }, "Copy");
  const code = h("code");
  const line = h("div", { class: "cli", "aria-label": "The same on the command line" }, code, copy);
  return { element: line, update() { replace(code, text()); } };
}

// A word of a shell.
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

// Browsers send a sentence in place of a name.
function productOf(text) {
  const [, name, version] = (text ?? "").startsWith("Mozilla/") ? text.match(/(Firefox|Edg|OPR|HeadlessChrome|Chrome|Version)\/(\d+)/) ?? [] : [];
  return name ? h("span", { title: text }, `${{ Edg: "Edge", OPR: "Opera", Version: "Safari" }[name] ?? name} ${version}`) : text;
}

// Where a client connects from, and what it calls itself.
export const clientCells = (one) => [h("td", { class: "mono" }, one.address, one.port ? h("span", { class: "dim" }, `:${one.port}`) : null), h("td", { class: "wrap" }, productOf(one.product))];
