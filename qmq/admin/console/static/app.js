// The frame: login, navigation, and which page is shown. Each page is a module with `show(main, argument)`, which returns
// what to call when the page is left.

import { feed, follow, listen, logIn, logOut, me, recall, unfollow, whenLoggedOut } from "./api.js";
import { append, field, h, pill, replace, visible } from "./dom.js";
import { openSearch } from "./search.js";

const PAGES = {
  mesh: { title: "Mesh", module: "./pages/mesh.js", group: "State" },
  charts: { title: "Charts", module: "./pages/charts.js" },
  queues: { title: "Queues", module: "./pages/queues.js", group: "Destinations" },
  fanouts: { title: "Fanouts", module: "./pages/fanouts.js" },
  topics: { title: "Topics", module: "./pages/topics.js" },
  exchanges: { title: "Exchanges", module: "./pages/exchanges.js" },
  connections: { title: "Connections", module: "./pages/connections.js", group: "Clients" },
  trace: { title: "Trace", module: "./pages/trace.js" },
  users: { title: "Users", module: "./pages/users.js", group: "Administration", needs: "definitions" },
  policies: { title: "Policies", module: "./pages/definitions.js", argument: "policy", needs: "definitions" },
  definitions: { title: "Definitions", module: "./pages/definitions.js", needs: "definitions" },
  audit: { title: "Audit", module: "./pages/audit.js", needs: "audit" },
  queue: { title: "Queue", module: "./pages/queue.js", within: "queues" },
  fanout: { title: "Fanout", module: "./pages/fanout.js", within: "fanouts" },
};

// Whether the user of this browser may see the page.
const isAllowed = (page) => me.may[page.needs ?? "observe"];

const bar = document.getElementById("bar");
const nav = document.getElementById("nav");
const main = document.getElementById("main");
let leave = () => {};
let turn = 0;

// Colours

const SCHEME = "qmq-scheme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const scheme = () => localStorage.getItem(SCHEME) ?? (dark.matches ? "dark" : "light");
const paint = () => { document.documentElement.dataset.theme = scheme(); };
dark.addEventListener("change", paint);
paint();

// Frame

function drawBar() {
  const mesh = feed.overview;
  const state = [];
  if (mesh) {
    const names = Object.keys(mesh.nodes);
    const missing = mesh.nodes_missing;
    const conditions = names.reduce((sum, name) => sum + mesh.nodes[name].conditions.length + mesh.nodes[name].conditions_more, 0);
    state.push(missing.length ? pill(`${names.length} of ${names.length + missing.length} nodes respond`, "bad") : pill(`${names.length} ${names.length === 1 ? "node" : "nodes"}`, "good"));
    if (conditions) state.push(pill(`${conditions} ${conditions === 1 ? "condition" : "conditions"}`, "warn"));
  }
  if (!feed.isLive && me.may.observe) state.push(pill(mesh ? "connection to the node lost" : "connecting", mesh ? "bad" : ""));
  replace(bar,
    h("a", { class: "name", href: "#/mesh", "data-key": "home" }, h("img", { src: "/console/icon.svg", alt: "" }), "QMQ"),
    h("span", { class: "dim wide-only" }, me.node && `node ${me.node}`), h("span", { class: "row" }, state),
    h("span", { class: "space" }),
    me.may.observe && h("button", { type: "button", class: "small", "data-key": "search", title: "Search everything: press /", onclick: search }, "Search"),
    h("button", { type: "button", class: "small", "data-key": "scheme", onclick: () => {
      localStorage.setItem(SCHEME, scheme() === "dark" ? "light" : "dark");
      paint();
      drawBar();
    } }, scheme() === "dark" ? "Light" : "Dark"),
    me.user && h("span", { class: "dim" }, me.user),
    me.csrf && h("button", { type: "button", class: "small", "data-key": "out", onclick: async () => { await logOut().catch(() => {}); showLogin(); } }, "Log out"));
}

function drawNav(current) {
  const links = [];
  for (const [name, page] of Object.entries(PAGES)) {
    if (page.within || !isAllowed(page)) continue;
    if (page.group) links.push(h("div", { class: "group" }, page.group));
    links.push(h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : undefined, "data-key": name }, page.title));
  }
  replace(nav, links);
  // On a phone the links are one line: the present one is in sight.
  const present = nav.querySelector("[aria-current]");
  if (present) nav.scrollLeft = present.offsetLeft - (nav.clientWidth - present.offsetWidth) / 2;
}

const search = () => openSearch(Object.entries(PAGES).filter(([, page]) => !page.within && isAllowed(page)).map(([name, page]) => ({ name, title: page.title })));

// Not where a text is written, nor over a dialog.
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || !me.may.observe) return;
  if (event.target.closest("input, textarea, select, dialog") || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  search();
});

async function route() {
  const [, name, ...rest] = location.hash.split("/");
  const page = PAGES[name] ?? PAGES.mesh;
  const current = PAGES[name] ? name : "mesh";
  const mine = ++turn;
  leave();
  leave = () => {};
  drawNav(page.within ?? current);
  const argument = page.argument ?? (rest.length ? decodeURIComponent(rest.join("/")) : "");
  document.title = `${visible((!page.argument && argument) || page.title)} · QMQ`;
  main.replaceChildren();
  for (const one of document.querySelectorAll("dialog[open]")) one.close();
  if (!isAllowed(page)) {
    append(main, [h("h1", null, page.title), h("p", { class: "notice warn" }, page.needs ? "You may not see this page: it is for administrators." : "You may not observe this node: ask an administrator for the group observer.")]);
    return;
  }
  try {
    const module = await import(page.module);
    if (mine !== turn) return;
    leave = module.show(main, argument) ?? (() => {});
  } catch (error) {
    append(main, [h("div", { class: "notice bad", role: "alert" }, `This page cannot be shown: ${error.message}`)]);
  }
}

// Login

function showLogin(why = "") {
  turn += 1;
  leave();
  leave = () => {};
  unfollow();
  Object.assign(me, { user: null, csrf: null, may: {} });
  drawBar();
  nav.replaceChildren();
  document.title = "Log in · QMQ";
  const user = h("input", { name: "user", autocomplete: "username", required: true, autocapitalize: "none", spellcheck: "false" });
  const passcode = h("input", { name: "passcode", type: "password", autocomplete: "current-password", required: true });
  const problem = h("div", { role: "alert" });
  const button = h("button", { class: "main" }, "Log in");
  const form = h("form", { class: "panel login", onsubmit: async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await logIn(user.value, passcode.value);
      begin();
    } catch (error) {
      replace(problem, h("p", { class: "notice bad" }, error.message));
      passcode.value = "";
      passcode.focus();
    } finally {
      button.disabled = false;
    }
  } }, h("h1", null, "Log in"), why && h("p", { class: "dim" }, why), field("User", user), field("Passcode", passcode), problem, button);
  replace(main, form);
  user.focus();
}

function begin() {
  drawBar();
  if (me.may.observe) follow();
  route();
}

whenLoggedOut(() => { if (me.user || !main.querySelector(".login")) showLogin("The login has ended."); });
addEventListener("hashchange", () => { if (!main.querySelector(".login")) { route(); main.focus(); } });
listen(drawBar);

try {
  await recall();
  begin();
} catch (error) {
  if (error.status === 401) showLogin();
  else append(main, [h("div", { class: "notice bad", role: "alert" }, error.message)]);
}
