// The charts, drawn by uPlot on a canvas. Each has a text for screen readers, and its numbers stand elsewhere, too.

import { byId, colour, ms, number, shortMs, size } from "./format.js";
import { quantile } from "./state.js";

const HEIGHT = 180;
const LEAST_S = 30; // of the charts over time, while there is less to show

const ROUND = [-1, 0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((n) => n * 10 ** power));
const POWERS = Array.from({ length: 30 }, (_, i) => 2 ** (i + 20)); // of bytes
const WHOLE = Array.from({ length: 16 }, (_, i) => 2 ** i); // of rows there are no halves

/** Shows the values under the pointer. */
function tip(text) {
  let box;
  return {
    hooks: {
      init: (u) => {
        box = document.createElement("div");
        box.className = "tip";
        box.hidden = true;
        u.over.append(box);
      },
      setCursor: (u) => {
        const shown = u.cursor.idx === null || u.cursor.idx === undefined ? null : text(u, u.cursor.idx);
        box.hidden = !shown;
        if (!shown) return;
        box.textContent = shown;
        const right = u.cursor.left > u.over.clientWidth / 2;
        box.style.left = right ? "" : `${u.cursor.left + 12}px`;
        box.style.right = right ? `${u.over.clientWidth - u.cursor.left + 12}px` : "";
        box.style.top = "4px";
      },
    },
  };
}

function axis(more = {}) {
  const ink = () => colour("quiet"), grid = () => colour("grid");
  return { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 4 }, font: "11px system-ui, sans-serif", gap: 4, ...more };
}

/** A chart in the element `id`, as wide as that is. */
export function chart(id, options, data) {
  const place = byId(id);
  const plot = new uPlot({
    width: place.clientWidth || 300, height: HEIGHT, legend: { show: false }, padding: [8, 16, 0, 0],
    cursor: { y: false, drag: { x: false, y: false } }, ...options,
  }, data, place);
  plot.root.setAttribute("role", "img");
  new ResizeObserver(() => {
    if (place.clientWidth && place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height: plot.height });
  }).observe(place);
  return plot;
}

const label = (plot, text) => plot.root.setAttribute("aria-label", text);
const upTo = (least) => (u, low, high) => [0, Math.max(least, high * 1.08 || 0)];
const counts = axis({ size: 44, incrs: ROUND, values: (u, ticks) => ticks.map((v) => (v === null ? "" : number(v))) });

/** Lines over time: [{ name, stroke, show(value), axis }, ...]; those with an axis of their own have it on the right. */
function overTime(id, lines) {
  const tint = (u) => {
    const shade = u.ctx.createLinearGradient(0, u.bbox.top, 0, u.bbox.top + u.bbox.height);
    shade.addColorStop(0, `${colour(lines[0].stroke)}55`);
    shade.addColorStop(1, `${colour(lines[0].stroke)}05`);
    return shade;
  };
  const series = lines.map(({ stroke, axis: own }, i) => (
    { stroke: () => colour(stroke), width: 1.75, points: { show: false }, fill: i ? undefined : tint, scale: own ? "right" : "y" }));
  const right = lines.find((one) => one.axis);
  let now = 0, span = LEAST_S;
  const ago = (at) => {
    const s = Math.round(now - at);
    return s < 1 ? "now" : span > 120 ? `-${Number((s / 60).toFixed(1))} min` : `-${s} s`;
  };
  const plot = chart(id, {
    scales: { x: { time: false, range: () => [now - span, now] }, y: { range: upTo(1) }, ...(right && { right: { range: upTo(1) } }) },
    axes: [
      axis({ values: (u, ticks) => ticks.map(ago), splits: () => [0, 1, 2, 3].map((i) => now - span + i * span / 3), size: 26 }), counts,
      ...(right ? [axis({ scale: "right", side: 1, size: 56, incrs: POWERS, grid: { show: false }, values: (u, ticks) => ticks.map((v) => (v === null ? "" : right.show(v))) })] : []),
    ],
    series: [{}, ...series],
    plugins: [tip((u, i) => [ago(u.data[0][i]), ...lines.map(({ name, show }, n) => `${name} ${show(u.data[n + 1][i])}`)].join("\n"))],
  }, [[], ...lines.map(() => [])]);
  return (at, longest, data) => {
    now = at;
    const whole = Math.max(LEAST_S, at - (data[0][0] ?? at)), step = whole > 120 ? 90 : 30; // so that the axis has round times
    span = Math.min(longest, Math.ceil(whole / step) * step);
    plot.setData(data);
    const told = lines.map(({ name, show }, n) => `${name} ${show(data[n + 1].at(-1) ?? 0)}, at most ${show(data[n + 1].reduce((a, b) => Math.max(a, b), 0))}`);
    label(plot, `${told.join("; ")}; over the last ${Math.ceil(whole / 60)} minutes.`);
  };
}

