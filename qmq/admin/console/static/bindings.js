// The dialogs that bind a queue or an exchange to a source, and undo it.

import { pathOf } from "./api.js";
import { act } from "./dialogs.js";
import { field, h, quoted } from "./dom.js";

// What `qmq bindings` takes for the key and the arguments of a binding.
const options = (key, given) => [
  key && `--key ${quoted(key)}`,
  ...Object.entries(given).map(([name, value]) => (name === "x-match" ? `--match ${quoted(String(value))}` : `--argument ${quoted(value === null ? name : `${name}=${value}`)}`)),
].filter(Boolean).map((one) => ` ${one}`).join("");

export function bind(destination, onDone) {
  const isExchange = destination.startsWith("/exchange/");
  const source = h("input", { value: "/exchange/", spellcheck: "false" });
  const key = h("input", { spellcheck: "false" });
  const given = h("input", { spellcheck: "false", placeholder: 'of a headers exchange: {"colour": "red"}' });
  const read = () => JSON.parse(given.value || "{}");
  act({ title: `Bind ${destination}`, name: destination, plain: true,
    fields: [field(isExchange ? "Source: another exchange" : "Source: an exchange or a fanout", source), field("Key", key), field("Arguments (JSON)", given)],
    isReady: () => source.value.split("/").length > 2 && !source.value.endsWith("/"),
    verb: () => [`bind${pathOf(destination)}`, { source: source.value, key: key.value }, read()],
    shell: () => {
      try { return `qmq bindings add ${quoted(source.value)} ${quoted(destination)}${options(key.value, read())}`; } catch { return "The arguments are not JSON."; }
    },
    label: () => "Bind", done: () => "Bound." }, onDone);
}

export function unbind(destination, one, onDone) {
  act({ title: `Unbind ${destination}`, name: destination, plain: true, danger: true, fields: [h("p", { class: "mono" }, `${one.source} ${one.key}`)],
    verb: () => [`unbind${pathOf(destination)}`, { source: one.source, key: one.key }, one.arguments],
    shell: () => `qmq bindings delete ${quoted(one.source)} ${quoted(destination)}${options(one.key, one.arguments ?? {})}`, label: () => "Unbind", done: () => "Unbound." }, onDone);
}
