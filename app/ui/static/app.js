// The page: holds the stream, the state and the charts together.

import { makeCharts } from "./charts.js";
import { Control } from "./control.js";
import { byId, element, fill, ms, number, percent, say, shortMs, size, when } from "./format.js";
import { Line, REASONS, partOf } from "./line.js";
import { State, keyOf, parts, quantile } from "./state.js";
import { Stream, adminKey, key } from "./stream.js";
import { Trial } from "./trial.js";

const HIDDEN_MS = 60_000; // a page that nobody sees for so long lets the server be
const ROWS = 25; // of the table of batches
const SLOW = matchMedia("(prefers-reduced-motion: reduce)").matches ? 4 : 1; // ticks for one drawing

const state = new State();
const trial = new Trial(state, askForKey);
const control = new Control(state, askForKey);
let charts = null, line = null, drawn = 0, reached = true, paused = false, hidden = null, longest = 900, withKey = null;

const stream = new Stream("ui/events", {
  state: linked,
  refused: askForKey,
  told(name, event) {
    if (name === "hello") begin(event);
    else if (name === "history") state.past(event);
    else if (name === "models") told(event.models);
    else if (name === "tick") tick(event);
  },
});

// the stream

function linked(what, why = "") {
  if (what === "connecting" && !reached) return; // again and again, which would be read out each time
  if (what === "live" || what === "offline") reached = what === "live";
  const words = { live: "live", connecting: "connecting", locked: "a key is needed", paused: "paused", offline: "offline" };
  const chip = byId("link");
  chip.className = `chip link ${what === "live" ? "good" : what === "offline" ? "bad" : ""}`;
  say(chip, words[what] + (why && what === "offline" ? `: ${why}` : ""));
  byId("forget").hidden = key.get() === null && adminKey.get() === null && what !== "locked";
  say(byId("forget"), what === "locked" ? "Enter key" : "Forget key");
  if (!reached) draw();
}

function begin(about) {
  const before = state.about;
  if (before && (before.version !== about.version || before.workers.length !== about.workers.length)) {
    location.reload(); // another server: its page may be another, too
    return;
  }
  state.hello(about);
  say(byId("about"), `${about.version} on ${about.device}`);
  if (charts === null) {
    charts = makeCharts(about);
    byId("k-device").hidden = !about.device_memory;
    line = new Line(about.workers.length, (one) => state.byProgram(one.program));
  }
}

function told(models) {
  state.told(models);
  byId("no-models").hidden = models.length > 0;
  byId("models").hidden = !models.length;
  trial.told();
  list();
}

function tick(event) {
  state.tick(event);
  drawn += 1;
  if (drawn % SLOW === 0 && !document.hidden) draw();
}

// the table of models

const SEVERITY = { READY: "good", LOADING: "warn", UNLOADING: "warn", UNTRIED: "warn" };

/** Made anew when the models change; ticks change its numbers alone, so that the focus stays. */
function list() {
  const focused = document.activeElement?.dataset?.key;
  byId("models").tBodies[0].replaceChildren(...state.models.flatMap((one) => {
    const button = element("button", { type: "button", "aria-pressed": String(keyOf(one) === state.chosen), "data-key": keyOf(one) }, one.name);
    button.addEventListener("click", () => choose(keyOf(one)));
    const name = element("td", {}, button, element("span", { class: "quiet" }, ` version ${one.version}`));
    const cells = ["", "", "", "", ""].map((text, i) => element("td", { class: i > 1 ? "n opt" : "n" }, text));
    const row = element("tr", { "data-model": keyOf(one) }, name,
      element("td", {}, element("span", { class: `state ${SEVERITY[one.state] ?? "bad"}` }, one.state ? one.state.toLowerCase() : "not loaded")),
      ...cells, element("td", { class: "opt" }, one.policy ?? ""));
    if (!one.reason) return [row];
    row.className = "has-why";
    return [row, element("tr", {}, element("td", { colspan: 8, class: "why" }, one.reason))];
  }));
  if (focused) document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  control.draw();
}

function choose(chosen) {
  state.chosen = chosen;
  for (const button of byId("models").querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.key === chosen));
  trial.choose(chosen);
  control.draw();
  draw();
}

