// The mesh: which nodes there are, how they are linked, which serves whose messages, and what is wrong.

import { feed, listen, perSecond, repeat, show as ask } from "../api.js";
import { ago, bytes, endsOf, h, micros, number, pill, rate, replace, s, span, spark, table, time } from "../dom.js";
import { link as queueLink } from "./queues.js";

const LAG = 100; // Records: fewer come and go while messages pass.
const TOPS = 5;
const SAMPLES = 60; // Ten minutes.

function namesOf(mesh) {
  return [...new Set([...Object.keys(mesh.nodes), ...mesh.nodes_missing])].sort();
}

// Owner → the node that serves its messages, as the nodes that respond say. The one that serves is right about itself.
function servers(mesh) {
  const found = {};
  for (const [name, facts] of Object.entries(mesh.nodes)) {
    for (const one of facts.owners) {
      const known = found[one.owner];
      if (!known || one.server === name || one.term > known.term) found[one.owner] = { server: one.server, place: one.server === name ? one.place : known?.place ?? one.place, term: one.term };
    }
  }
  return found;
}

// The link between two nodes: up when each follows the other.
function linkOf(mesh, one, other) {
  const rows = [];
  for (const [from, to] of [[one, other], [other, one]]) {
    const row = mesh.nodes[from]?.links.find((link) => link.peer === to);
    if (row) rows.push(row);
  }
  if (!rows.length) return { state: "unknown", lag: 0 };
  const ups = rows.flatMap((row) => [row.out === "up" || row.out === "caught-up", row.in === "up"]);
  const lag = Math.max(...rows.map((row) => row.lag));
  return { state: ups.every(Boolean) ? "up" : ups.some(Boolean) ? "one way" : "down", lag, isBehind: rows.some((row) => row.out === "up"), error: rows.find((row) => row.last_error)?.last_error };
}

function stateOf(mesh, name) {
  const facts = mesh.nodes[name];
  if (!facts) return ["does not respond", "bad"];
  if (facts.stopping) return ["stopping", "warn"];
  if (facts.draining) return ["drained, serves no clients", "warn"];
  if (facts.disk_full) return ["disk full", "bad"];
  if (facts.held) return ["delivers nothing now", "warn"];
  if (facts.conditions.some((one) => one.severity === "critical" || one.severity === "error")) return ["has errors", "bad"];
  return ["up", "good"];
}

