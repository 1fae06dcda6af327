// Forms of definitions: fields from what the node says of each key (`definitions/keys`), so that a key which is added there
// is here, too. Also how a definition is read: its keys and values in words.

import { me, pathOf, reached, show } from "./api.js";
import { act } from "./dialogs.js";
import { h, quoted, replace, table, visible } from "./dom.js";

// Kinds that this page can change: how one is named, an example of its name, and the command that sets one.
export const KINDS = {
  policy: { one: "policy", title: "Policies", example: "/queue/jobs.*", label: "Destination, or the beginning of names with *", command: "policies set" },
  queue: { one: "declaration", title: "Declared queues", example: "/queue/jobs", label: "Queue", command: "queues declare" },
  limit: { one: "limit", title: "Limits", example: "user:ann", label: "user:NAME, user:* for each user, or group:NAME", command: "limits set" },
  archive: { one: "archive", article: "an", title: "Archives", example: "archive", label: "Name, as the archiver has it", command: "archives set" },
  schema: { one: "schema", title: "Schemas", example: "order-1", label: "Name", isJson: true },
};

const keys = new Map();

export async function keysOf(kind) {
  if (!keys.has(kind)) keys.set(kind, (await show(`definitions/keys/${kind}`)).keys);
  return keys.get(kind);
}

const nameOf = (kind, name) => (name.startsWith("/") ? `${kind}${pathOf(name)}` : `${kind}/${encodeURIComponent(name)}`);
const written = (value) => (typeof value === "string" ? value || '""' : Array.isArray(value) ? value.join(", ") : JSON.stringify(value));

// The keys and values of a definition; what is secret is not shown.
export const words = (value) => Object.entries(value).map(([key, one]) => h("span", { class: "set" }, h("span", { class: "dim" }, key), " ", h("bdi", null, key === "password_hash" ? "(a hash)" : written(one)), " "));

// What a key may be, in a few words, after what it means.
function hint(key) {
  const type = key.type === "list" ? "Several, with commas." : key.type === "size" ? "Bytes, or such as 64MiB." : /\bempty\b/.test(key.help) && key.type === "text" ? 'Write "" for empty.' : "";
  const bound = key.at_least > 0 ? `At least ${key.at_least}.` : key.more_than !== undefined ? `More than ${key.more_than}.` : "";
  return [key.help.replaceAll("`", ""), type, bound].filter(Boolean).join(" ");
}

// One field: { key, element, read() → value or undefined, fail(text) }.
function fieldOf(key, value) {
  const id = `key-${key.name}`;
  const shown = key.default === null || key.default === undefined ? "not set" : written(key.default) || "none";
  const options = key.type === "truth" ? ["true", "false"] : key.type === "list" ? null : key.values;
  const about = { id, "aria-describedby": `${id}-help`, spellcheck: "false" };
  const input = options
    ? h("select", about, h("option", { value: "" }, key.required ? "choose" : `default: ${shown}`), options.map((one) => h("option", { value: one }, one)))
    : h("input", { ...about, placeholder: shown, autocomplete: "off", inputmode: key.type.endsWith("number") ? "decimal" : undefined });
  if (value !== undefined) input.value = written(value);
  const problem = h("span", { class: "problem", role: "alert" });
  const read = () => {
    const text = input.value.trim();
    if (!text) return undefined;
    if (key.type === "list") return text === '""' ? [] : text.split(",").map((one) => one.trim()).filter(Boolean);
    if (key.type === "truth") return text === "true";
    if (key.type === "text") return text === '""' ? "" : text;
    return Number.isNaN(Number(text)) ? text : Number(text); // A wrong one is refused by the node, in its words.
  };
  const fail = (text) => { input.setAttribute("aria-invalid", String(Boolean(text))); replace(problem, text); };
  const element = h("div", { class: "keyed" }, h("label", { for: id }, key.name), input, h("span", { class: "dim small", id: `${id}-help` }, hint(key)), problem);
  return { key, element, read, fail };
}

// The refusal of a definition names each key: `KIND NAME: KEY = VALUE: WHY; KIND NAME: KEY: WHY`. Returns key → why, and the rest.
function parted(kind, name, message) {
  const start = `${kind} ${name}: `;
  const found = {};
  const rest = message.split(`; ${start}`).map((one) => one.replace(start, "")).filter((one) => {
    const [, key, why] = one.match(/^([a-z_]+)(?:\.\d+)?(?: = .*?)?: (.*)$/s) ?? [];
    if (key) found[key] = why;
    return !key;
  });
  return [found, rest];
}

