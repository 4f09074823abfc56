// The time line: each batch a block in its worker's lane, as long as it took, as high as it had rows. Where there are
// more of them than can be told apart, some that followed one another are one block, as high as the first of them.

import { chart } from "./charts.js";
import { byId, colour, element, ms, number, say } from "./format.js";

export const REASONS = {
  idle: "all that waited", table: "as the table says", full: "full", deadline: "a deadline", hold_ended: "held long enough",
  retry: "part of a failed one",
};
const HIGHEST = 84, LOWEST = 34; // pixels of a lane: of one worker, and of very many
const MOST_LANES = 12;

/** Which stages of its model a batch ran, or how many steps; "" for a model in one piece. */
export function partOf(one, model) {
  if (model?.cell) return `${one.steps} step${one.steps > 1 ? "s" : ""}`;
  if (!model?.stages) return "";
  return one.steps > 1 ? `stages ${one.stage}-${one.stage + one.steps - 1}` : `stage ${one.stage}`;
}

export class Line {
  /** `modelOf(batch)`: what the index has of its model, or undefined. */
  constructor(workers, modelOf) {
    this.lanes = Math.max(1, Math.min(workers, MOST_LANES));
    this.modelOf = modelOf;
    this.span = 10;
    this.now = 0;
    this.batches = [];
    this.unseen = [];
    this.chosen = null;
    this.most = 1;
    this.boxes = []; // what is drawn, for the pointer: [left, right, lane, batch]
    this.title = element("span", {});
    this.counts = Object.fromEntries(Object.keys(REASONS).map((name) => [name, element("b", {})]));
    byId("reasons").replaceChildren(this.title, " ", ...Object.entries(REASONS).map(([name, text]) =>
      element("span", { class: "item" }, element("i", { class: `k r-${name}` }), `${text} `, this.counts[name])));
    const quiet = () => colour("quiet");
    const lanes = Array.from({ length: this.lanes }, (_, i) => i);
    const base = { stroke: quiet, font: "11px system-ui, sans-serif", gap: 4, ticks: { show: false } };
    this.plot = chart("line", {
      height: 34 + this.lanes * Math.max(LOWEST, Math.round(HIGHEST / Math.sqrt(this.lanes))), padding: [4, 16, 0, 0],
      cursor: { y: true, x: true, drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: () => [this.now - this.span, this.now] }, y: { range: () => [0, this.lanes] } },
      axes: [
        { ...base, size: 26, grid: { stroke: () => colour("grid") }, splits: () => [0, 1, 2, 3, 4, 5].map((i) => this.now - this.span + i * this.span / 5), values: (u, ticks) => ticks.map((v) => (this.now - v < 0.01 ? "now" : `${(v - this.now).toFixed(this.span < 5 ? 1 : 0)} s`)) },
        { ...base, size: 62, grid: { stroke: () => colour("grid") }, splits: () => lanes.map((i) => i + 0.5), values: () => lanes.map((i) => `worker ${this.lanes - 1 - i}`) },
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: { draw: [(u) => this.paint(u)], init: [(u) => this.prepare(u)], setCursor: [(u) => this.hover(u)] },
    }, [[0], [0]]);
  }

  /** Counters of batches by reason, which also have those that are not drawn. */
  count(text, formed) {
    say(this.title, `Why a batch left then${text}`);
    for (const [name, place] of Object.entries(this.counts)) say(place, formed[name] ? number(formed[name]) : "");
  }

  draw(now, batches, unseen, chosen, most) {
    Object.assign(this, { now, batches, unseen, chosen, most });
    this.plot.setData([[now - this.span, now], [0, 0]]);
    const shown = batches.filter((one) => one.end > now - this.span);
    const count = shown.reduce((all, one) => all + one.batches, 0);
    this.plot.root.setAttribute("aria-label", count
      ? `${count} batch${count > 1 ? "es" : ""} in the last ${this.span} seconds; the table below has the last of them.`
      : `No batch in the last ${this.span} seconds.`);
  }

