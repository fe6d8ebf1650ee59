// A new session: its agent or model, and its first message.

import { call, makeId } from "./api.js";
import { get, make, tell } from "./view.js";

export async function openNew() {
  const agent = make("input", { name: "agent", list: "agents", autocomplete: "off" });
  const model = make("input", { name: "model", placeholder: "provider:model", list: "models", autocomplete: "off" });
  const form = make("form", { class: "new" },
    make("h1", {}, "New session"),
    make("p", { class: "note" }, "Name an agent of the workers, or a model."),
    make("label", {}, "Agent", agent), make("label", {}, "Model", model),
    make("label", {}, "Id", make("input", { name: "session_id", pattern: "[A-Za-z0-9_.\\-]{1,128}", placeholder: "made for you", autocomplete: "off" })),
    make("label", {}, "Title", make("input", { name: "title", autocomplete: "off" })),
    make("datalist", { id: "agents" }), make("datalist", { id: "models" }),
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
  // What the key may use, as far as the service can say it.
  const { data } = await call("GET", "models").catch(() => ({ data: [] }));
  for (const { id } of data) get(id.includes(":") ? "models" : "agents")?.append(make("option", { value: id }));
}
