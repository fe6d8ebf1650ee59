// A tool call that waits for a person, as a card with buttons. The chat and the inbox show it.

import { call } from "./api.js";
import { make, makeButton, tell } from "./view.js";

// Decide a call. Somebody else may have decided it: that is no error for a person.
async function decide(session, id, decision) {
  try {
    await call("POST", `sessions/${encodeURIComponent(session)}/approvals/${encodeURIComponent(id)}`, decision);
    tell(decision.decision === "approve" ? "Approved." : "Denied.");
    return true;
  } catch (refusal) {
    tell(refusal.message, true);
    return ["already_resolved", "unknown_approval"].includes(refusal.type);
  }
}

export function makeDecision(session, { id, name, args }, decided = () => {}) {
  const edited = make("textarea", { value: JSON.stringify(args ?? {}, null, 2), rows: 4, hidden: true, spellcheck: false, "aria-label": `Arguments of ${name}` });
  const reason = make("input", { placeholder: "Reason (the model reads that of a denial)", "aria-label": "Reason" });
  const act = async (decision) => {
    const change = { decision };
    if (reason.value.trim()) change.reason = reason.value.trim();
    if (decision === "approve" && !edited.hidden) {
      try {
        change.arguments = JSON.parse(edited.value);
      } catch {
        tell("The arguments are not valid JSON.", true);
        return;
      }
    }
    if (await decide(session, id, change)) decided();
  };
  return make("div", { class: "decision", role: "group", "aria-label": `${name} waits for your decision` },
    edited, reason,
    make("div", { class: "buttons" },
      makeButton("Approve", () => act("approve"), { class: "first" }),
      makeButton("Deny", () => act("deny")),
      makeButton("Edit", () => { edited.hidden = !edited.hidden; if (!edited.hidden) edited.focus(); }, { title: "Change the arguments before you approve" })));
}

// A call of an external tool, which a person can answer here, too.
export function makeAnswer(session, { id, name }, answered = () => {}) {
  const text = make("textarea", { rows: 2, "aria-label": `Result of ${name}`, placeholder: "Result" });
  const send = async (isError) => {
    try {
      await call("POST", `sessions/${encodeURIComponent(session)}/tool-results/${encodeURIComponent(id)}`, { content: text.value, is_error: isError });
      answered();
    } catch (refusal) {
      tell(refusal.message, true);
    }
  };
  return make("div", { class: "decision", role: "group", "aria-label": `${name} waits for its result` }, text,
    make("div", { class: "buttons" }, makeButton("Submit the result", () => send(false), { class: "first" }), makeButton("Submit as an error", () => send(true))));
}
