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

// Say something to everybody who looks or listens.
let silence;
export function tell(text, isBad = false) {
  get("told").textContent = text;
  get("told").classList.toggle("bad", isBad);
  clearTimeout(silence);
  silence = setTimeout(() => { get("told").textContent = ""; }, 8000);
}

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

export function makeContent(content, session, { isMarkdown = false } = {}) {
  const text = getText(content);
  const parts = typeof content === "string" ? [] : (content ?? []).filter((part) => part.type !== "text");
  return [
    text && (isMarkdown ? make("div", { class: "markdown" }, ...makeMarkdown(text)) : make("div", { class: "text", dir: "auto" }, text)),
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

// ---- The Markdown of replies: paragraphs, headings, lists, quotes, code, emphasis and links. No HTML, no images.

const MOST_QUOTES = 20;

export function* makeMarkdown(text, depth = 0) {
  const lines = text.split("\n");
  while (lines.length) {
    const line = lines.shift();
    let match;
    if (!line.trim()) continue;
    if ((match = /^ {0,3}(`{3,}|~{3,})(.*)$/.exec(line))) {
      const code = [];
      while (lines.length && !lines[0].trim().startsWith(match[1])) code.push(lines.shift());
      lines.shift();
      yield make("pre", { tabIndex: 0, "aria-label": "Code" }, make("code", {}, code.join("\n")));
    } else if ((match = /^(#{1,6})\s+(.*)$/.exec(line))) {
      yield make("p", { class: "heading", role: "heading", "aria-level": `${Math.min(match[1].length + 3, 6)}` }, ...makeInline(match[2]));
    } else if ((match = /^\s*([-*+]|\d+[.)])\s+/.exec(line))) {
      const isOrdered = /\d/.test(match[1]);
      const items = [line.slice(match[0].length)];
      while (lines.length && lines[0].trim()) {
        const next = lines.shift();
        const start = /^\s*([-*+]|\d+[.)])\s+/.exec(next);
        if (start) items.push(next.slice(start[0].length));
        else items[items.length - 1] += ` ${next.trim()}`;
      }
      yield make(isOrdered ? "ol" : "ul", isOrdered ? { start: parseInt(match[1], 10) } : {}, ...items.map((item) => make("li", {}, ...makeInline(item))));
    } else if (depth < MOST_QUOTES && /^>\s?/.test(line)) {
      const quote = [line];
      while (lines.length && /^>\s?/.test(lines[0])) quote.push(lines.shift());
      yield make("blockquote", {}, ...makeMarkdown(quote.map((part) => part.replace(/^>\s?/, "")).join("\n"), depth + 1));
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      yield make("hr");
    } else {
      const paragraph = [line];
      while (lines.length && lines[0].trim() && !/^ {0,3}(`{3}|~{3}|#{1,6}\s|>|[-*+]\s|\d+[.)]\s)/.test(lines[0])) paragraph.push(lines.shift());
      yield make("p", { dir: "auto" }, ...makeInline(paragraph.join("\n")));
    }
  }
}

const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*|\*([^*\s][^*]*?)\*|\[([^[\]\n]+)\]\(([^)\s]+)\)/s;

function* makeInline(text) {
  for (let match; (match = INLINE.exec(text)); text = text.slice(match.index + match[0].length)) {
    if (match.index) yield text.slice(0, match.index);
    const [, , code, strong, emphasis, label, address] = match;
    if (code !== undefined) yield make("code", {}, code);
    else if (strong !== undefined) yield make("strong", {}, ...makeInline(strong));
    else if (emphasis !== undefined) yield make("em", {}, ...makeInline(emphasis));
    else yield makeLink(address, label === address ? label : `${label} (${address})`);
  }
  if (text) yield text;
}
