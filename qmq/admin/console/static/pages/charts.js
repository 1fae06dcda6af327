// The last hour of each node, from its memory, or from that of the others where it has ended.

import { repeat, show as ask } from "../api.js";
import { bytes, endsOf, GAP_US, h, micros, number, rate, replace, s, span, time } from "../dom.js";

const perSecond = (value) => `${rate(value)}/s`;
const percent = (value) => `${(value / 1e4).toFixed(value < 1e5 ? 1 : 0)} %`;

// Field, title, whether it is shown per second, how a value is written, and the least that the chart goes up to.
const CHARTS = [
  ["waiting", "Waiting", false, number, 10], ["in_flight", "In flight", false, number, 10],
  ["accepted", "Accepted per second", true, perSecond, 1], ["delivered", "Delivered per second", true, perSecond, 1],
  ["acknowledged", "Acknowledged per second", true, perSecond, 1],
  ["redelivered", "Redelivered per second", true, perSecond, 1], ["dead_lettered", "Dead letters per second", true, perSecond, 1],
  ["fsync_p99_us", "fsync, 99th percentile", false, micros, 1000], ["cpu_us", "Processor", true, percent, 1e5],
  ["resident_bytes", "Memory of the process", false, bytes, 1e8], ["connections", "Connections", false, number, 5],
];

// Of one queue.
export const QUEUE_CHARTS = [
  ["waiting", "Waiting", false, number, 10], ["in_flight", "In flight", false, number, 10],
  ["accepted", "In per second", true, perSecond, 1], ["acknowledged", "Acknowledged per second", true, perSecond, 1],
];
const MINUTE_US = 60e6;
const WIDTH = 360;
const HEIGHT = 130;
const LEFT = 64;

let minutes = 60; // As chosen last.

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= value);
}

// One chart. `point(at)` shows the values of that moment in place of the latest; undefined: the latest again.
function chart(nodes, names, missing, [field, title, isRate, shown, least], { begin, end }, width, onPoint) {
  const series = names.map((name) => {
    const facts = nodes[name];
    const found = facts[field] ?? []; // An older node does not have it.
    return found.map((value, place) => [facts.at_us[place], isRate ? value / facts.seconds : value]).filter(([at]) => at >= begin);
  });
  const most = nice(Math.max(least, ...series.flat().map(([, value]) => value)));
  const x = (at) => LEFT + ((width - LEFT - 6) * (at - begin)) / (end - begin);
  const y = (value) => HEIGHT - 20 - ((HEIGHT - 30) * value) / most;
  const path = (points) => points.map(([when, value], place) => `${place && when - points[place - 1][0] < GAP_US ? "L" : "M"}${x(when).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const lines = series.map((points, at) => s("path", { class: `series c${at % 8}`, d: path(points) || "M0 0" }));
  const ends = names.map((name) => endsOf(nodes[name].at_us, end, missing.includes(name)).filter((at) => at >= begin));
  const now = (at) => { const last = series[at].at(-1); return !last ? "nothing yet" : last[0] === ends[at].at(-1) ? `ended ${time(last[0])}` : shown(last[1]); };
  const latest = names.map((name, at) => `${name} ${now(at)}`).join(", ");
  const cross = s("line", { class: "cross", y1: 6, y2: HEIGHT - 20, x1: -9, x2: -9 });
  const values = names.map(() => h("b"));
  const moment = h("span", { class: "dim" });
  const ago = (end - begin) / 1e6;
  const drawing = s("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${title} over the last ${minutes === 60 ? "hour" : `${minutes} minutes`}; now ${latest}` },
    [0, 0.5, 1].map((part) => [s("line", { class: "grid", x1: LEFT, x2: width - 6, y1: y(most * part), y2: y(most * part) }), s("text", { x: LEFT - 5, y: y(most * part) + 4, "text-anchor": "end" }, shown(most * part))]),
    [0, 1, 2, 3].map((part) => s("text", { x: x(begin + ((end - begin) * part) / 3), y: HEIGHT - 4, "text-anchor": ["start", "middle", "middle", "end"][part] }, part < 3 ? `−${span((ago * (3 - part)) / 3)}` : time(end))),
    ends.map((times, at) => times.map((when) => [s("line", { class: `ended c${at % 8}`, x1: x(when), x2: x(when), y1: 10, y2: HEIGHT - 20 }), s("text", { x: x(when) - 4, y: 9, "text-anchor": x(when) > LEFT + 60 ? "end" : "start" }, `${names[at]} ended`)])),
    lines, cross);
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const at = begin + ((((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - 6)) * (end - begin);
    onPoint(at >= begin && at <= end ? at : undefined);
  });
  drawing.addEventListener("pointerleave", () => onPoint(undefined));
  const point = (at) => {
    const place = at === undefined ? -9 : x(at);
    cross.setAttribute("x1", place);
    cross.setAttribute("x2", place);
    series.forEach((points, one) => {
      if (at === undefined) { values[one].textContent = now(one); return; }
      const near = points.reduce((best, each) => (!best || Math.abs(each[0] - at) < Math.abs(best[0] - at) ? each : best), undefined);
      values[one].textContent = near && Math.abs(near[0] - at) < GAP_US ? shown(near[1]) : "–";
    });
    replace(moment, at !== undefined && time(at));
  };
  point(undefined);
  const element = h("section", { class: width === WIDTH ? "panel" : "panel wide" }, h("h2", null, title), drawing,
    h("p", { class: "small row" }, names.map((name, at) => h("span", null, h("span", { class: `key c${at % 8}` }), `${name}: `, values[at])), h("span", { class: "grow" }), moment));
  return { element, point };
}

