// The last hour of each node, from its memory.

import { repeat, show as ask } from "../api.js";
import { h, micros, number, rate, replace, s, time } from "../dom.js";

const CHARTS = [
  ["accepted", "Accepted per second", true], ["delivered", "Delivered per second", true], ["acknowledged", "Acknowledged per second", true], ["redelivered", "Redelivered per second", true],
  ["dead_lettered", "Dead letters per second", true], ["fsync_p99_us", "fsync, 99th percentile", false, micros], ["connections", "Connections", false],
];
const MINUTE_US = 60e6;
const WIDTH = 360;
const HEIGHT = 130;
const LEFT = 64;

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= value);
}

function chart(nodes, names, [field, title, isRate, format], width) {
  const shown = format ?? ((value) => (isRate ? `${rate(value)}/s` : number(value)));
  const series = names.map((name) => {
    const facts = nodes[name];
    return facts.at_us.map((at, place) => [at, isRate ? facts[field][place] / facts.seconds : facts[field][place]]);
  });
  const end = Math.max(Date.now() * 1000 - 10e6, ...series.flat().map(([at]) => at));
  // Of a node that was started lately, the time that it has seen.
  const begin = Math.max(end - 60 * MINUTE_US, Math.min(end - 10 * MINUTE_US, ...series.flat().map(([at]) => at)));
  const minutes = (end - begin) / MINUTE_US;
  const most = nice(Math.max(isRate ? 1 : field === "connections" ? 5 : 1000, ...series.flat().map(([, value]) => value)));
  const x = (at) => LEFT + ((width - LEFT - 6) * (at - begin)) / (end - begin);
  const y = (value) => HEIGHT - 20 - ((HEIGHT - 30) * value) / most;
  const lines = series.map((points, at) => s("path", { class: `series c${at % 8}`, d: points.map(([when, value], place) => `${place && when - points[place - 1][0] < 30e6 ? "L" : "M"}${x(when).toFixed(1)} ${y(value).toFixed(1)}`).join("") || "M0 0" }));
  const latest = names.map((name, at) => `${name} ${series[at].length ? shown(series[at].at(-1)[1]) : "nothing yet"}`).join(", ");
  return h("section", { class: width === WIDTH ? "panel" : "panel wide" }, h("h2", null, title),
    s("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${title} over the last hour; now ${latest}` },
      [0, 0.5, 1].map((part) => [s("line", { class: "grid", x1: LEFT, x2: width - 6, y1: y(most * part), y2: y(most * part) }), s("text", { x: LEFT - 5, y: y(most * part) + 4, "text-anchor": "end" }, shown(most * part))]),
      [0, 1, 2, 3].map((part) => s("text", { x: x(begin + ((end - begin) * part) / 3), y: HEIGHT - 4, "text-anchor": ["start", "middle", "middle", "end"][part] }, part < 3 ? `−${Math.round((minutes * (3 - part)) / 3)} min` : time(end))),
      lines),
    h("p", { class: "small row" }, names.map((name, at) => h("span", null, h("span", { class: `key c${at % 8}` }), `${name}: `, h("b", null, series[at].length ? shown(series[at].at(-1)[1]) : "–")))));
}

export function show(main) {
  const grid = h("div", { class: "charts" });
  const notice = h("div", { role: "status" });
  main.append(h("h1", null, "The last hour"), notice, grid);
  const round = repeat(10, async () => {
    try {
      const found = await ask("history", { scope: "mesh" });
      const names = Object.keys(found.nodes).sort();
      // The last chart takes its row if it would be alone there.
      const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
      const isAlone = columns > 1 && CHARTS.length % columns === 1;
      replace(grid, CHARTS.map((one, at) => chart(found.nodes, names, one, isAlone && at === CHARTS.length - 1 ? Math.max(WIDTH, grid.clientWidth - 40) : WIDTH)));
      replace(notice, found.nodes_missing.length > 0 && h("div", { class: "notice warn" }, `Without ${found.nodes_missing.join(", ")}, which ${found.nodes_missing.length === 1 ? "does" : "do"} not respond.`));
    } catch (error) {
      replace(notice, h("div", { class: "notice bad" }, error.message));
    }
  });
  return round.stop;
}
