// What the model saw: the window of each call and what it left out, and the window that another policy would make.

import { call } from "./api.js";
import { dollars, draw, get, getText, make, makeButton, number, words } from "./view.js";

const FIELDS = [
  ["max_input_tokens", "Largest context, tokens", 1000],
  ["reserve_output_tokens", "Reserved for the reply, tokens", 0],
  ["keep_last_turns", "Turns that have priority", 0],
  ["max_messages", "Most messages (0: no limit)", 0],
];
const NAMES = { user: "User", assistant: "Agent", tool_calls: "Tools used", system: "Prompt", tools: "Tool schemas", summary: "Summary", snapshot: "Snapshot", messages: "Messages" };

export class Seen {
  constructor(chat) {
    this.chat = chat;
    this.calls = make("div", { class: "calls" });
    this.other = make("div", { class: "other" });
    this.room = make("section", { "aria-labelledby": "seen-title" },
      make("header", { class: "row" }, make("h2", { id: "seen-title" }, "What the model saw"), makeButton("×", () => this.close(), { "aria-label": "Close", class: "plain" })),
      this.makeLegend(), this.calls, make("h2", {}, "Another policy beside it"), this.makePolicy(), this.other);
  }

  open() {
    get("seen").hidden = false;
    get("seen").replaceChildren(this.room);
    this.chat.look.setAttribute("aria-expanded", "true");
    this.chat.ended = () => this.read();
    this.read();
  }

  close() {
    get("seen").hidden = true;
    this.chat.look.setAttribute("aria-expanded", "false");
    this.chat.ended = () => {};
    this.chat.look.focus();
  }

  makeLegend() {
    return make("p", { class: "legend" }, ...Object.entries(NAMES).map(([kind, name]) => make("span", {}, make("i", { class: `swatch ${kind}` }), name)),
      make("span", {}, make("i", { class: "swatch out" }), "Left out"));
  }

  async read() {
    try {
      const { calls } = await call("GET", `${this.chat.path}/windows`);
      const open = new Set([...this.calls.querySelectorAll("details[open]")].map((details) => details.dataset.call));
      const largest = Math.max(...calls.map(({ window }) => window ? window.tokens + sum(window.left_out) : 0), 1);
      this.calls.replaceChildren(...calls.toReversed().map((made) => this.makeCall(made, largest, open.has(made.call_id))));
      if (!calls.length) this.calls.replaceChildren(make("p", { class: "note" }, "No model was called yet."));
    } catch (refusal) {
      this.calls.replaceChildren(make("p", { class: "note bad" }, refusal.message));
    }
  }

  makeCall({ call_id: id, seq, model, usage, seconds, window, problem, request_digest: sent }, largest, isOpen) {
    const facts = [model, `${number(usage.input_tokens)} in${usage.cached_input_tokens ? ` (${number(usage.cached_input_tokens)} cached)` : ""}`,
      `${number(usage.output_tokens)} out`, dollars(usage.cost_usd), seconds && `${seconds.toFixed(1)} s`].filter(Boolean).join(" · ");
    if (!window) return make("p", { class: "note" }, `#${seq}: ${problem ?? "its window is not known"}`);
    const out = sum(window.left_out);
    return make("details", { "data-call": id, open: isOpen },
      make("summary", {}, make("span", {}, `#${seq} saw ${number(window.tokens)} of ${number(window.budget)} tokens${out ? `, ${number(out)} left out` : ""}`),
        drawStrip(window, largest)),
      make("p", { class: "note" }, facts),
      makeList("In the window", window.segments), window.left_out.length ? makeList("Left out", window.left_out) : "",
      make("p", { class: window.matches_record ? "note" : "note bad" }, window.matches_record
        ? "Built again just now: it has the digest that was recorded when the model was called."
        : "Built again just now: it does not have the digest that was recorded when the model was called."),
      sent ? make("p", { class: "note digest" }, "Request as sent: SHA-256 ", make("code", {}, sent)) : "");
  }

  // ---- The next call under the policy in force, and under another one.