function picture(mesh) {
  const names = namesOf(mesh);
  // On a phone the boxes come closer, so that their text can be read.
  const isNarrow = innerWidth <= 760;
  const width = !isNarrow ? 680 : names.length < 5 ? 400 : 560;
  const box = { width: isNarrow ? 132 : 172, height: 72 };
  const served = servers(mesh);
  const place = {};
  const isRow = names.length < 3;
  const height = isRow ? 130 : names.length < 5 ? 310 : 440;
  const shift = isRow ? Math.PI : -Math.PI / 2;
  names.forEach((name, at) => {
    const angle = shift + (2 * Math.PI * at) / names.length;
    const out = names.length === 1 ? 0 : 1;
    const down = names.length === 3 ? 42 : 0;
    place[name] = [width / 2 + out * (width / 2 - box.width / 2 - 2) * Math.cos(angle), height / 2 + down + out * (isRow ? 0 : height / 2 - 50 + down / 3) * Math.sin(angle)];
  });
  const lines = [];
  const boxes = [];
  const words = [];
  names.forEach((one, at) => names.slice(at + 1).forEach((other) => {
    const link = linkOf(mesh, one, other);
    const [x1, y1] = place[one];
    const [x2, y2] = place[other];
    const kind = link.state === "up" ? (link.isBehind ? "warn" : "") : "bad";
    lines.push(s("line", { class: `link ${kind}`, x1, y1, x2, y2 }));
    const label = link.state !== "up" ? `link ${link.state}` : link.lag >= LAG || link.isBehind ? `${number(link.lag)} records behind` : "";
    if (label) lines.push(s("text", { class: link.state !== "up" ? "badtext small" : "warntext", x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 6, "text-anchor": "middle" }, label));
    if (link.state !== "up") words.push(`the link between ${one} and ${other} is ${link.state}`);
  }));
  for (const name of names) {
    const [x, y] = place[name];
    const [text, kind] = stateOf(mesh, name);
    const guests = Object.entries(served).filter(([owner, by]) => by.server === name && owner !== name && mesh.nodes[name]).map(([owner]) => owner);
    boxes.push(s("g", null,
      s("rect", { class: `box ${kind} ${name === mesh.node ? "me" : ""}`, x: x - box.width / 2, y: y - box.height / 2, width: box.width, height: box.height, rx: 9 }),
      s("text", { class: "strong", x, y: y - 16, "text-anchor": "middle" }, name),
      s("text", { class: kind === "bad" ? "badtext" : kind === "warn" ? "warntext" : "dim", x, y: y + 1, "text-anchor": "middle" }, text),
      mesh.nodes[name] ? s("text", { class: "dim", x, y: y + 16, "text-anchor": "middle" }, `${rate(perSecond(name, (one) => one.totals.accepted)) || 0} in/s · ${rate(perSecond(name, (one) => one.totals.delivered)) || 0} out/s`) : null,
      guests.length ? s("text", { class: "served", x, y: y + 30, "text-anchor": "middle" }, `serves ${[name, ...guests].join(", ")}`) : null));
    words.push(`${name} ${text}${guests.length ? `, serves the messages of ${guests.join(" and ")}` : ""}`);
    for (const owner of guests) {
      const [ox, oy] = place[owner];
      const [mx, my] = [(x + ox) / 2, (y + oy) / 2];
      const [cx, cy] = [mx + (my - height / 2 || 40) * 0.35 + (y - oy) * 0.18, my + (x - ox) * -0.18];
      lines.push(s("path", { class: "serves", d: `M${ox} ${oy}Q${cx} ${cy} ${x} ${y}` }));
    }
  }
  return s("svg", { class: "picture", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `The mesh: ${words.join("; ")}.` }, lines, boxes);
}

const KINDS = { critical: "bad", error: "bad", warning: "warn", info: "" };
const ORDER = ["critical", "error", "warning", "info"];

function conditions(mesh) {
  const rows = Object.entries(mesh.nodes).flatMap(([node, facts]) => facts.conditions.map((one) => ({ node, ...one })));
  rows.sort((a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity) || a.since_us - b.since_us);
  if (!rows.length) return h("p", { class: "dim" }, "None. Nothing needs you.");
  return rows.map((one) => h("div", { class: "condition" },
    h("p", { class: "row" }, pill(one.severity, KINDS[one.severity]), h("b", null, `${one.code} on ${one.node}`), h("span", { class: "dim small" }, ago(one.since_us))),
    h("p", null, one.message), one.advice && h("p", { class: "dim" }, `→ ${one.advice}`)));
}

// Named readers of the journal, such as an archive: of each, what the node says that is least sure of it.
function readers(mesh) {
  const worst = {};
  for (const one of Object.values(mesh.nodes).flatMap((facts) => facts.readers ?? [])) {
    if (!worst[one.name] || one.behind > worst[one.name].behind) worst[one.name] = one;
  }
  return Object.values(worst).sort((a, b) => a.name.localeCompare(b.name));
}

