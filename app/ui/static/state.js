// What the page knows: the last of each model's counters, and the differences that it shows.

const HISTORY_S = 900; // of the charts over time: as much as the server keeps
const WINDOW_S = 30; // of latency and its parts
const RATE_S = 1; // over which a rate is taken
const USED_S = 2; // over which the use of workers and CPU is taken
const SEEN_S = 30; // batches that are kept: those of the longest time line
const MOST_BLOCKS = 20_000; // of batches: those of SEEN_S, at the most that a tick has
const MOST_ERRORS = 20;

const sum = (values) => values.reduce((a, b) => a + b, 0);
const failed = (outcomes) => sum(Object.entries(outcomes).filter(([name]) => name !== "ok").map(([, n]) => n));

/** Values over time, as uPlot takes them: a list of times, and a list for each of `width` values. */
class Series {
  constructor(width) { this.columns = Array.from({ length: width + 1 }, () => []); }

  add(at, values) {
    const { columns } = this, [times] = columns;
    if (times.length && at <= times.at(-1)) return;
    columns.forEach((column, i) => column.push(i ? values[i - 1] : at));
    while (times[0] < at - HISTORY_S) for (const column of columns) column.shift();
  }

  /** Samples of the server's history, the last of them at the last of `times`: those that are newer than what is here. */
  fill(times, samples) {
    const first = times.length - samples.length;
    samples.forEach((values, i) => this.add(times[first + i] / 1e6, values));
  }
}

/** One version of a model: its counters over the last seconds. */
export class Track {
  constructor() {
    this.ticks = []; // {at, one}: counters, for WINDOW_S
    this.series = new Series(4); // answered/s, refused or failed/s, rows that wait: real time, best effort
  }

  add(at, one) {
    const last = this.ticks.at(-1);
    if (last && (last.one.program !== one.program || at <= last.at)) this.ticks = []; // counted anew
    this.ticks.push({ at, one });
    while (this.ticks[0].at < at - WINDOW_S) this.ticks.shift();
    const past = this.since(RATE_S);
    const span = at - past.at || 1;
    const count = (of, name) => sum(Object.values(of.outcomes).map((all) => name(all)));
    const ok = (all) => all.ok || 0;
    const rate = (which) => (count(one, which) - count(past.one, which)) / span;
    this.rowsRate = (one.rows - past.one.rows) / span;
    if (at > past.at) this.series.add(at, [rate(ok), rate(failed), one.waiting.realtime || 0, one.waiting.best_effort || 0]);
  }

  get now() { return this.ticks.at(-1).one; }

  /** The oldest counters of the last `seconds`. */
  since(seconds) {
    const at = this.ticks.at(-1).at;
    return this.ticks.find((tick) => tick.at >= at - seconds - 0.05);
  }

  /** What came to the counters within the window. */
  window() {
    const { now } = this;
    const past = this.since(WINDOW_S).one;
    const less = (a, b) => a.map((value, i) => value - (b[i] ?? 0));
    return {
      latency: less(now.latency, past.latency),
      calls: less(now.calls, past.calls),
      queue: less(now.queue, past.queue),
      compute: less(now.compute, past.compute),
      rows: now.rows - past.rows,
      executions: now.executions - past.executions,
      formed: Object.fromEntries(Object.entries(now.formed).map(([name, n]) => [name, n - (past.formed[name] ?? 0)])),
    };
  }

  rate() { return (this.series.columns[1].at(-1) ?? 0) + (this.series.columns[2].at(-1) ?? 0); }
  waiting() { return sum(Object.values(this.now.waiting)); }
}

/** Seconds below which this share of the calls were answered, between the bounds of their bucket; null for no call. */
export function quantile(counts, bounds, share) {
  const all = sum(counts);
  if (!all) return null;
  let left = share * all;
  for (let i = 0; i < counts.length; i++) {
    if (counts[i] && left <= counts[i]) {
      const low = i ? bounds[i - 1] : 0;
      const high = bounds[i] ?? bounds.at(-1);
      return low + (high - low) * (left / counts[i]);
    }
    left -= counts[i];
  }
  return bounds.at(-1);
}

/** The mean parts of a call, in milliseconds: [[class, name, ms], ...]; [] for no call. */
export function parts(window) {
  const [calls, total] = window.calls;
  const [queued, waited] = window.queue;
  if (!calls || !queued) return [];
  const [input, infer, output] = window.compute.map((ns) => ns / queued / 1e6);
  const queue = waited / queued / 1e6;
  const rest = Math.max(0, total / calls / 1e6 - queue - input - infer - output);
  return [
    ["queue", "queue and hand-over", queue], ["input", "gathering inputs", input], ["infer", "the model", infer],
    ["output", "copying outputs", output], ["rest", "decoding, encoding, the loop", rest],
  ];
}

