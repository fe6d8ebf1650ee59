// A new session: its agent or model, and its first message.

import { call, makeId } from "./api.js";
import { get, make, tell } from "./view.js";

export function openNew() {
  const agent = make("input", { name: "agent", autocomplete: "off" });
  const model = make("input", { name: "model", placeholder: "provider:model", list: "models", autocomplete: "off" });
  const form = make("form", { class: "new" },
    make("h1", {}, "New session"),
    make("p", { class: "note" }, "Choose an agent of the workers, or name a model."),
    make("label", {}, "Agent", agent), make("label", {}, "Model", model),
    make("label", {}, "Id", make("input", { name: "session_id", pattern: "[A-Za-z0-9_.\\-]{1,128}", placeholder: "made for you", autocomplete: "off" })),
    make("label", {}, "Title", make("input", { name: "title", autocomplete: "off" })),
    make("datalist", { id: "models" }),
    make("button", { class: "first" }, "Open"), make("p", { class: "bad", role: "alert" }));
  form.onsubmit = async (event) => {
    event.preventDefault();
    const fields = Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));
    const { title, session_id: id, ...config } = fields;
    try {
      const made = await call("POST", "sessions", { session_id: id ?? `chat-${makeId().slice(0, 8)}`, ...config, ...(title && { metadata: { title } }) });
      location.hash = `#/s/${encodeURIComponent(made.session_id)}`;
      tell("Opened.");
    } catch (refusal) {
      form.querySelector("[role=alert]").textContent = refusal.message;
    }
  };
  get("main").replaceChildren(form);
  agent.focus();
  offerKnown(form, agent);
}

// Offer what the key may use, as far as the service can say it. A model's name has its provider before a colon.
async function offerKnown(form, agent) {
  const { data } = await call("GET", "models").catch(() => ({ data: [] }));
  const names = data.map(({ id }) => id);
  form.querySelector("#models").append(...names.filter((name) => name.includes(":")).map((value) => make("option", { value })));
  const agents = names.filter((name) => !name.includes(":"));
  if (!agents.length || agent.value) return;
  const choice = make("select", { name: "agent" }, make("option", { value: "" }, "none: a model alone"), ...agents.map((name) => make("option", { value: name }, name)));
  if (agents.length === 1) choice.value = agents[0];
  const hadFocus = document.activeElement === agent;
  agent.replaceWith(choice);
  if (hadFocus) choice.focus();
}