// Create one, or change the one with this name and value.
export async function editDefinition(kind, one, onDone) {
  const about = KINDS[kind];
  const all = about.isJson ? [] : await keysOf(kind);
  const name = h("input", { value: one?.name ?? "", readonly: Boolean(one), placeholder: about.example, spellcheck: "false", autocomplete: "off" });
  const value = one?.value ?? {};
  const fields = all.map((key) => fieldOf(key, value[key.name]));
  const text = h("textarea", { rows: "12", spellcheck: "false", value: JSON.stringify(value, null, 2) });
  const grid = h("div", { class: "keys" });
  const kept = Object.fromEntries(Object.entries(value).filter(([key]) => key !== "declared_by" && !all.some((known) => known.name === key))); // Of a later version.
  const fits = ({ key }) => !key.under || key.under.some((prefix) => name.value.startsWith(prefix));
  const draw = () => replace(grid, fields.filter(fits).map((field) => field.element));
  const read = () => (about.isJson ? JSON.parse(text.value) : { ...kept, ...Object.fromEntries(fields.filter(fits).map((field) => [field.key.name, field.read()]).filter(([, given]) => given !== undefined)) });
  name.addEventListener("input", draw);
  draw();
  return act({
    title: one ? `Change the ${about.one} ${one.name}` : `Add ${about.article ?? "a"} ${about.one}`, name: "", plain: true, wide: true,
    fields: [h("label", { class: "field" }, h("span", null, about.label), name), about.isJson ? h("label", { class: "field" }, h("span", null, "The schema (Avro, in JSON)"), text) : grid],
    isReady: () => name.value.trim(),
    verb: () => (kind === "queue" ? [`declare${pathOf(name.value.trim())}`, { replace: Boolean(one) }, read()] : [`definitions/put/${nameOf(kind, name.value.trim())}`, {}, read()]),
    shell() {
      if (about.isJson) return `qmq schemas set ${quoted(name.value || about.example)} FILE`;
      const given = Object.entries(read()).map(([key, each]) => quoted(`${key}=${typeof each === "string" && each !== "" ? each : JSON.stringify(each)}`));
      return `qmq ${about.command} ${quoted(name.value || about.example)} ${given.join(" ")}${kind === "queue" && one ? " --replace" : ""}`;
    },
    // What concerns a field is said there.
    explain(error) {
      const [found, rest] = error ? parted(kind, name.value.trim(), error.message) : [{}, []];
      for (const field of fields) {
        field.fail(fits(field) ? found[field.key.name] ?? "" : "");
        if (fits(field)) delete found[field.key.name];
      }
      return [...rest, ...Object.entries(found).map(([key, why]) => `${key}: ${why}`)].join("; ");
    },
    label: () => (one ? "Change" : "Add"), done: (facts) => (facts.changed ? `Defined ${reached()}` : "It was so before."),
  }, onDone);
}

export function deleteDefinition(kind, name, onDone) {
  const about = KINDS[kind] ?? { one: kind };
  const commands = { policy: "policies delete", limit: "limits delete", archive: "archives delete", schema: "schemas delete" };
  return act({ title: `Delete the ${about.one} ${visible(name)}`, name, plain: true, danger: true,
    fields: [h("p", null, kind === "policy" ? "What matches it then has the next policy that matches, or the defaults." : kind === "queue" ? "Its messages stay; the policies apply to it then." : "")],
    verb: () => [`definitions/delete/${nameOf(kind, name)}`, {}], shell: () => (commands[kind] ? `qmq ${commands[kind]} ${quoted(name)}` : `Only here, or over HTTP: POST /v1/control/definitions/delete/${nameOf(kind, name)}`),
    label: () => "Delete", done: () => `Deleted ${reached()}` }, onDone);
}

// The rules that apply to a destination, where each is from, and how to change them.
export function rules(destination, what) {
  const list = table("Rules", [{ title: "Rule" }, { title: "Value" }, { title: "From" }]);
  const button = me.may.definitions && h("button", { type: "button", onclick: async () => {
    const known = (await show("definitions/list/policy")).definitions.find((one) => one.name === destination);
    await editDefinition("policy", known ?? { name: destination, value: {} }, load);
  } }, `Change the policy of ${destination}`);
  async function load() {
    try {
      const found = await show(`policies${pathOf(destination)}`);
      const isSet = (one) => one.from !== "default";
      list.rows([...found.rules.filter(isSet), ...found.rules.filter((one) => !isSet(one))].map((one) => h("tr", { class: isSet(one) ? "" : "dim" }, h("td", { class: "mono" }, one.key), h("td", { class: "wrap" }, h("bdi", null, one.value === null ? "not set" : written(one.value))), h("td", { class: "wrap" }, one.from))), `No rules apply to this ${what}.`);
    } catch (error) {
      list.rows([], error.message);
    }
  }
  list.rows([], "Asking the node …");
  load();
  return h("div", null, button && h("p", { class: "row" }, button), h("div", { class: "panel flush" }, list.element));
}