  makePolicy() {
    const form = make("form", { class: "policy" },
      ...FIELDS.map(([name, label, least]) => make("label", {}, label, make("input", { name, type: "number", min: least, inputMode: "numeric" }))),
      make("label", {}, "Window", make("select", { name: "window" }, ...["", "sliding", "epoch"].map((value) => make("option", { value }, value || "as it is")))),
      make("label", {}, "Keep tool results", make("input", { name: "clear_tool_results", type: "number", min: 0 })),
      make("button", { class: "first" }, "Compare"));
    form.onsubmit = async (event) => {
      event.preventDefault();
      const policy = {};
      for (const [name, value] of new FormData(form)) {
        if (value === "") continue;
        policy[name] = name === "window" ? value : name === "clear_tool_results" ? { keep: Number(value) } : Number(value);
      }
      await this.compare(policy);
    };
    return form;
  }

  async compare(policy) {
    this.other.replaceChildren(make("p", { class: "note", role: "status" }, "…"));
    const read = (changed) => call("POST", `${this.chat.path}/preview`, { pending: [{ role: "user", content: "…" }], ...(changed && { context_policy: changed }) });
    try {
      const [before, after] = await Promise.all([read(), read(policy)]);
      this.other.replaceChildren(make("div", { class: "pair" }, makeContext("In force", before, after), makeContext("With these changes", after, before)));
    } catch (refusal) {
      this.other.replaceChildren(make("p", { class: "note bad", role: "alert" }, refusal.message));
    }
  }
}

const sum = (segments) => segments.reduce((tokens, segment) => tokens + segment.tokens, 0);

function drawStrip({ segments, left_out: out, tokens }, largest) {
  const strip = draw("svg", { class: "strip", role: "img", "aria-label": `${number(tokens)} tokens in ${segments.length} parts`, viewBox: "0 0 100 14", preserveAspectRatio: "none" });
  let x = 0;
  for (const [segment, look] of [...segments.map((segment) => [segment, segment.kind]), ...out.map((segment) => [segment, "out"])]) {
    const width = (100 * segment.tokens) / largest;
    strip.append(draw("rect", { x, y: look === "out" ? 5 : 0, width, height: look === "out" ? 4 : 14, class: `${look} ${segment.state}` }, draw("title", {}, document.createTextNode(describe(segment)))));
    x += width;
  }
  return strip;
}

function describe({ kind, state, first_seq: first, last_seq: last, messages, tokens, pinned, media }) {
  const place = first === undefined ? "" : first === last ? ` #${first}` : ` #${first}–#${last}`;
  return [`${NAMES[kind] ?? words(kind)}${place}: ${number(tokens)} tokens`, messages > 1 && `${messages} messages`, state !== "shown" && state, pinned && "pinned",
    media && `${media} image${media === 1 ? "" : "s"} or files`].filter(Boolean).join(", ");
}

function makeList(title, segments) {
  return make("div", {}, make("h3", {}, title), make("ul", {}, ...segments.map((segment) => make("li", {}, describe(segment)))));
}

const identify = (message) => JSON.stringify([message.role, message.content, message.tool_call_id, message.tool_calls]);

// A context message by message; those that the other one lacks are marked.
function makeContext(title, { messages, meta }, other) {
  if (meta.fits === false) return make("div", {}, make("h3", {}, title), make("p", { class: "note bad" }, `It does not fit: ${words(meta.overflow)}.`));
  const known = new Set(other.messages.map(identify));
  const facts = [`${number(meta.estimated_tokens)} of ${number(meta.budget)} tokens`, meta.input_cost_usd !== undefined && `prompt ${dollars(meta.input_cost_usd)}`,
    meta.cleared_tool_results && `${meta.cleared_tool_results} results cleared`, meta.truncated && "truncated"].filter(Boolean).join(" · ");
  return make("div", {}, make("h3", {}, title), make("p", { class: "note" }, facts), make("ol", { class: "messages" }, ...messages.map((message) =>
    make("li", { class: known.has(identify(message)) ? "" : "only" }, make("b", {}, words(message.role)), " ",
      (getText(message.content) || (message.tool_calls ?? []).map((asked) => asked.name).join(", ") || "…").slice(0, 160)))));
}