function row(mesh, served, name, ended) {
  const facts = mesh.nodes[name];
  const [text, kind] = stateOf(mesh, name);
  const serves = Object.entries(served).filter(([, by]) => by.server === name).map(([owner]) => owner).sort();
  if (!facts) {
    const by = served[name]?.server;
    const seen = ended?.length ? `Last seen at ${time(ended.at(-1))}. ` : "";
    return h("tr", null, h("td", null, h("b", null, name)), h("td", null, pill(text, kind)),
      h("td", { colspan: 11, class: "dim wrap" }, seen, by && by !== name ? `Its numbers are missing here. ${by} serves its messages.` : "Its numbers are missing here, and no other node serves its messages."));
  }
  const lag = Math.max(0, ...facts.links.filter((link) => link.in === "up").map((link) => link.lag));
  const total = (which) => rate(perSecond(name, (one) => one.totals[which]));
  return h("tr", null,
    h("td", null, h("b", null, name)), h("td", null, pill(text, kind)),
    h("td", null, facts.owners.length ? serves.join(", ") || "no messages" : "all"),
    h("td", { class: "n" }, total("accepted")), h("td", { class: "n" }, total("delivered")),
    h("td", { class: "n" }, number(facts.connections)),
    h("td", { class: "n" }, number(lag)),
    h("td", { class: "n" }, facts.fsync.count ? `${micros(facts.fsync.mean_us)} / ${micros(facts.fsync.max_us)}` : ""),
    h("td", { class: "n" }, h("span", { title: `of ${bytes(facts.memory_max_bytes)} that connections may make it hold` }, bytes(facts.memory_bytes))),
    h("td", { class: "n" }, bytes(facts.journal_bytes)), h("td", { class: "n" }, bytes(facts.disk_free_bytes)),
    h("td", { class: "n" }, span(facts.uptime_seconds)),
    h("td", { class: "small dim" }, `${facts.version} ${facts.build}`));
}

// The five queues that come first in each order, with the number that put them there. More are asked for: what comes in on
// one node and leaves on another grows on the first only.
const ORDERS = [
  ["depth", "Deepest", (one) => number(one.messages), (one) => one.messages > 0],
  ["oldest", "Oldest message", (one) => span(one.oldest_age_us / 1e6), (one) => one.oldest_age_us > 0],
  ["growth", "Fastest growing, per second", (one) => `+${rate(one.grown_per_second)}`, (one) => one.grown_per_second > 0],
];

async function tops(isFirst) {
  const found = await Promise.all(ORDERS.map(([sort]) => ask("list/queue", { sort, order: "desc", limit: 4 * TOPS, scope: "mesh" })));
  if (!found.some((facts) => facts.destinations.length)) {
    return h("p", { class: "dim" }, "No queues yet. Send a first message: ", h("code", null, "qmq send /queue/hello hi"));
  }
  return h("div", { class: "tops" }, ORDERS.map(([, title, shown, counts], at) => {
    const rows = found[at].destinations.filter(counts);
    if (ORDERS[at][0] === "growth") rows.sort((one, other) => other.grown_per_second - one.grown_per_second);
    return h("div", null, h("h3", null, title), rows.length
      ? h("ol", null, rows.slice(0, TOPS).map((one) => h("li", null, h("a", { href: queueLink(one.destination), title: one.destination }, h("bdi", null, one.destination.slice("/queue/".length))), h("b", null, shown(one)))))
      : h("p", { class: "dim" }, isFirst && ORDERS[at][0] === "growth" ? "measuring …" : "none"));
  }));
}

// Name of a series → its sums over the nodes, of the last ten minutes; `marks`: where in them nodes have ended. Nodes
// sample at the same pace, not at one moment: a place is counted back from the last sample of its node.
function sumsOf({ nodes, nodes_missing: missing }, names) {
  const end = Math.max(0, ...Object.values(nodes).flatMap((facts) => facts.at_us.slice(-1)));
  const places = {};
  let most = 0;
  for (const [name, facts] of Object.entries(nodes)) {
    const step = facts.seconds * 1e6;
    const last = facts.at_us.at(-1);
    places[name] = facts.at_us.map((at) => Math.round((end - last) / step) + Math.round((last - at) / step));
    most = Math.max(most, ...places[name].map((one) => (one < SAMPLES ? one + 1 : 0)));
  }
  const sums = Object.fromEntries(names.map((series) => {
    const values = Array(most).fill(0);
    for (const [name, facts] of Object.entries(nodes)) (facts[series] ?? []).forEach((value, at) => { const back = places[name][at]; if (back < most) values[most - 1 - back] += value; });
    return [series, values];
  }));
  const ended = Object.fromEntries(Object.entries(nodes).map(([name, facts]) => [name, endsOf(facts.at_us, end, missing.includes(name))]));
  const marks = Object.entries(ended).flatMap(([name, times]) => times.map((at) => ({ place: most - 1 - places[name][nodes[name].at_us.indexOf(at)], text: `${name} ended ${time(at)}` }))).filter((one) => one.place >= 0);
  return { sums, marks, ended };
}

