// The form that sends a request as any client would, and shows the answer, or the server's own message.

import { byId, element, ms, say } from "./format.js";
import { keyOf } from "./state.js";
import { errorOf, headers, split } from "./stream.js";

const LONGEST = 20_000; // characters of an answer that are shown

/** By datatype, of those whose values travel as they lie in memory. */
const ARRAYS = {
  BOOL: Uint8Array, UINT8: Uint8Array, UINT16: Uint16Array, UINT32: Uint32Array, UINT64: BigUint64Array,
  INT8: Int8Array, INT16: Int16Array, INT32: Int32Array, INT64: BigInt64Array,
  FP16: globalThis.Float16Array, FP32: Float32Array, FP64: Float64Array,
};

/** All values of a tensor whose `data` is {"fill": value}; null where that is no value of its datatype. */
function filled({ datatype, shape, data: { fill } }) {
  try {
    const array = new ARRAYS[datatype](shape.reduce((a, b) => a * b, 1));
    array.fill(array.BYTES_PER_ELEMENT === 8 && datatype !== "FP64" ? BigInt(fill) : fill);
    const [first] = array;
    return (datatype.startsWith("FP") ? Number.isFinite(first) : Number(first) === Number(fill)) ? array : null;
  } catch {
    return null; // as it is typed: what is wrong with it, the server says
  }
}

/** The parts of a body whose `data` may be {"fill": value} in place of very many values, which follow it as binary: as
    JSON they would be too much. */
export function expanded(text) {
  if (!text.includes('"fill"')) return [text];
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    return [text];
  }
  const inputs = Array.isArray(body?.inputs) ? body.inputs : [];
  const arrays = inputs.filter((tensor) => Object.hasOwn(tensor?.data ?? {}, "fill")).map(filled); // a list inherits one
  const left = [...arrays];
  // Within the text, because JavaScript would round what else there is of integers above 2^53.
  const head = text.replace(/"data"\s*:\s*\{\s*"fill"\s*:\s*([^{}]*?)\s*\}/g, (whole, value) => {
    const array = left.shift();
    return array ? `"parameters": {"binary_data_size": ${array.byteLength}}` : `"data": [${value}]`;
  });
  return [head, ...arrays.filter(Boolean)];
}

