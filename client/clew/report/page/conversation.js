// The parts of a conversation: texts, reasoning, tool calls, sources. A text is a string, or what a report has of it:
// its beginning as `content`, and as `left_out` the number of characters that follow.

import { count, make, makeLink, number } from "./view.js";

const MOST_PREVIEW = 120;

export const getContent = (text) => (typeof text === "string" ? text : text?.content ?? "");

export function noteLeftOut(text) {
  const { content, left_out: missing } = text ?? {};
  return missing ? make("p", { class: "note" }, `${number(missing)} ${content ? "more " : ""}character${missing === 1 ? "" : "s"} left out`) : null;
}

export const makeText = (text) => [make("div", { class: "text", dir: "auto" }, getContent(text)), noteLeftOut(text)];

export const makeCode = (text, label) => [make("pre", { tabIndex: 0, role: "group", "aria-label": label }, getContent(text)), noteLeftOut(text)];

export const makeThinking = (text) => make("details", { class: "thinking" }, make("summary", {}, "Reasoning"), makeText(text));

export const shorten = (text, most = MOST_PREVIEW) => {
  const shown = getContent(text);
  return shown.length > most ? `${shown.slice(0, most)}…` : shown;
};

// A tool call as a fold: a line with its name and the beginning of its arguments, and the rest inside.
export function makeToolFold(name, preview, state, ...inside) {
  return make("details", { class: "tool" },
    make("summary", {}, make("code", {}, name), " ", make("span", { class: "preview" }, shorten(preview)), make("span", { class: "state" }, state)), inside);
}

// A call of a tool that the provider ran itself.
export function makeProviderCall({ name, input, output, error, pages = [] }) {
  const state = `${error === undefined ? "" : "failed, "}run by the provider${pages.length ? `, ${count(pages.length, "source")}` : ""}`;
  const fold = makeToolFold(name, input, state,
    input !== undefined && [make("h5", {}, "Input"), makeCode(input, `Input of ${name}`)],
    error !== undefined && [make("h5", {}, "Error"), makeText(error)],
    output !== undefined && [make("h5", {}, "Output"), makeCode(output, `Output of ${name}`)],
    pages.length > 0 && [make("h5", {}, "Sources"), makePages(pages)]);
  fold.classList.toggle("bad", error !== undefined);
  return fold;
}

// Pages of the web, each a link if its address is known in full and leads to the web openly.
function makePages(pages) {
  return make("ol", {}, pages.map(({ url, title, quotes = [] }) => {
    const label = getContent(title) || getContent(url);
    return make("li", { dir: "auto" }, url.left_out ? make("span", {}, label) : makeLink(getContent(url), label), getContent(title) && [" ", make("span", { class: "address" }, `(${getContent(url)})`)],
      noteLeftOut(url), quotes.map((quote) => make("blockquote", { dir: "auto" }, getContent(quote), noteLeftOut(quote))));
  }));
}

export const makeSources = (pages) => (pages?.length ? make("div", { class: "sources" }, "Sources", makePages(pages)) : null);