export function show(main) {
  const first = h("div", null, h("p", { class: "dim" }, "Asking for the queues …"));
  let looked = 0;
  let past = { sums: {}, marks: [], ended: {} };
  const shape = h("div", null, h("p", { class: "dim" }, "Asking the nodes …"));
  const what = h("div");
  const sums = h("dl", { class: "facts" });
  const notice = h("div", { role: "status" });
  const nodes = table("Nodes", [
    { title: "Node" }, { title: "State" }, { title: "Serves" }, { title: "Accepted/s", number: true }, { title: "Delivered/s", number: true },
    { title: "Clients", number: true }, { title: "Lag", number: true }, { title: "fsync mean / max", number: true }, { title: "Memory", number: true },
    { title: "Journal", number: true }, { title: "Disk free", number: true }, { title: "Uptime", number: true }, { title: "Version" },
  ]);
  main.append(h("h1", null, "Mesh"), notice,
    h("div", { class: "panel" }, sums), h("section", { class: "panel" }, h("h2", null, "Queues"), first),
    h("div", { class: "columns" }, h("section", { class: "panel" }, h("h2", null, "Nodes and links"), shape), h("section", { class: "panel" }, h("h2", null, "Conditions"), what)),
    h("section", { class: "panel flush" }, nodes.element));
  function draw() {
    const mesh = feed.overview;
    if (!mesh) return;
    const served = servers(mesh);
    const all = Object.entries(mesh.nodes);
    const sum = (pick) => all.reduce((total, [, facts]) => total + pick(facts), 0);
    const sumRate = (which) => all.reduce((total, [name]) => total + (perSecond(name, (one) => one.totals[which]) ?? 0), 0);
    const fact = (title, value, series) => h("div", null, h("dt", null, title), h("dd", null, value, " ", past.sums[series]?.length > 1 && spark(past.sums[series], past.marks)));
    replace(sums, fact("Waiting", number(sum((one) => one.waiting)), "waiting"), fact("In flight", number(sum((one) => one.in_flight)), "in_flight"), fact("Accepted/s", rate(sumRate("accepted")), "accepted"), fact("Delivered/s", rate(sumRate("delivered")), "delivered"), fact("Acknowledged/s", rate(sumRate("acknowledged")), "acknowledged"),
      fact("Redelivered/s", rate(sumRate("redelivered")), "redelivered"), fact("Dead letters/s", rate(sumRate("dead_lettered")), "dead_lettered"),
      fact("Connections", number(sum((one) => one.connections)), "connections"), fact("Queues", number(Math.max(...all.map(([, one]) => one.queues)))),
      readers(mesh).map((one) => fact(`${one.name}, records behind`, `${number(one.behind)}${one.seconds === null ? "" : `, ${span(one.seconds)}`}`)));
    replace(notice, mesh.nodes_missing.length > 0 && h("div", { class: "notice bad" },
      `${mesh.nodes_missing.join(", ")} ${mesh.nodes_missing.length === 1 ? "does" : "do"} not respond. Sums are without ${mesh.nodes_missing.length === 1 ? "it" : "them"}.`));
    replace(shape, picture(mesh));
    replace(what, conditions(mesh));
    nodes.rows(namesOf(mesh).map((name) => row(mesh, served, name, past.ended[name])));
  }
  draw();
  const stop = listen(draw);
  // Three orders of all queues: seldom, because with a million of them each takes a node half a second.
  const orders = repeat(30, async () => replace(first, await tops(!looked++).catch((error) => h("p", { class: "dim" }, error.message))));
  const again = setTimeout(() => orders.now(), 6000); // A node measures rates from its first look on.
  const history = repeat(10, async () => {
    const found = await ask("history", { scope: "mesh" }).catch(() => null); // What is not there is not drawn.
    if (found) past = sumsOf(found, ["waiting", "accepted", "delivered", "acknowledged", "redelivered", "dead_lettered", "in_flight", "connections"]);
    draw();
  });
  return () => { stop(); clearTimeout(again); orders.stop(); history.stop(); };
}
