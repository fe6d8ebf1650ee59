// Elements, and texts of others in them. Texts are only ever set as text: nothing in them becomes markup.

export const get = (id) => document.getElementById(id);

// Characters that a page must not hide: C0 controls but tab and line feed, DEL, C1; zero-width space, line and paragraph
// separators, the embeddings, overrides and isolates of bidirectional text, invisible operators, the byte order mark,
// interlinear annotations, tags, and lone surrogates. The joiners and the marks of direction stay: emoji and
// right-to-left scripts need them.
const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\u{e0000}-\u{e007f}]/gu;

const nameCharacter = (character) => {
  const code = character.codePointAt(0);
  return code < 0x20 ? String.fromCharCode(0x2400 + code) : `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
};

// Replace hidden characters by visible ones: U+0000 by its picture, U+202E by `[U+202E]`.
export const makeVisible = (text) => text.replaceAll("\r\n", "\n").replace(HIDDEN, nameCharacter);
const show = (value) => (typeof value === "string" ? makeVisible(value) : value);

// Make an element. Properties are set as properties, `class`, `role`, `list`, `aria-…` and `data-…` as attributes.
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (/^(aria-|alt$|title$)/.test(key)) element.setAttribute(key, show(value === true ? "true" : value));
    else if (/^(class|role|list|for|data-)/.test(key)) element.setAttribute(key, value === true ? "true" : value);
    else element[key] = value;
  }
  setContent(element, ...children);
  return element;
}

export const setContent = (element, ...children) =>
  element.replaceChildren(...children.flat(Infinity).filter((child) => ![null, undefined, false, ""].includes(child)).map(show));

export function makeButton(text, act, properties = {}) {
  const button = make("button", { type: "button", ...properties }, text);
  button.onclick = async () => {
    button.disabled = true;
    try {
      await act(button);
    } finally {
      button.disabled = false;
    }
  };
  return button;
}

const SVG = "http://www.w3.org/2000/svg";
export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, show(value));
  element.append(...children.flat(Infinity).map(show));
  return element;
}

// Say something to everybody who looks or listens: a text, and a link where it leads on.
let silence;
export function tell(text, isBad = false, link = null) {
  setContent(get("told"), text, link && [" ", link]);
  get("told").classList.toggle("bad", isBad);
  clearTimeout(silence);
  silence = setTimeout(() => get("told").replaceChildren(), link ? 30_000 : 8000);
}

export const makeSessionLink = (id, text = id) => make("a", { href: `#/s/${encodeURIComponent(id)}` }, text);

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    tell("Copied.");
  } catch {
    tell("The browser does not let the page copy: select the text.", true);
  }
}

// ---- What the list and the header of a session say of it: the same in both.

const WORKING = ["preparing", "checking", "awaiting_model", "stopping", "awaiting_tools", "summarizing"];

// The status in the words of lists, of a session whose own status is given.
export const getListedStatus = (status, hasFailed) =>
  WORKING.includes(status) ? "working" : status === "hibernating" ? "hibernated" : status === "idle" && hasFailed ? "failed" : status;

export const describeCosts = ({ tokens, cost_usd: cost }) => [tokens && `${number(tokens)} tokens`, dollars(cost)].filter(Boolean).join(" · ");

export function describeUsage({ input_tokens: input, cached_input_tokens: cached, output_tokens: output, estimated_calls: estimated, cost_usd: cost }) {
  return [`${number(input)} in${cached ? ` (${number(cached)} cached)` : ""}`, `${number(output)} out${estimated ? " (estimated)" : ""}`, dollars(cost)].filter(Boolean).join(", ");
}

// ---- Numbers and times as people read them.

const NUMBERS = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const number = (value) => NUMBERS.format(value ?? 0);
export const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
export const percent = (share) => `${Math.round(100 * share)}%`;
export const dollars = (value) => (value === undefined || value === null ? "" : `$${value >= 0.1 || !value ? value.toFixed(2) : value.toFixed(4)}`);
export const words = (status) => (status ?? "").replaceAll("_", " ");

export function duration(seconds) {
  if (seconds === undefined) return "";
  if (seconds > 0 && seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  const [size, unit, digits] = [[1, "s", 1, 10], [1, "s", 0, 120], [60, "min", 0, 7200], [3600, "h", 0, 172_800]].find(([, , , least]) => seconds < least) ?? [86_400, "days", 0];
  return `${(seconds / size).toFixed(digits)} ${unit}`;
}

// The time of an entry to the second, in UTC.
export const formatTime = (at) => (/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/.test(at) ? at.slice(0, 19).replace("T", " ") : at);

export function formatAge(at) {
  const seconds = Math.max((Date.now() - new Date(at)) / 1000, 0);
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([least]) => seconds >= least) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${unit}`;
}

export function formatBytes(bytes) {
  return bytes < 2000 ? `${bytes} bytes` : bytes < 2e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

// A link leads only to a page of the web, and only where people see which one it is.
function readWebAddress(address) {
  if (!/^https?:\/\/[^@/?#]+([/?#]|$)/i.test(address) || /[\p{C}\p{Z}\\]/u.test(address)) return null;
  try {
    return new URL(address).href;
  } catch {
    return null;
  }
}

export function makeLink(address, text = address) {
  const href = readWebAddress(address);
  return href ? make("a", { href, rel: "noopener noreferrer", target: "_blank" }, text) : make("span", {}, text);
}

// ---- Contents: a text, or parts.

export const SHOWN = ["image/png", "image/jpeg", "image/gif", "image/webp"];

export const getText = (content) =>
  typeof content === "string" ? content : (content ?? []).filter((part) => part.type === "text").map((part) => part.text).join("\n");
