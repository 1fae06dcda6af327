// Actions. Each asks in a dialog, shows how many messages or clients it concerns before anything changes, and the command
// that does the same. Above LARGE the name must be typed.

import { change } from "./api.js";
import { commandLine, field, focusOn, h, number, replace, say, visible } from "./dom.js";

const LARGE = 100;

// Show a dialog; `make(close)` returns its content. Resolves when it is closed.
export function ask(title, make, isWide = false) {
  return new Promise((done) => {
    const id = `title-${Math.random().toString(36).slice(2)}`;
    const opener = document.activeElement?.dataset?.key;
    const closed = () => {
      dialog.remove();
      // The browser returns the focus, unless the page was drawn again meanwhile.
      if (opener && document.activeElement === document.body) focusOn(document.body, opener);
      done();
    };
    const dialog = h("dialog", { class: isWide ? "wide" : "", "aria-labelledby": id, onclose: closed });
    dialog.append(h("h2", { id }, title), make(() => dialog.close()));
    document.body.append(dialog);
    dialog.showModal();
  });
}

const problem = (error) => h("p", { class: "notice bad", role: "alert" }, error.message, error.detail && ` ${error.detail}`);

// `form` is { title, fields: [element], name, verb() → [path, query, body], explain?(error or null) → text that no field shows, wide?, count(facts) → number, unit, shell() → text,
// label(count) → text, danger?, plain?, prepare?, isReady?, remark?() → text }. Nothing is asked before `isReady`. `plain` actions may have nothing to count; `prepare` comes before each
// `verb`.
export function act(form, onDone = () => {}) {
  return ask(form.title, (close) => {
    const result = h("div", { "aria-live": "polite" });
    const line = commandLine(form.shell);
    const typed = h("input", { autocomplete: "off", spellcheck: "false", oninput: () => allow() });
    const typing = field(`Type ${form.name} to go on`, typed);
    const button = h("button", { type: "submit", class: form.danger ? "bad" : "main", disabled: true });
    let count = null;
    let timer;
    let round = 0;
    const tell = (error) => {
      const rest = form.explain?.(error);
      replace(result, error && (form.explain ? rest && problem({ message: rest, detail: error.detail }) : problem(error)));
    };
    const allow = () => {
      const isLarge = count > LARGE && form.danger;
      typing.hidden = !isLarge;
      button.disabled = count === null || (!count && !form.plain) || (isLarge && visible(typed.value) !== visible(form.name));
    };
    async function dryRun() {
      const mine = ++round;
      count = null;
      button.textContent = form.label(null);
      line.update();
      allow();
      if (form.isReady && !form.isReady()) {
        tell(null);
        return;
      }
      if (form.count) replace(result, h("p", { class: "dim" }, "Counting …"));
      try {
        await form.prepare?.();
        const [path, query, body] = form.verb();
        const facts = await change(path, { ...query, "dry-run": "true" }, body);
        if (mine !== round) return;
        tell(null);
        count = form.count ? form.count(facts) : 1;
        replace(result, form.unit && h("p", null, h("b", null, number(count)), ` ${form.unit(count)}`),
          form.remark?.() && h("p", { class: "notice warn" }, form.remark()),
          facts.reason && h("p", { class: "notice warn" }, `Some stay: ${facts.reason}`),
          Object.entries(facts.taken_over ?? {}).map(([owner, server]) => h("p", { class: "dim" }, `${owner} does not respond; ${server} serves its messages, and they are counted.`)),
          facts.nodes_missing?.length > 0 && h("p", { class: "notice warn" }, `Not counted: ${facts.nodes_missing.join(", ")} does not respond.`));
        button.textContent = form.label(count);
      } catch (error) {
        if (mine === round) tell(error);
      }
      allow();
    }
    const later = () => { clearTimeout(timer); timer = setTimeout(dryRun, 300); };
    const element = h("form", { oninput: (event) => { if (event.target !== typed) later(); }, onsubmit: async (event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        await form.prepare?.();
        const [path, query, body] = form.verb();
        const facts = await change(path, query, body);
        say(form.done(facts));
        close();
        onDone(facts);
      } catch (error) {
        tell(error);
        allow();
      }
    } }, form.fields, result, typing, line.element,
    h("div", { class: "row end" }, h("button", { type: "button", onclick: close }, "Cancel"), button));
    dryRun();
    return element;
  }, form.wide);
}

export const messagesOf = (count) => (count === 1 ? "message" : "messages");
