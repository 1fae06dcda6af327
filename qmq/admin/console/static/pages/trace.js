// What has become of one message, as a timeline over the nodes.

import { me, mayDo, show as ask } from "../api.js";
import { h, pill, replace, time } from "../dom.js";
import { openMessage } from "../messages.js";

const KINDS = { failed: "warn", "dead-lettered": "bad" };

function words(one) {
  if (one.event === "accepted") return [`for ${one.destination}`, one.from && [", from ", h("a", { href: `#/trace/${encodeURIComponent(one.from)}` }, one.from)]];
  if (one.event === "failed") return [`and came back: failed deliveries by then ${one.deliveries}`];
  if (one.event === "settled") return [": acknowledged, purged, expired, or rejected without a dead letter"];
  return [`to ${one.destination}`, one.reason && `, because of ${one.reason}`, one.as && [", as ", h("a", { href: `#/trace/${encodeURIComponent(one.as)}` }, one.as)]];
}

export function show(main, id) {
  const input = h("input", { value: id, spellcheck: "false", placeholder: "a message-id", size: "34", "aria-label": "Message-id" });
  const result = h("div", { "aria-live": "polite" });
  main.append(h("h1", null, "Trace of a message"), h("form", { class: "row top", onsubmit: (event) => {
    event.preventDefault();
    const next = `#/trace/${encodeURIComponent(input.value.trim())}`;
    if (next === location.hash) load(input.value.trim()); else location.hash = next;
  } }, input, h("button", { class: "main" }, "Trace")), result);
  async function load(wanted) {
    replace(result, h("p", { class: "dim" }, "Asking the nodes …"));
    try {
      const found = await ask(`trace/${encodeURIComponent(wanted)}`);
      const began = found.events[0]?.at_us;
      const items = found.events.map((one) => h("li", { class: KINDS[one.event] ?? "" }, h("div", null, h("b", null, one.event), " ", words(one).flat()),
        h("div", { class: "dim small" }, `${time(one.at_us)} on ${one.node}${one.at_us > began ? `, ${((one.at_us - began) / 1e6).toFixed(3)} s after the first` : ""}`)));
      for (const one of found.in_flight) items.push(h("li", { class: "now" }, h("div", null, h("b", null, "in flight now"), " with ", typeof one === "string" ? one : [one.id ?? one.connection ?? `${one.node}/${one.session}`, one.user && ` of ${one.user}`, one.address && ` at ${one.address}`])));
      const read = h("span");
      if (me.may.observe) mayDo("/control/get/x").then((may) => { if (may.subscribe) replace(read, h("button", { type: "button", onclick: async () => { const one = await ask(`get/${encodeURIComponent(wanted)}`).catch(() => null); if (one) openMessage(one.message ?? one.rows?.[0] ?? one); } }, "Read the message")); }).catch(() => {});
      replace(result, h("div", { class: "panel" }, h("p", { class: "row" }, h("span", { class: "mono" }, wanted), read), items.length ? h("ol", { class: "timeline" }, items) : h("p", { class: "dim" }, "Nothing is known of it.")),
        h("p", { class: "row" }, "On disk: ", found.copies.length ? found.copies.map((node) => pill(node, "good")) : pill("on no node that responds", "warn")),
        found.unknown.length > 0 && h("div", { class: "notice" }, h("b", null, "Not known here"), h("ul", null, found.unknown.map((one) => h("li", null, one)))));
    } catch (error) {
      replace(result, h("p", { class: "notice bad" }, error.message));
    }
  }
  if (id) load(id); else input.focus();
  return () => {};
}
