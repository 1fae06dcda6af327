// The dialogs that bind a queue or an exchange to a source, and undo it.

import { pathOf } from "./api.js";
import { act } from "./dialogs.js";
import { field, h, quoted } from "./dom.js";

const MATCHES = ["all", "any", "all-with-x", "any-with-x"];

// What `qmq bindings` takes for the key and the arguments of a binding.
const options = (key, given) => [
  key && `--key ${quoted(key)}`,
  ...Object.entries(given).map(([name, value]) => (name === "x-match" ? `--match ${quoted(String(value))}` : `--argument ${quoted(value === null ? name : `${name}=${value}`)}`)),
].filter(Boolean).map((one) => ` ${one}`).join("");

// The arguments of a binding: a row for each, and always an empty one. { element, read() → header → value or null }
function argumentsForm() {
  const match = h("select", null, MATCHES.map((one) => h("option", null, one)));
  const list = h("div", { oninput: () => rows.at(-1)[0].value && add() });
  const rows = [];
  const add = () => {
    const input = (label, placeholder) => h("input", { "aria-label": `${label} ${rows.length + 1}`, placeholder, spellcheck: "false" });
    rows.push([input("Header", "header"), input("Value", "any value")]);
    list.append(h("div", { class: "row pair" }, rows.at(-1)));
  };
  add();
  return {
    element: h("details", null, h("summary", null, "Arguments, for a headers exchange"), field("Which of them must match", match), list),
    read() {
      const given = rows.filter(([name]) => name.value).map(([name, { value }]) => [name.value, value === '""' ? "" : value || null]);
      return { ...(match.value !== MATCHES[0] && { "x-match": match.value }), ...Object.fromEntries(given) };
    },
  };
}

export function bind(destination, onDone) {
  const isExchange = destination.startsWith("/exchange/");
  const source = h("input", { value: "/exchange/", spellcheck: "false" });
  const key = h("input", { spellcheck: "false" });
  const given = argumentsForm();
  act({ title: `Bind ${destination}`, name: destination, plain: true,
    fields: [field(isExchange ? "Source: another exchange" : "Source: an exchange or a fanout", source), field("Key", key), given.element],
    isReady: () => source.value.split("/").length > 2 && !source.value.endsWith("/"),
    verb: () => [`bind${pathOf(destination)}`, { source: source.value, key: key.value }, given.read()],
    shell: () => `qmq bindings add ${quoted(source.value)} ${quoted(destination)}${options(key.value, given.read())}`,
    label: () => "Bind", done: () => "Bound." }, onDone);
}

export function unbind(destination, one, onDone) {
  act({ title: `Unbind ${destination}`, name: destination, plain: true, danger: true, fields: [h("p", { class: "mono" }, `${one.source} ${one.key}`)],
    verb: () => [`unbind${pathOf(destination)}`, { source: one.source, key: one.key }, one.arguments],
    shell: () => `qmq bindings delete ${quoted(one.source)} ${quoted(destination)}${options(one.key, one.arguments ?? {})}`, label: () => "Unbind", done: () => "Unbound." }, onDone);
}
