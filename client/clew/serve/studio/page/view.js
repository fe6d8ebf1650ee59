// Elements, and texts of others in them. Texts are only ever set as text: nothing in them becomes markup.

import { readBytes } from "./api.js";

export const get = (id) => document.getElementById(id);

// Make an element. Properties are set as properties, `class`, `role`, `list`, `aria-…` and `data-…` as attributes.
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (/^(class|role|list|for|aria-|data-)/.test(key)) element.setAttribute(key, value === true ? "true" : value);
    else element[key] = value;
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

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
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Say something to everybody who looks or listens: a text, and a link where it leads on.
let silence;
export function tell(text, isBad = false, link = null) {
  get("told").replaceChildren(text, ...(link ? [" ", link] : []));
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

export const number = (value) => (value ?? 0).toLocaleString("en");
export const dollars = (value) => (value === undefined || value === null ? "" : `$${value < 0.01 && value > 0 ? value.toPrecision(2) : value.toFixed(2)}`);
export const words = (status) => (status ?? "").replaceAll("_", " ");

export function formatAge(at) {
  const seconds = Math.max((Date.now() - new Date(at)) / 1000, 0);
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([least]) => seconds >= least) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${unit}`;
}

export function formatBytes(bytes) {
  return bytes < 2000 ? `${bytes} bytes` : bytes < 2e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

// An address becomes a link only if it is one of the web and names its host openly.
export function makeLink(address, text = address) {
  let url = null;
  try {
    url = new URL(address);
  } catch { /* It is no address. */ }
  if (!["http:", "https:"].includes(url?.protocol) || url.username) return make("span", {}, text);
  return make("a", { href: url.href, rel: "noopener noreferrer", target: "_blank" }, text);
}

// ---- Contents: a text, or parts.

export const SHOWN = ["image/png", "image/jpeg", "image/gif", "image/webp"];

export const getText = (content) =>
  typeof content === "string" ? content : (content ?? []).filter((part) => part.type === "text").map((part) => part.text).join("\n");

export function describePart(part) {
  if (!part.blob) return `image: ${part.url}`;
  const { name, media_type, bytes, pages, seconds } = part.blob;
  const facts = [media_type, pages && `${pages} page${pages === 1 ? "" : "s"}`, seconds && `${Math.round(seconds)} s`, formatBytes(bytes)];
  return `${name ?? part.type} (${facts.filter(Boolean).join(", ")})`;
}

// `show` makes elements of the text; without it the text stays as it is.
export function makeContent(content, session, show) {
  const text = getText(content);
  const parts = typeof content === "string" ? [] : (content ?? []).filter((part) => part.type !== "text");
  return [
    text && (show ? make("div", { class: "markdown" }, ...show(text)) : make("div", { class: "text", dir: "auto" }, text)),
    ...parts.map((part) => makePart(part, session)),
  ].filter(Boolean);
}

function makePart(part, session) {
  const box = make("div", { class: "part" });
  if (!part.blob) {
    box.append(makeLink(part.url, describePart(part)));
    return box;
  }
  const path = `sessions/${encodeURIComponent(session)}/blobs/${part.blob.digest}`;
  const title = describePart(part);
  const save = makeButton(title, async () => {
    const link = make("a", { href: URL.createObjectURL(await readBytes(path)), download: part.blob.name ?? part.blob.digest.slice(0, 12) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }, { class: "plain", title: "Save" });
  box.append(save);
  if (part.type === "image" && SHOWN.includes(part.blob.media_type)) {
    // The key goes with the request, which an image's address cannot.
    readBytes(path).then((bytes) => {
      const image = make("img", { alt: title, src: URL.createObjectURL(bytes) });
      image.onload = () => URL.revokeObjectURL(image.src);
      box.prepend(image);
    }, () => box.append(make("span", { class: "bad" }, " cannot be read")));
  }
  return box;
}
