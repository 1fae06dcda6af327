// Definitions of the mesh, kind by kind; as a file; and a file compared with them before it is imported. The page of
// policies is the first part of it.

import { change, show as ask } from "../api.js";
import { commandLine, h, number, pill, replace, say, table } from "../dom.js";
import { deleteDefinition, editDefinition, KINDS, words } from "../forms.js";

const SECRET = "password_hash";
const plain = (value) => JSON.stringify(value, (key, one) => (key === SECRET ? "(a hash)" : one), 1);

// Rows of what an import would do: [kind, name, before, after]. Value by value; order of keys does not count.
function difference(before, after) {
  const sorted = (value) => JSON.stringify(value, (key, one) => (one && typeof one === "object" && !Array.isArray(one) ? Object.fromEntries(Object.entries(one).sort()) : one));
  return Object.entries(after ?? {}).flatMap(([kind, named]) => Object.entries(named).flatMap(([name, value]) => {
    const known = before?.[kind]?.[name];
    return known !== undefined && sorted(known) === sorted(value) ? [] : [[kind, name, known, value]];
  }));
}

const SHOWN = 200;
const OTHER = { user: ["Users", "users"], permission: ["Permissions", "users"], exchange: ["Exchanges", "exchanges"], binding: ["Bindings", "exchanges"], vhost: ["Virtual hosts"] };
const EMPTY = {
  policy: ["No policies: the defaults count. ", "qmq policies set '/queue/jobs.*' delivery_limit=5"], queue: ["No queue is declared: each begins at its first use. ", "qmq queues declare /queue/jobs"],
  archive: ["No archives. ", "qmq archives set archive table=/data/archive"],
  limit: ["No limits besides those of the nodes. ", "qmq limits set user:ann connections_max=10"], schema: ["No schemas: bodies are not looked at. ", "qmq schemas set order-1 order.avsc"],
};
const titleOf = (kind) => KINDS[kind]?.title ?? OTHER[kind]?.[0] ?? kind.replace(/^pause-/, "Paused: ");

// Those of one kind at a time; `draw` shows them as they are now.
function lists(only, load) {
  let kind = only ?? Object.keys(KINDS)[0];
  let all = {};
  const list = table("Definitions", [{ title: "Name" }, { title: "What it says" }, { title: "", label: "Actions" }]);
  const bar = h("div", { class: "row top", role: "group", "aria-label": "Kinds" });
  const filter = h("input", { type: "search", placeholder: "part of a name or value", "aria-label": "Search definitions", oninput: () => draw() });
  const about = h("span", { class: "dim" });
  const add = h("button", { type: "button", class: "main", "data-key": "add", onclick: () => editDefinition(kind, undefined, load).catch((error) => say(error.message)) });
  function draw(document) {
    all = document ?? all;
    const kinds = [...new Set([...Object.keys(KINDS), ...Object.keys(all)])];
    const count = (one) => Object.keys(all[one] ?? {}).length;
    replace(bar, !only && kinds.map((one) => h("button", { type: "button", "data-key": `kind-${one}`, "aria-pressed": String(one === kind), onclick: () => { kind = one; draw(); } }, `${titleOf(one)} ${number(count(one))}`)));
    const text = filter.value.toLowerCase();
    const rows = Object.entries(all[kind] ?? {}).filter(([name, value]) => `${name} ${plain(value)}`.toLowerCase().includes(text)).map(([name, value]) => ({ name, value }));
    const [why, command] = EMPTY[kind] ?? ["None."];
    const page = OTHER[kind]?.[1];
    const change = (one) => editDefinition(kind, one, load).catch((error) => say(error.message));
    list.rows(rows.slice(0, SHOWN).map((one) => h("tr", null, h("td", { class: "name" }, KINDS[kind] ? h("button", { type: "button", class: "id", "data-key": `open-${one.name}`, onclick: () => change(one) }, h("bdi", null, one.name)) : h("bdi", null, one.name)), h("td", { class: "wrap" }, kind === "schema" ? `${one.value.type ?? ""} ${one.value.name ?? ""}` : words(one.value)),
      h("td", { class: "row" }, KINDS[kind] ? [h("button", { type: "button", class: "small", "data-key": `change-${one.name}`, onclick: () => change(one) }, "Change"), h("button", { type: "button", class: "small bad", "data-key": `delete-${one.name}`, onclick: () => deleteDefinition(kind, one.name, load) }, "Delete")]
        : page && h("a", { href: `#/${page}` }, "Its page")))), text && count(kind) ? "None has this in its name or value." : [why, command && h("code", null, command)]);
    replace(about, rows.length > SHOWN && `${number(rows.length)}, the first ${SHOWN} are shown`);
    add.hidden = !KINDS[kind];
    replace(add, `Add ${KINDS[kind]?.article ?? "a"} ${KINDS[kind]?.one}`);
  }
  draw();
  return { element: h("div", null, !only && bar, h("div", { class: "row top" }, add, filter, about), h("div", { class: "panel flush" }, list.element)), draw };
}