export const keyOf = (one) => `${one.name}\n${one.version}`;

export class State {
  constructor() {
    this.about = null;
    this.models = []; // as the index has them
    this.chosen = null;
    this.clear();
  }

  clear() {
    this.tracks = new Map();
    this.batches = []; // oldest first, as objects
    this.unseen = []; // [from, to]: when the page was not open, or missed messages; until `to` none has come again
    this.used = []; // {at, busy: seconds by worker, cpu: seconds}
    this.machine = new Series(3); // cores, memory, device memory
    this.errors = new Map(); // oldest first
    this.at = 0;
    this.notReady = null;
  }

  hello(about) {
    if (this.about?.started !== about.started) this.clear(); // the server has been started again
    this.about = about;
  }

  /** What was before the page was opened, or while it was not connected. */
  past(event) {
    this.unseen.push([this.at, Infinity]);
    this.machine.fill(event.at, event.process);
    for (const one of event.models) this.trackOf(one).series.fill(event.at, one.samples);
    this.failures(event.errors);
  }

  failures(errors) {
    for (const one of errors) {
      const key = JSON.stringify([one.model, one.code, one.message]);
      this.errors.delete(key);
      this.errors.set(key, one);
    }
    while (this.errors.size > MOST_ERRORS) this.errors.delete(this.errors.keys().next().value);
  }

  trackOf(one) {
    const key = keyOf(one);
    if (!this.tracks.has(key)) this.tracks.set(key, new Track());
    return this.tracks.get(key);
  }

  told(models) {
    this.models = models;
    const keys = new Set(models.map(keyOf));
    if (!keys.has(this.chosen)) this.chosen = keyOf(models.find((one) => one.state === "READY") ?? models[0] ?? { name: "" });
  }

  /** The chosen line of the index, and what is counted of it, if it serves. */
  get model() { return this.models.find((one) => keyOf(one) === this.chosen); }
  get track() { return this.tracks.get(this.chosen); }

  byProgram(program) { return this.models.find((one) => one.program === program); }

  tick(event) {
    const at = event.at / 1e6;
    this.at = at;
    for (const range of this.unseen) range[1] = Math.min(range[1], at);
    while (this.unseen.length && this.unseen[0][1] < at - SEEN_S) this.unseen.shift();
    this.notReady = event.not_ready;
    const [cpu, ...memory] = event.machine;
    this.used.push({ at, busy: event.busy_s, cpu });
    while (this.used[0].at < at - USED_S) this.used.shift();
    const [first] = this.used;
    if (at > first.at) this.machine.add(at, [(cpu - first.cpu) / (at - first.at), ...memory]);
    this.failures(event.errors);
    for (const one of event.models) {
      const track = this.trackOf(one);
      // While one version replaces another, both are told of: the newer one counts.
      if (!track.ticks.length || one.program >= track.now.program) track.add(at, one);
    }
    const alive = new Set(event.models.map(keyOf));
    for (const key of this.tracks.keys()) if (!alive.has(key)) this.tracks.delete(key);
    for (const values of event.batches) this.batches.push(this.batch(values));
    while (this.batches.length > MOST_BLOCKS || (this.batches.length && this.batches[0].end < at - SEEN_S)) {
      this.batches.splice(0, Math.max(1, this.batches.length - MOST_BLOCKS));
    }
  }

  batch(values) {
    const one = Object.fromEntries(this.about.batch_fields.map((name, i) => [name, values[i]]));
    one.began /= 1e6;
    one.end = one.began + one.took / 1e6;
    return one;
  }

  /** The share of the last seconds that workers were busy, by worker. */
  busyShare() {
    const first = this.used[0], last = this.used.at(-1);
    if (!first || last.at <= first.at) return [];
    return last.busy.map((s, i) => Math.min(1, Math.max(0, (s - (first.busy[i] ?? 0)) / (last.at - first.at))));
  }

  /** By number of rows: the mean time of the chosen model's batches that were seen, in ms; null for none.
      Batches of a stage, or of some steps, are no whole ones: of such models none are told. */
  seen() {
    const { model } = this;
    const found = new Map();
    const whole = model && !model.stages && !model.cell;
    for (const one of whole ? this.batches : []) {
      if (one.program !== model.program || one.error) continue;
      const [n, total] = found.get(one.size) ?? [0, 0];
      found.set(one.size, [n + 1, total + one.compute / 1e3]);
    }
    return (rows) => (found.has(rows) ? found.get(rows)[1] / found.get(rows)[0] : null);
  }
}
