// The node: requests, the login of this browser, and the feed that all its tabs share.

export class Failed extends Error {
  constructor(status, facts) {
    super(facts.message ?? `The node has responded with ${status}.`);
    this.status = status;
    this.code = facts.code;
    this.detail = facts.detail ?? "";
  }
}

export const me = { node: "", user: null, csrf: null, may: {} };
let onLoggedOut = () => {};
export const whenLoggedOut = (call) => { onLoggedOut = call; };

async function ask(method, path, { query, body, headers } = {}) {
  const pairs = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== "" && value !== false);
  const target = pairs.length ? `${path}?${new URLSearchParams(pairs)}` : path;
  const lines = { "x-qmq-csrf": me.csrf ?? "", ...headers };
  if (method === "POST") lines["content-type"] ??= "application/json";
  let response;
  try {
    response = await fetch(target, { method, headers: lines, body, credentials: "same-origin", cache: "no-store" });
  } catch {
    throw new Failed(0, { code: "unreachable", message: "The node does not respond." });
  }
  const text = await response.text();
  let facts = {};
  try { facts = text ? JSON.parse(text) : {}; } catch { /* not JSON: an error of something in between */ }
  if (response.ok) return facts;
  if (response.status === 401 && path !== "/v1/console/login") onLoggedOut();
  throw new Failed(response.status, facts);
}

export const pathOf = (destination) => destination.split("/").slice(0, 2).join("/") + "/" + encodeURIComponent(destination.split("/").slice(2).join("/"));
export const get = (path, query) => ask("GET", path, { query });
export const show = (verb, query) => ask("GET", `/v1/control/${verb}`, { query });
export const change = (verb, query, body) => ask("POST", `/v1/control/${verb}`, { query, body: body === undefined ? "" : JSON.stringify(body) });

export const publish = (kind, name, message, key) =>
  ask("POST", `/v1/${kind}/${encodeURIComponent(name)}/messages`, {
    query: { key }, headers: { "qmq-batch": "true" }, body: JSON.stringify({ messages: [message] }),
  });

// The login

export async function recall() {
  const facts = await ask("GET", "/v1/console/login");
  Object.assign(me, { node: facts.node, user: facts.user, csrf: facts.csrf });
  me.may = (await show("rights")).may;
}

export async function logIn(user, passcode) {
  const name = new TextEncoder().encode(`${user}:${passcode}`);
  const authorization = `Basic ${btoa(String.fromCharCode(...name))}`;
  await ask("POST", "/v1/console/login", { headers: { authorization } });
  await recall();
}

export const logOut = () => ask("POST", "/v1/console/logout");

export async function mayDo(about) {
  return (await show("rights", { about })).about;
}

// The feed. One tab has the stream and passes it on: a browser opens few connections to one host, for all its tabs. A tab
// that is hidden gives the stream back after HIDDEN_SECONDS. If no tab is shown, no tab has it and the node rests.

const HIDDEN_SECONDS = 10;

export const feed = { overview: null, before: null, at: 0, isLive: false };
const listeners = new Set();
const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel(`qmq ${location.host}`) : null;
let stream = null;
let wanted = false;
let turn = null; // Aborts the wait for the stream; null: this tab neither waits for it nor has it.
let release = null; // Gives the stream to the next tab that waits; null: this tab does not have it.
let hidden;

// Where a change of definitions counts when it is confirmed.
export function reached() {
  const missing = feed.overview?.nodes_missing ?? [];
  return missing.length ? `on all nodes but ${missing.join(", ")}, which will get it later.` : "on all nodes.";
}

export function listen(call) {
  listeners.add(call);
  return () => listeners.delete(call);
}

function take(message) {
  if (message.overview) {
    feed.before = feed.overview;
    feed.overview = message.overview;
    feed.at = Date.now();
  }
  feed.isLive = message.isLive;
  for (const call of listeners) call();
}

function pass(message) {
  take(message);
  channel?.postMessage(message);
}

function open() {
  if (stream || !release) return;
  stream = new EventSource("/v1/console/events");
  stream.addEventListener("overview", (event) => pass({ isLive: true, overview: JSON.parse(event.data) }));
  stream.onerror = () => {
    pass({ isLive: false });
    if (stream?.readyState === EventSource.CLOSED) {
      stream = null;
      setTimeout(open, 3000);
    }
  };
}

function hold() {
  if (!wanted || turn || document.hidden) return;
  turn = new AbortController();
  if (navigator.locks && channel) {
    const { signal } = turn;
    // Held until this tab ends or is hidden; then the next one that waits opens the stream.
    navigator.locks.request(`qmq ${location.host}`, { signal }, () => new Promise((done) => {
      if (signal.aborted) done();
      else { release = done; open(); }
    })).catch(() => { if (turn?.signal === signal) turn = null; });
  } else {
    release = () => {};
    open();
  }
}

function letGo() {
  turn?.abort();
  stream?.close();
  release?.();
  turn = stream = release = null;
  feed.isLive = false;
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(hidden);
  if (document.hidden) hidden = setTimeout(letGo, HIDDEN_SECONDS * 1000);
  else hold();
});

export function follow() {
  if (wanted) return;
  wanted = true;
  if (channel) channel.onmessage = (event) => { if (!stream && wanted) take(event.data); };
  hold();
}

export function unfollow() {
  wanted = false;
  letGo();
  Object.assign(feed, { overview: null, before: null, isLive: false });
}

// How much a number of a node has grown per second, between the two last overviews.
export function perSecond(node, pick) {
  const now = feed.overview?.nodes[node];
  const before = feed.before?.nodes[node];
  if (!now || !before || now.incarnation !== before.incarnation || now.at_us <= before.at_us) return undefined;
  return Math.max(0, pick(now) - pick(before)) / ((now.at_us - before.at_us) / 1e6);
}

// Tells whether the rows of messages on a page can have changed since the last call: `row` of their destination has, its
// age aside, or they have stayed for UNCHANGED_MAX calls. Each reading of messages brings the stores of the node up.
const UNCHANGED_MAX = 6;

export function changes() {
  let last;
  let calls = 0;
  return (row) => {
    const now = JSON.stringify({ ...row, oldest_age_us: undefined });
    if (now === last && ++calls < UNCHANGED_MAX) return false;
    last = now;
    calls = 0;
    return true;
  };
}

// Call again every `seconds` while the page is shown, and at once when the tab is. The moments are those of the clock, so
// that all tabs ask together: then the node asks its peers in one write for all, which takes half as much of it.
export function repeat(seconds, call) {
  const every = seconds * 1000;
  let stopped = false;
  let timer;
  const round = async () => {
    clearTimeout(timer);
    if (!document.hidden && !stopped) await call();
    if (stopped) return;
    const left = every - (Date.now() % every);
    timer = setTimeout(round, left < every / 50 ? left + every : left); // A timer may be a little early.
  };
  const onShown = () => { if (!document.hidden && !stopped) round(); };
  document.addEventListener("visibilitychange", onShown);
  round();
  return { now: round, stop() { stopped = true; clearTimeout(timer); document.removeEventListener("visibilitychange", onShown); } };
}