export function show(main, only) {
  const notice = h("div", { role: "status" });
  const preview = h("div", { "aria-live": "polite" });
  const shown = lists(only || undefined, () => load());
  let exported = null;
  async function load() {
    try {
      exported = (await ask("definitions/export")).document;
      if (typeof exported === "string") exported = JSON.parse(exported);
      shown.draw(exported.definitions);
      replace(notice);
    } catch (error) {
      replace(notice, h("div", { class: "notice bad" }, error.message));
    }
  }
  async function save() {
    await load();
    const url = URL.createObjectURL(new Blob([JSON.stringify(exported, null, 2)], { type: "application/json" }));
    h("a", { href: url, download: "qmq-definitions.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }
  async function look(text, fileName) {
    replace(preview, h("p", { class: "dim" }, "Comparing …"));
    try {
      const document = JSON.parse(text);
      const checked = await change("definitions/import", { "dry-run": "true" }, document);
      await load();
      const rows = document.qmq_definitions ? difference(exported.definitions, document.definitions) : null;
      const list = table("Difference", [{ title: "" , label: "Change" }, { title: "Kind" }, { title: "Name" }, { title: "In the mesh" }, { title: "In the file" }]);
      list.rows((rows ?? []).map(([kind, name, before, after]) => h("tr", null, h("td", null, before === undefined ? pill("new", "good") : pill("changes", "warn")), h("td", null, kind), h("td", { class: "name" }, name),
        h("td", { class: "mono wrap" }, before === undefined ? "" : plain(before)), h("td", { class: "mono wrap" }, plain(after)))), "No difference.");
      const button = h("button", { type: "button", class: "main", disabled: !checked.changed && !rows?.length, onclick: async () => {
        button.disabled = true;
        try {
          const done = await change("definitions/import", {}, document);
          say(`${number(done.changed)} definitions have changed.`);
          replace(preview);
          await load();
        } catch (error) {
          replace(preview, h("p", { class: "notice bad", role: "alert" }, error.message, " ", error.detail));
        }
      } }, "Import");
      const line = commandLine(() => `qmq definitions import ${fileName}`);
      line.update();
      replace(preview, h("p", null, `${number(checked.definitions)} definitions in the file, ${number(rows ? rows.length : checked.changed)} differ. What the file does not have stays.`),
        checked.left_out?.length > 0 && h("div", { class: "notice warn" }, h("b", null, "Left out"), h("ul", null, checked.left_out.map((one) => h("li", null, one)))),
        rows && h("div", { class: "panel flush" }, list.element), line.element, button);
    } catch (error) {
      replace(preview, h("p", { class: "notice bad", role: "alert" }, error.message, " ", error.detail));
    }
  }
  const file = h("input", { type: "file", accept: ".json,application/json", "aria-label": "File to import", onchange: async () => { const one = file.files[0]; if (one) await look(await one.text(), one.name); file.value = ""; } });
  main.append(h("h1", null, only ? titleOf(only) : "Definitions"), notice, shown.element);
  if (!only) {
    main.append(h("section", { class: "panel" }, h("h2", null, "Export"), h("p", { class: "row" }, h("button", { type: "button", class: "main", onclick: () => save().catch((error) => say(error.message)) }, "Export"), h("span", { class: "dim" }, "The file has the password hashes of users."))),
      h("section", { class: "panel" }, h("h2", null, "Import"), h("p", { class: "dim" }, "A file of qmq definitions export, or of RabbitMQ. The difference is shown first; nothing changes before you import."), h("p", null, file), preview));
  }
  load();
  return () => {};
}