function figures(track) {
  if (!track?.ticks.length) return ["", "", "", "", ""];
  const window = track.window(), bounds = state.about.latency_s;
  const at = (share) => quantile(window.latency, bounds, share);
  const latency = (share) => (at(share) === null ? "–" : ms(1000 * at(share)));
  return [number(track.rate()), number(track.waiting()), latency(0.5), latency(0.99), window.executions ? (window.rows / window.executions).toFixed(1) : "–"];
}

// drawing

function draw() {
  if (charts === null) return;
  const { model, track } = state;
  const chip = byId("status");
  chip.className = `chip ${!reached ? "" : state.notReady === null ? "good" : "bad"}`;
  chip.title = state.notReady ?? "";
  say(chip, !reached ? "unknown" : state.notReady === null ? "ready" : `not ready: ${state.notReady}`);
  for (const row of byId("models").querySelectorAll("[data-model]")) {
    figures(state.tracks.get(row.dataset.model)).forEach((text, i) => say(row.cells[2 + i], text));
  }
  for (const of of document.querySelectorAll(".of")) say(of, model ? `· ${model.name}` : "");
  tiles(track);
  const window = track?.ticks.length ? track.window() : null;
  const [at, ok, bad, realtime, bestEffort] = track?.series.columns ?? [[], [], [], [], []];
  charts.rate(state.at, longest, [at, ok, bad]);
  charts.queue(state.at, longest, [at, realtime, bestEffort]);
  charts.machine(state.at, longest, state.machine.columns.slice(0, state.about.device_memory ? 4 : 3));
  drawLatency(window ? window.latency : [...state.about.latency_s, 0].map(() => 0));
  drawPlan(model, track);
  drawParts(window);
  drawLine(model, window);
  drawErrors();
}

function tiles(track) {
  const [rate, waiting, p50, p99, batch] = figures(track).map((text) => text || "–");
  const now = track?.ticks.length ? track.now : null;
  say(byId("t-rate"), rate);
  say(byId("t-rows"), now ? number(track.rowsRate) : "–");
  say(byId("t-waiting"), waiting);
  const stages = (now?.at_stages ?? []).map(([waiting, running]) => waiting + running).join(" + ");
  say(byId("t-waiting-note"), now ? (now.at_stages.length > 1 ? `at stages: ${stages}` : `slots in use: ${now.slots}`) : "");
  say(byId("t-p50"), p50);
  say(byId("t-p99"), p99);
  say(byId("t-batch"), batch);
  say(byId("t-batch-note"), now ? `last 30 s; preferred: ${now.preferred}` : "last 30 s");
  const busy = state.busyShare(), { cores, memory, device_memory: device } = state.about;
  const [, used, resident, onDevice] = state.machine.columns.map((column) => column.at(-1));
  say(byId("t-cpu"), used === undefined ? "–" : used.toFixed(1));
  const share = busy.length ? `; workers ${percent(busy.reduce((a, b) => a + b, 0) / busy.length)} busy` : "";
  say(byId("t-cpu-note"), `of ${cores} core${cores > 1 ? "s" : ""}${share}`);
  say(byId("t-memory"), resident === undefined ? "–" : size(resident));
  const limits = [memory ? `of ${size(memory)}` : "", device && onDevice !== undefined ? `device: ${size(onDevice)} of ${size(device)}` : ""];
  say(byId("t-memory-note"), limits.filter(Boolean).join("; ") || "of the process");
}

function drawLatency(counts) {
  charts.latency(counts);
  if (!byId("latency-table").open) return;
  const bounds = [...state.about.latency_s.map((s) => shortMs(1000 * s)), "longer"];
  fill(byId("latency-table").querySelector("table"), counts.map((n, i) => [bounds[i], n]).filter(([, n]) => n));
}

function drawPlan(model, track) {
  const times = model?.batch_ms ?? [], seen = state.seen();
  charts.curve(times, track?.ticks.length ? track.now.scale : 1, seen);
  say(byId("origin"), model?.origin ? ` (${model.origin})` : "");
  if (byId("curve-table").open) {
    fill(byId("curve-table").querySelector("table"), times.map((time, i) => [i + 1, time.toFixed(3), seen(i + 1)?.toFixed(3) ?? "–"]));
  }
  const level = track?.ticks.length ? track.now.level : -1;
  const tables = model?.tables ?? [];
  const waiting = track?.ticks.length ? track.waiting() : 0;
  let text = "rows to run, of those that wait";
  if (!model) text = "";
  else if (model.cell) text = "which rows join a running cell is no table's choice";
  else if (!tables.length) text = model.policy === "adaptive" ? "no table is solved yet: all that waits runs" : `the policy ${model.policy ?? ""} looks nothing up`;
  else if (level < 0) text = "so little comes that all that waits runs; below is the table of the lowest load";
  else text = `rows to run, of those that wait, at a load of ${percent(model.loads[level])}`;
  say(byId("table-note"), text);
  const table = tables[Math.max(0, level)] ?? [];
  byId("table").hidden = byId("choice-table").hidden = !table.length;
  charts.table(table, waiting, text);
  if (byId("choice-table").open) fill(byId("choice-table").querySelector("table"), table.map((run, i) => [i, run || "none: wait"]).slice(1));
}

