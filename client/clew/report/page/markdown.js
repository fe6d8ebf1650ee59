// The Markdown of replies. `marked` makes HTML of it, in which the HTML of the text stays text; DOMPurify keeps what is
// listed here and nothing else. Images are named, not loaded, a link shows where it leads, and nothing is swallowed:
// definitions, entities and the languages of code are shown.

import { Marked } from "./marked.esm.js";
import DOMPurify from "./purify.es.mjs";
import { make, makeLink, makeVisible } from "./view.js";

const MOST_QUOTES = 20;
const TAGS = ["a", "blockquote", "br", "code", "del", "em", "hr", "li", "ol", "p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"];
const ATTRIBUTES = ["align", "aria-level", "class", "href", "role", "start"];
const TEXTS = "p, li, td, th";

const escape = (text) => text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  tokenizer: { def: () => undefined },
  renderer: {
    text(token) {
      // Some entities are characters in `text` already.
      return token.tokens ? this.parser.parseInline(token.tokens) : escape(token.type === "escape" ? token.text : token.raw);
    },
    html: ({ text, block }) => (block ? `<p>${escape(text)}</p>` : escape(text)),
    code: ({ text, lang }) => `<pre>${lang ? `<span class="language">${escape(lang)}</span>` : ""}<code>${escape(text)}\n</code></pre>`,
    link({ tokens, href, title, text }) {
      const address = escape(title ? `${href} ${title}` : href);
      // Other addresses than those of the web are no links, and are shown all the same.
      if (!/^https?:/i.test(href)) return text === href || href === `mailto:${text}` ? escape(text) : `${this.parser.parseInline(tokens)} (${address})`;
      return `<a href="${escape(href)}">${this.parser.parseInline(tokens)}</a>${title ? ` (${escape(title)})` : ""}`;
    },
    image: ({ text, href }) => escape(`${text} (${href})`),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    heading({ tokens, depth }) {
      return `<p class="heading" role="heading" aria-level="${Math.min(depth + 3, 6)}">${this.parser.parseInline(tokens)}</p>`;
    },
  },
});

// Deeper quotes than these are text: each level is a call within the other.
const limitQuotes = (text) => text.replace(new RegExp(`^((?: {0,3}> ?){${MOST_QUOTES}})(?=>)`, "gm"), "$1\\");

// `link` makes the element of a link from its address and its text.
export function makeMarkdown(text, link = makeLink) {
  let html;
  try {
    html = marked.parse(limitQuotes(makeVisible(text)));
  } catch {
    // Lists within lists, thousands deep: the reply is shown as it was written.
    return [make("div", { class: "text", dir: "auto" }, text)];
  }
  const made = DOMPurify.sanitize(html, { ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ATTRIBUTES, ALLOW_DATA_ATTR: false, RETURN_DOM_FRAGMENT: true });
  for (const element of made.querySelectorAll("a")) {
    const [label, address] = [element.textContent, element.getAttribute("href") ?? ""];
    element.replaceWith(link(address, label === address ? label : `${label} (${address})`));
  }
  for (const code of made.querySelectorAll("pre")) Object.assign(code, { tabIndex: 0, ariaLabel: "Code" });
  for (const element of made.querySelectorAll(TEXTS)) element.dir = "auto";
  for (const table of made.querySelectorAll("table")) {
    const box = make("div", { class: "table", tabIndex: 0, role: "region", "aria-label": "Table" });
    table.replaceWith(box);
    box.append(table);
  }
  return [made];
}
