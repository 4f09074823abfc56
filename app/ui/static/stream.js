// The event stream, read by fetch: an EventSource can send no header, and a key has no place in a URL.

const LONGEST_WAIT_MS = 10_000;
const SILENCE_MS = 5_000; // a stream that ticks and says nothing for so long is dead

/** In sessionStorage: this tab's, until it is closed. */
const stored = (name) => ({
  get: () => sessionStorage.getItem(name),
  set: (value) => sessionStorage.setItem(name, value),
  forget: () => sessionStorage.removeItem(name),
});
export const key = stored("starling-key");
export const adminKey = stored("starling-admin-key");

/** Headers of any request to the server. */
export function headers(more = {}, which = key) {
  const value = which.get();
  return value === null ? more : { ...more, "X-API-Key": value };
}

/** The server's own words for an answer that is an error. */
export async function errorOf(answer) {
  const text = await answer.text();
  try {
    const body = JSON.parse(text);
    if (typeof body.error === "string") return body.error;
  } catch { /* a proxy's page, or nothing */ }
  return text.slice(0, 500) || `status ${answer.status}`;
}

/** Complete events of a text: [[name, data], ...], and the rest of it. */
export function split(text) {
  const blocks = text.split("\n\n");
  const rest = blocks.pop();
  const events = blocks.map((block) => {
    let name = "message", data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    return [name, data];
  });
  return [events, rest];
}

/** Stays connected until `stop`: told(name, event), state(what, why), refused(why) where a key is asked for. */
export class Stream {
  constructor(url, { told, state, refused }) {
    Object.assign(this, { url, told, state, refused });
    this.control = null;
    this.timer = null;
    this.wait = 500;
  }

  start() {
    this.stop();
    const control = this.control = new AbortController();
    this.state("connecting");
    this.run(control).catch((error) => this.again(control, String(error.message || error)));
  }

  stop() {
    clearTimeout(this.timer);
    if (this.control !== null) this.control.abort();
    this.control = null;
  }

  async run(control) {
    const answer = await fetch(this.url, { headers: headers(), signal: control.signal, cache: "no-store" });
    if (answer.status === 401) {
      this.control = null;
      this.state("locked");
      this.refused(await errorOf(answer));
      return;
    }
    if (!answer.ok) throw new Error(await errorOf(answer));
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    this.wait = 500;
    let silence;
    try {
      for (;;) {
        silence = setTimeout(() => reader.cancel(), SILENCE_MS);
        const { done, value } = await reader.read();
        clearTimeout(silence);
        if (control.signal.aborted) return;
        if (done) throw new Error("the stream has ended");
        let events;
        [events, rest] = split(rest + value);
        for (const [name, data] of events) {
          if (name === "hello") this.state("live");
          if (name === "bye") throw new Error(JSON.parse(data).reason);
          this.told(name, JSON.parse(data));
        }
      }
    } finally {
      clearTimeout(silence);
    }
  }

  again(control, why) {
    if (control.signal.aborted || this.control !== control) return;
    control.abort();
    this.state("offline", why);
    this.timer = setTimeout(() => this.start(), this.wait);
    this.wait = Math.min(2 * this.wait, LONGEST_WAIT_MS);
  }
}