function drawParts(window) {
  const found = window ? parts(window) : [];
  const all = found.reduce((total, [, , value]) => total + value, 0) || 1;
  byId("parts-bar").replaceChildren(...found.map(([name, , value]) => {
    const piece = element("i", { class: `p-${name}` });
    piece.style.flexGrow = value;
    return piece;
  }));
  const row = ([name, text, value]) => [element("span", {}, element("i", { class: `k p-${name}` }), text), ms(value).replace(" ms", ""), percent(value / all)];
  fill(byId("parts"), found.length ? found.map(row) : [["no request in the last 30 s", "", ""]]);
}

function drawLine(model, window) {
  line.count(model && window ? `, and how many of ${model.name} did in the last 30 s:` : ":", window?.formed ?? {});
  const most = Math.max(1, ...state.models.map((one) => one.max_batch ?? 1), 1);
  const shown = state.batches.slice(-400).reduce((high, one) => Math.max(high, one.size), 1);
  line.draw(state.at, state.batches, state.unseen, model?.program ?? null, Math.min(most, Math.max(4, shown)));
  if (!byId("batches").open) return;
  const told = (one) => [
    (state.byProgram(one.program)?.name ?? "") + (one.batches > 1 ? `, and ${one.batches - 1} more` : ""), partOf(one, state.byProgram(one.program)), one.worker, one.rows, one.size,
    one.error ? `failed: ${one.error}` : REASONS[one.reason] ?? one.reason, state.about.classes[one.class].replace("_", " "), (one.took / 1e3).toFixed(2), (one.compute / 1e3).toFixed(2),
  ];
  fill(byId("batches").querySelector("table"), state.batches.slice(-ROWS).reverse().map(told));
}

function drawErrors() {
  const errors = [...state.errors.values()].reverse();
  byId("errors").hidden = !errors.length;
  say(byId("no-errors"), errors.length ? "" : "No request has failed since the server was started.");
  fill(byId("errors").querySelector("table"), errors.map((one) => [when(one.at), one.model || "none", one.code, one.message, one.count]));
}

// the keys

/** `which` key, and what is to be done when there is one. */
function askForKey(why, which = key, then = () => stream.start()) {
  const first = /^an \w+ key is needed/.test(why) && which.get() === null;
  say(byId("key-why"), first ? "" : why);
  say(byId("key-title"), which === adminKey ? "Loading and unloading needs the admin key" : "This server asks for a key");
  withKey = (value) => {
    which.set(value);
    then();
  };
  if (!byId("key").open) byId("key").showModal();
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const value = byId("key-value").value.trim();
  if (!value) return;
  byId("key-value").value = "";
  say(byId("key-why"), "");
  byId("key").close();
  paused = false;
  withKey(value);
});
byId("key-cancel").addEventListener("click", () => byId("key").close());
byId("forget").addEventListener("click", () => {
  const watched = key.get() !== null;
  adminKey.forget();
  key.forget();
  if (watched || byId("link").textContent !== "live") stream.start(); // which asks for one
  else linked("live");
});

// what else can be pressed

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  say(byId("pause"), paused ? "Resume" : "Pause");
  if (paused) {
    stream.stop();
    linked("paused");
  } else stream.start();
});
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", draw);
byId("longest").addEventListener("change", (event) => {
  longest = Number(event.target.value);
  draw();
});
byId("span").addEventListener("change", (event) => {
  if (line !== null) line.span = Number(event.target.value);
  draw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.addEventListener("visibilitychange", () => {
  clearTimeout(hidden);
  if (document.hidden) hidden = setTimeout(() => { stream.stop(); linked("paused"); }, HIDDEN_MS);
  else if (!paused && stream.control === null && !byId("key").open) stream.start();
});

stream.start();