// Charts with one pointer over all. `load()` returns the samples by node; `onDrawn(nodes)` is called before each drawing.
export function chartsOf(list, load, onDrawn = () => {}) {
  const grid = h("div", { class: "charts" });
  const notice = h("div", { role: "status" });
  let nodes = {};
  let missing = [];
  let drawn = [];
  let pointed;
  const onPoint = (at) => { pointed = at; for (const one of drawn) one.point(at); };
  const buttons = [[10, "10 minutes"], [60, "1 hour"]].map(([wanted, text]) => h("button", { type: "button", "data-minutes": wanted, onclick: () => { minutes = wanted; draw(); } }, text));
  function draw() {
    const names = Object.keys(nodes).sort();
    const times = names.flatMap((name) => nodes[name].at_us);
    const end = Math.max(Date.now() * 1000 - 10e6, ...times);
    // Of a node that was started lately, the time that it has seen.
    const begin = Math.max(end - minutes * MINUTE_US, Math.min(end - 2 * MINUTE_US, ...times));
    // The last chart takes its row if it would be alone there.
    const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
    const isAlone = columns > 1 && list.length % columns === 1;
    drawn = list.map((one, at) => chart(nodes, names, missing, one, { begin, end }, isAlone && at === list.length - 1 ? Math.max(WIDTH, grid.clientWidth - 40) : WIDTH, onPoint));
    onDrawn(nodes);
    for (const one of buttons) one.setAttribute("aria-pressed", String(Number(one.dataset.minutes) === minutes));
    replace(grid, drawn.map((one) => one.element));
    if (pointed !== undefined) onPoint(pointed);
  }
  const round = repeat(10, async () => {
    try {
      const found = await load();
      nodes = found.nodes;
      missing = found.nodes_missing;
      replace(notice, missing.map((name) => h("div", { class: "notice warn" }, nodes[name] ? `${name} does not respond. Up to its end it is shown as the other nodes have seen it.` : `Without ${name}, which does not respond.`)));
    } catch (error) {
      replace(notice, h("div", { class: "notice bad" }, error.message));
    }
    draw();
  });
  return { buttons, element: h("div", null, notice, grid), draw, stop: round.stop };
}

export function show(main) {
  const title = h("h1");
  const charts = chartsOf(CHARTS, () => ask("history", { scope: "mesh" }), () => replace(title, minutes === 60 ? "The last hour" : `The last ${minutes} minutes`));
  main.append(h("div", { class: "row top" }, title, h("span", { class: "grow" }), charts.buttons), charts.element);
  charts.draw();
  return charts.stop;
}
