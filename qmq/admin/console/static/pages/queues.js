// Queues: searched, sorted and paged by the node, so that it works with a million of them.

import { repeat, show as ask } from "../api.js";
import { h, number, pill, rate, replace, span, spark, table } from "../dom.js";

const PAGE = 50;
const POINTS = 40;
const seen = new Map(); // Queue → depths since this page was opened first.

function note(row) {
  const depths = seen.get(row.destination) ?? [];
  depths.push(row.messages);
  if (depths.length > POINTS) depths.shift();
  seen.delete(row.destination);
  seen.set(row.destination, depths);
  if (seen.size > 1000) seen.delete(seen.keys().next().value);
  return depths;
}

export const link = (destination) => `#/queue/${encodeURIComponent(destination.slice("/queue/".length))}`;

export function flags(row) {
  return [row.paused && pill(`paused: ${row.paused}`, "warn"), row.declared && pill("declared")].filter(Boolean);
}

export function show(main) {
  const view = { sort: "depth", order: "desc", filter: "", offset: 0 };
  const sorting = { get by() { return view.sort; }, get order() { return view.order; }, set(sort) {
    const first = sort === "name" ? "asc" : "desc";
    view.order = view.sort === sort ? (view.order === "asc" ? "desc" : "asc") : first;
    view.sort = sort;
    view.offset = 0;
    list.mark();
    round.now();
  } };
  const list = table("Queues", [
    { title: "Queue", sort: "name" }, { title: "Messages", number: true, sort: "depth" }, { title: "Depth since opened" }, { title: "Oldest", number: true, sort: "oldest" },
    { title: "In/s", number: true, sort: "rate" }, { title: "Acknowledged/s", number: true }, { title: "In flight", number: true }, { title: "Consumers", number: true },
  ], sorting);
  const notice = h("div", { role: "status" });
  const about = h("span", { class: "dim" });
  const page = (step) => { view.offset = Math.max(0, view.offset + step * PAGE); round.now(); };
  const before = h("button", { type: "button", onclick: () => page(-1) }, "Previous");
  const after = h("button", { type: "button", onclick: () => page(1) }, "Next");
  let timer;
  const filter = h("input", { type: "search", placeholder: "part of a name", "aria-label": "Search queues by a part of their name", oninput: () => {
    clearTimeout(timer);
    timer = setTimeout(() => { view.filter = filter.value; view.offset = 0; round.now(); }, 250);
  } });
  main.append(h("h1", null, "Queues"), notice, h("div", { class: "row top" }, filter, about, h("span", { class: "grow" }), before, after), h("div", { class: "panel flush" }, list.element));
  const round = repeat(5, async () => {
    const asked = JSON.stringify(view);
    try {
      const facts = await ask("list/queue", { ...view, offset: view.offset || undefined, limit: PAGE, scope: "mesh" });
      if (asked !== JSON.stringify(view)) return;
      list.rows(facts.destinations.map((row) => h("tr", null,
        h("td", { class: "name" }, h("a", { href: link(row.destination), "data-key": row.destination }, h("bdi", null, row.destination.slice("/queue/".length))), flags(row).map((one) => [" ", one])),
        h("td", { class: "n" }, number(row.messages)), h("td", null, spark(note(row))),
        h("td", { class: "n" }, row.oldest_age_us === undefined ? "" : span(row.oldest_age_us / 1e6)),
        h("td", { class: "n" }, rate(row.accepted_per_second)), h("td", { class: "n" }, rate(row.acknowledged_per_second)),
        h("td", { class: "n" }, number(row.in_flight)), h("td", { class: "n" }, number(row.consumers)))), view.filter ? "No queue has this in its name." : ["No queues yet. ", h("code", null, "qmq send /queue/hello hi")]);
      replace(notice, facts.nodes_missing.length > 0 && h("div", { class: "notice warn" }, `Without the numbers of ${facts.nodes_missing.join(", ")}.`));
      const [first, last] = [view.offset + 1, view.offset + facts.destinations.length];
      // How many there are is known from the last page; before it, the most on a node is the least that it can be.
      const of = !facts.more ? ` of ${number(last)}` : view.filter ? "" : ` of ${number(Math.max(facts.queues, last + 1))} or more`;
      replace(about, facts.destinations.length ? `${number(first)}–${number(last)}${of}` : "",
        facts.age_seconds > 10 && `, order as of ${span(facts.age_seconds)} ago`);
      before.disabled = !view.offset;
      after.disabled = !facts.more;
    } catch (error) {
      replace(notice, h("div", { class: "notice bad" }, error.message, " ", error.detail));
    }
  });
  list.mark();
  return () => { clearTimeout(timer); round.stop(); };
}
