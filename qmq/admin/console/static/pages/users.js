// Users and permissions, and what each may do.

import { change, logIn, me, reached, show as ask } from "../api.js";
import { act } from "../dialogs.js";
import { field, h, pill, quoted, replace, say, table } from "../dom.js";

const ACTIONS = ["send", "subscribe", "declare", "administer", "observe"];
const ROLES = ["administrator", "operator", "observer", "client"];

// Of a permission: whom it concerns, whether it allows or denies, the command about it, and the request that deletes it.
const subjectOf = (value) => value.user ?? `group:${value.group}`;
const wordOf = (value) => (value.deny?.length ? "deny" : "allow");
const permit = (verb, value) => `qmq permissions ${verb}${verb === "delete" ? ` ${wordOf(value)}` : ""} ${quoted(subjectOf(value) || "USER")} ${value[wordOf(value)].join(",") || "ACTIONS"} ${quoted(value.destinations[0])}`;
const dropped = (one) => `definitions/delete/permission/${encodeURIComponent(one.name)}`;

export function show(main) {
  const notice = h("div", { role: "status" });
  const users = table("Users", [{ title: "User" }, { title: "Groups" }, { title: "Logs in with" }, { title: "", label: "Actions" }]);
  const permissions = table("Permissions", [{ title: "Principal" }, { title: "" , label: "Allows or denies" }, { title: "Actions" }, { title: "Destination" }, { title: "", label: "Actions" }]);
  const answer = h("div", { "aria-live": "polite" });
  const who = h("input", { list: "known-users", spellcheck: "false", required: true });
  const known = h("datalist", { id: "known-users" });
  const about = h("input", { value: "/queue/", spellcheck: "false", required: true });
  let people = null;
  let rules = [];
  let groupsOf = {};
  const question = h("form", { class: "panel", onsubmit: async (event) => {
    event.preventDefault();
    try {
      const found = await ask("rights", { user: who.value, about: about.value });
      const mine = rules.filter((one) => (one.value.user === who.value || (groupsOf[who.value] ?? []).includes(one.value.group)) && (one.value.destinations ?? []).some((pattern) => pattern === about.value || (pattern.endsWith("*") && about.value.startsWith(pattern.slice(0, -1)))));
      replace(answer, h("p", null, `${who.value} on ${about.value}: `, ACTIONS.map((one) => [pill(`${found.about[one] ? "may" : "may not"} ${one}`, found.about[one] ? "good" : "bad"), " "])),
        h("p", { class: "dim small" }, (groupsOf[who.value] ?? []).length ? `Groups: ${groupsOf[who.value].join(", ")}.` : "In no group that is known here.", mine.length ? " Permissions that match:" : " No permission of its own matches."),
        h("ul", null, mine.map((one) => h("li", { class: "mono" }, one.name))));
    } catch (error) {
      replace(answer, h("p", { class: "notice bad" }, error.message));
    }
  } }, h("h2", null, "What may a user do?"), h("div", { class: "row" }, field("User", who), known, field("Destination", about), h("button", { class: "main" }, "Show")), answer);
  main.append(h("h1", null, "Users and permissions"), notice, question,
    h("section", { class: "panel flush" }, h("h2", { class: "row" }, "Users", h("button", { type: "button", class: "small", onclick: () => editUser() }, "Add a user")), users.element),
    h("section", { class: "panel flush" }, h("h2", { class: "row" }, "Permissions", h("button", { type: "button", class: "small", onclick: () => editPermission() }, "Add a permission")), permissions.element));

  function editUser(one) {
    // The first user closes the mesh, for this page, too: it goes on as this user.
    const isFirst = people?.length === 0 && !me.user;
    const name = h("input", { value: one?.name ?? "", readonly: Boolean(one), autocomplete: "off", spellcheck: "false" });
    const groups = h("input", { value: (one?.value.groups ?? (isFirst ? ["administrator"] : [])).join(", "), list: "known-groups", spellcheck: "false" });
    const passcode = h("input", { type: "password", autocomplete: "new-password", placeholder: one ? "as before" : "" });
    const names = () => groups.value.split(",").map((text) => text.trim()).filter(Boolean);
    const unknown = () => names().filter((group) => !ROLES.includes(group) && !rules.some((rule) => rule.value.group === group));
    let hashed = { passcode: "", hash: one?.value.password_hash };
    act({ title: one ? `Change ${one.name}` : "Add a user", name: "", plain: true,
      fields: [isFirst && h("p", { class: "notice warn" }, "The first user closes the mesh: from now on clients without login are refused on all nodes. So it must be an administrator. This page logs in as this user."), field("Name", name), field(`Groups, with commas: ${ROLES.join(", ")}, or your own`, groups), field("Passcode", passcode)],
      verb: () => [`definitions/put/user/${encodeURIComponent(name.value)}`, {}, { ...one?.value, groups: names(), password_hash: hashed.hash }],
      isReady: () => name.value && (one || passcode.value),
      // The hash is made by the node, before the user is written.
      async prepare() {
        if (passcode.value && passcode.value !== hashed.passcode) hashed = { passcode: passcode.value, hash: (await change("password-hash", {}, { passcode: passcode.value })).password_hash };
      },
      shell: () => `qmq users add ${quoted(name.value || "NAME")}${names().map((group) => ` --group ${quoted(group)}`).join("")} --passcode-stdin`, label: () => (one ? "Change" : "Add"),
      remark: () => unknown().length > 0 && `No permission names the group ${unknown().join(", ")}.`, done: () => `${name.value} is defined ${reached()}` }, async () => {
      if (isFirst) await logIn(name.value, passcode.value).catch((error) => say(error.message));
      load();
    });
  }
  function editPermission(one) {
    const old = one?.value;
    const principal = h("input", { value: old ? subjectOf(old) : "", placeholder: "ann, or group:billing", spellcheck: "false" });
    const kind = h("select", null, ["allow", "deny"].map((word) => h("option", null, word)));
    if (old) kind.value = wordOf(old);
    const boxes = ACTIONS.map((action) => h("input", { type: "checkbox", value: action, checked: old?.[wordOf(old)].includes(action) }));
    const destination = h("input", { value: old?.destinations[0] ?? "/queue/", spellcheck: "false" });
    const value = () => {
      const [, isGroup, name] = principal.value.match(/^(group:)?(.*)$/);
      return { [isGroup ? "group" : "user"]: name, [kind.value]: boxes.filter((box) => box.checked).map((box) => box.value), destinations: [destination.value] };
    };
    const name = () => `${principal.value.startsWith("group:") ? "" : "user:"}${principal.value} ${kind.value} ${value()[kind.value]} ${destination.value}`;
    // A permission is named as what it says, so a changed one is another one. It is there before the old one goes.
    const isOther = () => one && one.name !== name();
    act({ title: one ? "Change a permission" : "Add a permission", name: "", plain: true, fields: [field("User or group", principal), field("Allow or deny", kind), h("div", { class: "row", role: "group", "aria-label": "Actions" }, boxes.map((box) => h("label", { class: "row" }, box, box.value))), field("Destination, or the beginning of names with *", destination)], isReady: () => principal.value && value()[kind.value].length && !destination.value.endsWith("/"),
      verb: () => [`definitions/put/permission/${encodeURIComponent(name())}`, {}, value()], shell: () => `${permit(kind.value, value())}${isOther() ? ` && ${permit("delete", old)}` : ""}`, label: () => (one ? "Change" : "Add"), done: () => `Defined ${reached()}` }, async () => {
      if (isOther()) await change(dropped(one), {}).catch((error) => say(`The old one stays: ${error.message}`));
      load();
    });
  }
  async function load() {
    try {
      people = (await ask("definitions/list/user")).definitions;
      rules = (await ask("definitions/list/permission")).definitions;
      groupsOf = Object.fromEntries(people.map((one) => [one.name, one.value.groups ?? []]));
      replace(known, people.map((one) => h("option", { value: one.name })));
      users.rows(people.map((one) => h("tr", null, h("td", { class: "name" }, one.name), h("td", null, (one.value.groups ?? []).map((group) => [pill(group, ROLES.includes(group) ? "accent" : ""), " "])), h("td", null, one.value.password_hash ? "passcode" : "certificate"),
        h("td", { class: "row" }, h("button", { type: "button", class: "small", "data-key": `edit-${one.name}`, onclick: () => editUser(one) }, "Change"),
          h("button", { type: "button", class: "small", "data-key": `ask-${one.name}`, onclick: () => { who.value = one.name; about.focus(); } }, "What may it do?"),
          h("button", { type: "button", class: "small bad", "data-key": `delete-${one.name}`, onclick: () => act({ title: `Delete the user ${one.name}`, name: one.name, plain: true, danger: true, fields: [h("p", null, "Its connections end.")], verb: () => [`definitions/delete/user/${encodeURIComponent(one.name)}`, {}],
            shell: () => `qmq users delete ${quoted(one.name)}`, label: () => "Delete the user", done: () => `${one.name} is deleted.` }, load) }, "Delete")))), ["No users: clients on the machine of a node may do everything. ", h("code", null, "qmq users add root --group administrator --passcode-stdin")]);
      permissions.rows(rules.map((one) => h("tr", null, h("td", { class: "name" }, subjectOf(one.value)), h("td", null, pill(wordOf(one.value), wordOf(one.value) === "deny" ? "bad" : "good")), h("td", null, one.value[wordOf(one.value)].join(", ")), h("td", { class: "mono wrap" }, one.value.destinations.join(", ")),
        h("td", { class: "row" }, h("button", { type: "button", class: "small", "data-key": `change-${one.name}`, onclick: () => editPermission(one) }, "Change"),
          h("button", { type: "button", class: "small bad", "data-key": `remove-${one.name}`, onclick: () => act({ title: "Delete a permission", name: one.name, plain: true, danger: true, fields: [h("p", { class: "mono" }, one.name)], verb: () => [dropped(one), {}],
            shell: () => permit("delete", one.value), label: () => "Delete", done: () => "Deleted." }, load) }, "Delete")))), ["None besides those of the predefined groups. ", h("code", null, "qmq permissions allow ann send,subscribe '/queue/jobs.*'")]);
      replace(notice);
    } catch (error) {
      replace(notice, h("div", { class: "notice bad" }, error.message));
    }
  }
  load();
  return () => {};
}
