// What the model saw: the window of each call and what it left out, and the window that another policy would make.

import { call } from "./api.js";
import { makeTimeline } from "./charts.js";
import { dollars, get, getText, make, makeButton, number, words } from "./view.js";
import { findLargest, makeCall, makeWindowLegend } from "./windows.js";

const FIELDS = [
  ["max_input_tokens", "Largest context, tokens", 1000],
  ["reserve_output_tokens", "Reserved for the reply, tokens", 0],
  ["keep_last_turns", "Turns that have priority", 0],
  ["max_messages", "Most messages (0: no limit)", 0],
];

export class Seen {
  constructor(chat) {
    this.chat = chat;
    this.timeline = make("div");
    this.calls = make("div", { class: "calls" });
    this.other = make("div", { class: "other" });
    this.room = make("section", { "aria-labelledby": "seen-title" },
      make("header", { class: "row" }, make("h2", { id: "seen-title" }, "What the model saw"), makeButton("×", () => this.close(), { "aria-label": "Close", class: "plain" })),
      this.timeline, makeWindowLegend(), this.calls, make("h2", {}, "Another policy beside it"), this.makePolicy(), this.other);
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

  async read() {
    try {
      const overview = await call("GET", `${this.chat.path}/windows`);
      const { calls } = overview;
      this.timeline.replaceChildren(makeTimeline(overview));
      const open = new Set([...this.calls.querySelectorAll("details[open]")].map((details) => details.dataset.call));
      const largest = findLargest(calls);
      this.calls.replaceChildren(...calls.toReversed().map((made) => makeCall(made, largest, "h3", open.has(made.call_id))));
      if (!calls.length) this.calls.replaceChildren(make("p", { class: "note" }, "No model was called yet."));
    } catch (refusal) {
      this.calls.replaceChildren(make("p", { class: "note bad" }, refusal.message));
    }
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
