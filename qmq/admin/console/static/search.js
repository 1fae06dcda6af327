// Search from anywhere: `/` opens it, and Enter goes to the first of what is found.

import { me, show } from "./api.js";
import { ask } from "./dialogs.js";
import { h, number, replace } from "./dom.js";

const SHOWN = 8;
const WAIT_MS = 200;
const MESSAGE = /^[a-z0-9-]{1,32}-[0-9a-f]{1,16}-m?\d+$/;

const found = (kind, href, name, about = "") => ({ kind, href, name, about });

// What the nodes have: queues by a part of their name, fanouts by its beginning, as their pages do.
async function destinations(text) {
  const [queues, fanouts] = await Promise.all([
    show("list/queue", { filter: text, sort: "depth", order: "desc", limit: SHOWN, scope: "mesh" }),
    show(`list/fanout/${encodeURIComponent(text)}*`, { limit: SHOWN, scope: "mesh" }),
  ]);
  const rows = (kind, list) => list.destinations.slice(0, SHOWN).map((row) => {
    const name = row.destination.slice(kind.length + 2);
    return found(kind, `#/${kind}/${encodeURIComponent(name)}`, name, `${number(row.messages)} messages`);
  });
  return [...rows("queue", queues), ...rows("fanout", fanouts)];
}

export function openSearch(pages) {
  return ask("Search", (close) => {
    const list = h("ul", { class: "found", "aria-live": "polite" });
    const input = h("input", { type: "search", class: "wide", placeholder: "a queue, a fanout, a page, or a message-id", "aria-label": "Search everything", autocomplete: "off", spellcheck: "false", oninput: () => later() });
    let timer;
    let round = 0;
    const links = () => [...list.querySelectorAll("a")];
    const draw = (rows, note) => replace(list, rows.map((one) => h("li", null, h("a", { href: one.href, onclick: close }, h("span", { class: "dim" }, one.kind), " ", h("bdi", null, one.name)), " ", h("span", { class: "dim" }, one.about))), note && h("li", { class: "dim" }, note));
    function local(text) {
      const rows = pages.filter((one) => one.title.toLowerCase().includes(text.toLowerCase())).map((one) => found("page", `#/${one.name}`, one.title));
      if (MESSAGE.test(text)) rows.unshift(found("message", `#/trace/${encodeURIComponent(text)}`, text, "its trace"));
      return rows;
    }
    function later() {
      clearTimeout(timer);
      const mine = ++round;
      const text = input.value.trim();
      draw(text ? local(text) : [], text ? "Asking the nodes …" : "");
      if (!text) return;
      timer = setTimeout(async () => {
        try {
          const rows = [...local(text), ...(me.may.observe ? await destinations(text) : [])];
          if (mine === round) draw(rows, rows.length ? "" : "Nothing has this in its name.");
        } catch (error) {
          if (mine === round) draw(local(text), error.message);
        }
      }, WAIT_MS);
    }
    // As in a list of choices: the arrows go through what was found, and Enter in the field takes the first.
    function onkeydown(event) {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        const all = [input, ...links()];
        all[Math.min(Math.max(all.indexOf(document.activeElement) + step, 0), all.length - 1)].focus();
      } else if (event.key === "Enter" && document.activeElement === input) {
        event.preventDefault();
        links()[0]?.click();
      }
    }
    return h("div", { onkeydown }, input, list);
  });
}
