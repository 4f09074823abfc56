// Numbers for people, and elements made of text: what the server says is never read as markup.

export function ms(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10_000) return `${(value / 1000).toFixed(0)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(1)} s`;
  return `${value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : value >= 0.1 || value === 0 ? 2 : 3)} ms`;
}

/** As `ms`, without zeros behind the point. */
export const shortMs = (value) => ms(value).replace(/\.0+(?= )/, "").replace(/(\.\d*?)0+(?= )/, "$1");

export function number(value) {
  if (value >= 10_000) return `${(value / 1000).toFixed(1)}k`;
  return value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
}

/** Bytes. */
export function size(value) {
  const mib = value / 2 ** 20;
  return mib >= 1000 ? `${(mib / 1024).toFixed(1)} GiB` : `${mib.toFixed(0)} MiB`;
}

export const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

/** Seconds since the epoch, with the date of another day. */
export function when(at) {
  const then = new Date(1000 * at), today = then.toDateString() === new Date().toDateString();
  return then[today ? "toLocaleTimeString" : "toLocaleString"]([], { hourCycle: "h23" });
}

export const byId = (id) => document.getElementById(id);

/** An element with attributes, and children that are elements or text. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

/** Set an element's text, where it has changed: a live region is read out with each change. */
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** Fill a table's body; rows are lists of cells, each with the classes of its column's heading. */
export function fill(table, rows) {
  const classes = [...table.tHead.rows[0].cells].map((heading) => heading.className);
  table.tBodies[0].replaceChildren(...rows.map((cells) => element("tr", {}, ...cells.map((cell, i) => element("td", { class: classes[i] }, cell)))));
}

/** A colour of the theme, as it is now. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