  paint(u) {
    const { ctx } = u, scale = devicePixelRatio, lane = u.bbox.height / this.lanes;
    const colours = Object.fromEntries(Object.keys(REASONS).map((name) => [name, colour(`r-${name}`)]));
    this.boxes = [];
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    ctx.font = `600 ${11 * scale}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "center";
    for (const [from, to] of this.unseen) {
      if (to < this.now - this.span) continue;
      const left = Math.max(u.bbox.left, u.valToPos(from, "x", true)), wide = u.valToPos(Math.min(to, this.now), "x", true) - left;
      ctx.fillStyle = colour("grid");
      ctx.fillRect(left, u.bbox.top, wide, u.bbox.height);
      ctx.fillStyle = colour("quiet");
      if (wide > 140 * scale) ctx.fillText("not seen by this page", left + wide / 2, u.bbox.top + u.bbox.height / 2);
    }
    for (const one of this.batches) {
      if (one.end < this.now - this.span || one.worker >= this.lanes) continue;
      const left = u.valToPos(one.began, "x", true);
      const right = Math.max(left + scale, u.valToPos(one.end, "x", true));
      const bottom = u.bbox.top + lane * (one.worker + 1) - 3 * scale;
      const height = (rows) => (lane - 8 * scale) * (0.22 + 0.78 * Math.min(1, rows / this.most));
      const wide = Math.max(scale, right - left - (right - left > 6 * scale ? scale : 0));
      const fill = colours[one.reason] ?? colour("quiet");
      const faint = this.chosen !== null && one.program !== this.chosen ? 0.3 : 1;
      ctx.fillStyle = fill;
      ctx.globalAlpha = 0.3 * faint; // padding
      if (one.size > one.rows) ctx.fillRect(left, bottom - height(one.size), wide, height(one.size));
      ctx.globalAlpha = faint;
      ctx.fillRect(left, bottom - height(one.rows), wide, height(one.rows));
      if (one.error) {
        ctx.strokeStyle = colour("c-bad");
        ctx.lineWidth = 2 * scale;
        ctx.strokeRect(left, bottom - height(one.size), wide, height(one.size));
      }
      const part = partOf(one, this.modelOf(one));
      const text = part && wide > 62 * scale ? `${one.rows}, ${part}` : `${one.rows}`;
      if (wide > (8 + 7 * text.length) * scale && height(one.rows) > 13 * scale) {
        ctx.fillStyle = colour("card");
        ctx.fillText(text, left + wide / 2, bottom - height(one.rows) / 2);
      }
      this.boxes.push([left / scale, (left + wide) / scale, one.worker, one]);
    }
    ctx.restore();
  }

  prepare(u) {
    this.tip = element("div", { class: "tip", hidden: true });
    u.over.append(this.tip);
  }

  /** The batch under the pointer, or next to it: most are a pixel wide. */
  hover(u) {
    const { left, top } = u.cursor;
    const x = left + u.bbox.left / devicePixelRatio;
    const lane = Math.floor(top / (u.over.clientHeight / this.lanes));
    let near = null, least = 4;
    for (const [from, to, worker, one] of left < 0 ? [] : this.boxes) {
      const away = worker === lane ? Math.max(from - x, x - to, 0) : Infinity;
      if (away < least) [near, least] = [one, away];
    }
    this.tip.hidden = near === null;
    if (near === null) return;
    const model = this.modelOf(near);
    const part = partOf(near, model);
    const stage = part ? `\n${part}, ${near.operation}` : "";
    this.tip.textContent = `${near.batches > 1 ? `${near.batches} batches one after another, the first of them:\n` : ""}${model?.name ?? "a model that has gone"}: ${near.rows} row${near.rows > 1 ? "s" : ""}${near.size > near.rows ? ` run as ${near.size}` : ""}\n${REASONS[near.reason] ?? near.reason}, ${ms(near.took / 1e3)}${stage}${near.error ? `\nfailed: ${near.error}` : ""}`;
    const right = left > u.over.clientWidth / 2;
    this.tip.style.left = right ? "" : `${left + 12}px`;
    this.tip.style.right = right ? `${u.over.clientWidth - left + 12}px` : "";
    this.tip.style.top = "2px";
  }
}
