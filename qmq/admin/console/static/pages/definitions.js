// Definitions of the mesh: as a file, and a file compared with them before it is imported.

import { change, show as ask } from "../api.js";
import { commandLine, h, number, pill, replace, say, table } from "../dom.js";

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

export function show(main) {
  const notice = h("div", { role: "status" });
  const counts = h("p");
  const preview = h("div", { "aria-live": "polite" });
  let exported = null;
  async function load() {
    try {
      exported = (await ask("definitions/export")).document;
      if (typeof exported === "string") exported = JSON.parse(exported);
      replace(counts, Object.entries(exported.definitions).map(([kind, named]) => [pill(`${number(Object.keys(named).length)} ${kind}`), " "]));
      if (!counts.childNodes.length) replace(counts, h("span", { class: "dim" }, "Nothing is defined yet: the node files count."));
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
  main.append(h("h1", null, "Definitions"), notice, h("section", { class: "panel" }, h("h2", null, "In the mesh"), counts, h("p", { class: "row" }, h("button", { type: "button", class: "main", onclick: () => save().catch((error) => say(error.message)) }, "Export"), h("span", { class: "dim" }, "The file has the password hashes of users."))),
    h("section", { class: "panel" }, h("h2", null, "Import"), h("p", { class: "dim" }, "A file of qmq definitions export, or of RabbitMQ. The difference is shown first; nothing changes before you import."), h("p", null, file), preview));
  load();
  return () => {};
}