function histogram(bounds) {
  const names = bounds.map((s) => shortMs(1000 * s));
  const name = (i) => (i < names.length ? `up to ${names[i]}` : "longer");
  let low = 0, high = 1;
  const plot = chart("latency", {
    scales: { x: { time: false, range: () => [low - 0.6, high + 0.6] }, y: { range: upTo(1) } },
    axes: [axis({ splits: () => Array.from({ length: high - low + 1 }, (_, i) => low + i), values: (u, at) => at.map((i) => ((high - i) % Math.ceil((high - low + 1) / (u.width / 62)) ? "" : names[i] ?? "more")), size: 26, grid: { show: false } }), counts],
    series: [{}, { paths: uPlot.paths.bars({ size: [0.86, 90], radius: 0.12 }), fill: () => colour("c-ok"), stroke: () => colour("c-ok"), width: 0, points: { show: false } }],
    plugins: [tip((u, i) => `${name(u.data[0][i])}: ${u.data[1][i]} requests`)],
  }, [[], []]);
  return (found) => {
    const some = found.map((n, i) => (n ? i : -1)).filter((i) => i >= 0);
    low = some.length ? Math.max(0, some[0] - 1) : 3;
    high = some.length ? Math.min(found.length - 1, Math.max(some.at(-1) + 1, low + 5)) : 12;
    plot.setData([found.map((_, i) => i), found]);
    const [p50, p99] = [0.5, 0.99].map((share) => quantile(found, bounds, share));
    label(plot, p50 === null ? "Latency: no request in the last 30 seconds." : `Latency over the last 30 seconds: half of the requests within ${ms(1000 * p50)}, 99 percent within ${ms(1000 * p99)}.`);
  };
}

function curve() {
  const line = (stroke, more) => ({ stroke: () => colour(stroke), width: 1.75, points: { show: false }, ...more });
  const plot = chart("curve", {
    scales: { x: { time: false, range: (u, low, high) => [0, Math.max(2, high ?? 2) + 0.5] }, y: { range: upTo(0.01) } },
    axes: [axis({ size: 26, incrs: WHOLE }), axis({ size: 52, values: (u, ticks) => ticks.map((v) => (v === null ? "" : shortMs(v))) })],
    series: [{}, line("c-ok"), line("c-now", { dash: [5, 4] }), { paths: () => null, points: { show: true, size: 7, fill: () => colour("c-dot"), stroke: () => colour("c-dot") } }],
    plugins: [tip((u, i) => `${u.data[0][i]} row${u.data[0][i] > 1 ? "s" : ""}\nprofiled  ${ms(u.data[1][i])}\npredicted ${ms(u.data[2][i])}\nseen      ${ms(u.data[3][i])}`)],
  }, [[], [], [], []]);
  return (times, scale, seen) => {
    const rows = times.map((_, i) => i + 1);
    plot.setData([rows, times, times.map((time) => time * scale), rows.map(seen)]);
    label(plot, times.length ? `Time of a batch: one row ${ms(times[0])}, ${times.length} rows ${ms(times.at(-1))}; the table below has all.` : "No batch times are known.");
  };
}

function choice() {
  let waiting = 0;
  const mark = (u) => {
    const x = Math.round(u.valToPos(Math.min(waiting, u.scales.x.max), "x", true));
    u.ctx.save();
    u.ctx.strokeStyle = colour("c-be");
    u.ctx.lineWidth = 2 * devicePixelRatio;
    u.ctx.beginPath();
    u.ctx.moveTo(x, u.bbox.top);
    u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
    u.ctx.stroke();
    u.ctx.restore();
  };
  const plot = chart("table", {
    scales: { x: { time: false, range: (u, low, high) => [0, Math.max(2, high ?? 2)] }, y: { range: upTo(1) } },
    axes: [axis({ size: 26, incrs: WHOLE }), axis({ size: 44, incrs: WHOLE })],
    series: [{}, { stroke: () => colour("grid"), width: 1.5, points: { show: false } }, { stroke: () => colour("c-now"), fill: () => `${colour("c-now")}33`, width: 1.75, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
    hooks: { draw: [mark] },
    plugins: [tip((u, i) => `${u.data[0][i]} wait: ${u.data[2][i] ? `run ${u.data[2][i]}` : "wait"}`)],
  }, [[], [], []]);
  return (table, now, text) => {
    waiting = now;
    const rows = table.map((_, i) => i);
    plot.setData([rows, rows.map((i) => Math.min(i, Math.max(0, ...table))), table]);
    label(plot, text);
  };
}

/** All charts but the time line; each is a function that draws. `about`: the server's first message. */
export function makeCharts(about) {
  const device = about.device_memory ? [{ name: "device memory", stroke: "c-now", show: size, axis: true }] : [];
  return {
    rate: overTime("rate", [
      { name: "answered/s", stroke: "c-ok", show: number }, { name: "refused or failed/s", stroke: "c-bad", show: number },
    ]),
    queue: overTime("queue", [
      { name: "real-time rows", stroke: "c-ok", show: number }, { name: "best-effort rows", stroke: "c-be", show: number },
    ]),
    machine: overTime("machine", [
      { name: "cores", stroke: "c-ok", show: (value) => value.toFixed(1) }, { name: "memory", stroke: "c-be", show: size, axis: true }, ...device,
    ]),
    latency: histogram(about.latency_s),
    curve: curve(),
    table: choice(),
  };
}