/** JSON on one line, with spaces. */
function flat(value) {
  if (Array.isArray(value)) return `[${value.map(flat).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${flat(one)}`).join(", ")}}`;
}

/** JSON for people: short values, and lists of plain ones, stand on one line. */
export function pretty(value, indent = "") {
  const line = flat(value);
  const plain = typeof value !== "object" || Array.isArray(value) && value.every((one) => one === null || typeof one !== "object");
  if (line.length <= 100 || plain) return line;
  const inner = `${indent}  `;
  if (Array.isArray(value)) return `[\n${value.map((one) => inner + pretty(one, inner)).join(",\n")}\n${indent}]`;
  const lines = Object.entries(value).map(([name, one]) => `${inner}${JSON.stringify(name)}: ${pretty(one, inner)}`);
  return `{\n${lines.join(",\n")}\n${indent}}`;
}

/** The text of an answer for people. One with integers that JavaScript would round stays as it came. */
export function readable(text) {
  if (/(^|[^\d.])\d{16}/.test(text)) return text;
  try {
    return pretty(JSON.parse(text));
  } catch {
    return text; // not JSON
  }
}

function timing(answer) {
  const found = Object.fromEntries([...(answer.headers.get("server-timing") ?? "").matchAll(/(\w+);dur=([\d.]+)/g)].map(([, name, value]) => [name, Number(value)]));
  return "total" in found ? found : null;
}

export class Trial {
  /** `refused(why)`: the server asks for a key. */
  constructor(state, refused) {
    this.state = state;
    this.refused = refused;
    this.shown = null; // the model whose example is in the form
    this.sending = false;
    this.model = byId("try-model");
    this.model.addEventListener("change", () => this.example());
    byId("try-way").addEventListener("change", () => this.way());
    byId("try-example").addEventListener("click", () => this.example());
    byId("try").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
  }

  /** The models have changed. What was typed stays, while its model does. */
  told() {
    const ready = this.state.models.filter((one) => one.example);
    const before = this.model.value;
    this.model.replaceChildren(...ready.map((one) => element("option", { value: keyOf(one) }, `${one.name} : ${one.version}`)));
    const keys = ready.map(keyOf);
    this.model.value = keys.includes(before) ? before : keys.includes(this.state.chosen) ? this.state.chosen : keys[0] ?? "";
    byId("try-send").disabled = this.sending || !ready.length;
    if (this.model.value !== this.shown) this.example();
  }

  choose(key) {
    if ([...this.model.options].some((one) => one.value === key)) {
      this.model.value = key;
      this.example();
    }
  }

  get one() { return this.state.models.find((model) => keyOf(model) === this.model.value); }

  /** What the model's users send comes first; all of them take V2 JSON. */
  example() {
    const { one } = this;
    this.shown = this.model.value;
    const [values, ...others] = byId("try-way").options;
    for (const option of others) option.disabled = !one || one.sends === "values";
    byId("try-way").value = one?.sends ?? values.value;
    byId("try-body").value = one ? pretty(one.example) : "";
    const [first] = [one?.example.inputs[0].data].flat(Infinity);
    byId("try-text").value = (typeof first === "string" && first) || "some text";
    const filled = one && JSON.stringify(one.example).includes('{"fill":');
    const told = (all) => all.map((tensor) => `${tensor.name} ${tensor.datatype} [${tensor.shape.join(", ")}]`).join("; ");
    say(byId("try-hint"), one ? `takes ${told(one.inputs)}; returns ${told(one.outputs)}.${filled ? ' {"fill": v} stands for as many values as the shape says.' : ""}` : "");
    this.way();
  }

  way() {
    const { value } = byId("try-way");
    byId("try-values").hidden = value !== "values";
    byId("try-words").hidden = value !== "text";
    byId("try-file").hidden = value !== "file";
    byId("try-example").hidden = value === "file";
  }

  request() {
    const { one } = this, place = `${encodeURIComponent(one.name)}/versions/${encodeURIComponent(one.version)}`;
    const klass = byId("try-class").value;
    const more = klass ? { "X-Class": klass } : {};
    const way = byId("try-way").value;
    if (way === "values") {
      const [head, ...arrays] = expanded(byId("try-body").value);
      const binary = arrays.length ? { "Inference-Header-Content-Length": new Blob([head]).size } : {};
      return [`v2/models/${place}/infer`, { method: "POST", body: new Blob([head, ...arrays]), headers: headers({ "Content-Type": "application/json", ...binary, ...more }) }];
    }
    if (one.writes && way === "text") {
      const body = JSON.stringify({ text_input: byId("try-text").value });
      return [`v2/models/${place}/generate_stream`, { method: "POST", body, headers: headers({ "Content-Type": "application/json", ...more }) }];
    }
    const file = way === "file" ? byId("try-upload").files[0] : null;
    const kind = file ? (file.type ? { "Content-Type": file.type } : {}) : { "Content-Type": "text/plain" };
    return [`predict/${place}`, { method: "POST", body: file ?? byId("try-text").value, headers: headers({ ...kind, ...more }) }];
  }

  async send() {
    if (!this.one) return;
    if (byId("try-way").value === "file" && !byId("try-upload").files.length) {
      byId("answer-status").className = "bad";
      say(byId("answer-status"), "Choose a file first.");
      this.bar(null); // what is left of the last answer
      byId("answer-body").hidden = true;
      byId("try-upload").focus();
      return;
    }
    const count = Math.min(64, Math.max(1, Math.round(Number(byId("try-count").value)) || 1));
    byId("try-count").value = count;
    byId("try-send").disabled = this.sending = true;
    try {
      const [url, options] = this.request();
      this.show(await Promise.all(Array.from({ length: count }, () => this.ask(url, options))));
    } finally {
      this.sending = false;
      byId("try-send").disabled = !this.one;
    }
  }

  async ask(url, options) {
    const began = performance.now();
    try {
      const answer = await fetch(url, options);
      if (answer.status === 401) {
        const why = await errorOf(answer);
        this.refused(why);
        return { error: why, status: 401 };
      }
      if (!answer.ok) return { error: await errorOf(answer), status: answer.status };
      const kind = answer.headers.get("content-type") ?? "";
      if (kind.startsWith("text/event-stream")) return await this.read(answer, began);
      const text = /json|text/.test(kind) ? await answer.text() : `${(await answer.arrayBuffer()).byteLength} bytes of ${kind}`;
      return { status: answer.status, text, took: performance.now() - began, timing: timing(answer), batch: Number(answer.headers.get("x-batch-size")) };
    } catch (error) {
      return { error: `the server was not reached: ${error.message}`, status: 0 };
    }
  }

  /** A text that is shown while it is written. */
  async read(answer, began) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const body = byId("answer-body");
    let events, rest = "", text = "", last = {}, first = null;
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      [events, rest] = split(rest + part.value);
      for (const [, data] of events) {
        last = JSON.parse(data);
        text += last.text_output ?? "";
      }
      first ??= performance.now() - began;
      body.hidden = false;
      body.textContent = text;
    }
    if (last.error || !last.finish_reason) return { error: last.error ?? "the answer broke off", status: answer.status };
    return { status: answer.status, text, took: performance.now() - began, timing: null, tokens: last.generated_tokens, first };
  }

  show(answers) {
    const wrong = answers.filter((one) => one.error), right = answers.filter((one) => !one.error);
    const status = byId("answer-status"), body = byId("answer-body");
    status.className = wrong.length ? "bad" : "good";
    const first = right[0];
    const sizes = [...new Set(right.map((one) => one.batch))].sort((a, b) => a - b).join(", ");
    const spread = right.map((one) => one.timing?.total ?? one.took).sort((a, b) => a - b);
    const said = [];
    if (wrong.length) said.push(`${answers.length > 1 ? `${wrong.length} of ${answers.length}: ` : ""}${wrong[0].status || "no answer"}: ${wrong[0].error}`);
    if (right.length === 1 && first.first) said.push(`${first.tokens ? `${first.tokens} tokens` : first.status} in ${ms(first.took)}, the first after ${ms(first.first)}`);
    else if (right.length === 1) said.push(`${first.status} in ${ms(first.timing?.total ?? first.took)}, in a batch of ${first.batch || "?"} row${first.batch === 1 ? "" : "s"}`);
    if (right.length > 1) said.push(`${right.length} answers in ${ms(spread[0])} to ${ms(spread.at(-1))}, ${first.first ? "" : `in batches of ${sizes} rows `}(a browser sends no more than six at a time)`);
    say(status, said.join(". "));
    this.bar(first?.timing ?? null);
    body.hidden = !first;
    if (!first) return;
    const text = readable(first.text);
    body.textContent = text.length > LONGEST ? `${text.slice(0, LONGEST)}\n... ${text.length - LONGEST} characters more` : text;
  }

  /** What the server says its time went into, of the first answer. */
  bar(found) {
    const bar = byId("answer-bar");
    bar.hidden = found === null;
    say(byId("answer-parts"), "");
    if (found === null) return;
    const rest = Math.max(0, found.total - found.queue - found.compute);
    const parts = [["queue", found.queue, "queue and hand-over"], ["infer", found.compute, "computing"], ["rest", rest, "the rest"]];
    bar.replaceChildren(...parts.map(([name, value]) => {
      const piece = element("i", { class: `p-${name}` });
      piece.style.flexGrow = value;
      return piece;
    }));
    byId("answer-parts").replaceChildren(...parts.flatMap(([name, value, text]) => [element("i", { class: `k p-${name}` }), `${text} ${ms(value)} `]));
  }
}
