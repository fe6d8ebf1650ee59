// The inbox: every call of all sessions that waits for a person, in one place.

import { call } from "./api.js";
import { makeAnswer, makeDecision } from "./approvals.js";
import { formatAge, get, make, number } from "./view.js";

const LOOK_MILLISECONDS = 4000;
const MOST_SESSIONS = 50;

export class Inbox {
  constructor() {
    this.calls = [];
    this.cards = new Map();
  }

  start() {
    clearInterval(this.timer);
    this.look();
    this.timer = setInterval(() => document.hidden || this.look(), LOOK_MILLISECONDS);
  }

  async look() {
    try {
      const lists = await Promise.all(["awaiting_approval", "awaiting_external"].map((status) =>
        call("GET", `sessions?status=${status}&limit=${MOST_SESSIONS}`)));
      const sessions = lists.flatMap((list) => list.sessions);
      const waiting = await Promise.all(sessions.map((session) =>
        call("GET", `sessions/${encodeURIComponent(session.session_id)}/waiting`).then(({ calls }) => [session, calls], () => [session, []])));
      // A call of a subagent waits in its session, and its parent lists it, too.
      const calls = new Map();
      for (const [session, rows] of waiting) {
        for (const { session_id: id, needs, call: asked } of rows) {
          const name = `${id}/${asked.tool_call_id}`;
          if (!calls.has(name) || id === session.session_id) calls.set(name, { ...asked, name, tool: asked.name, id, session, needs });
        }
      }
      this.calls = [...calls.values()];
    } catch { /* The list of sessions says why. */ }
    get("inbox-count").textContent = number(this.calls.length);
    get("inbox-count").hidden = !this.calls.length;
    if (this.room?.isConnected) this.show();
  }

  open() {
    this.cards.clear();
    this.room = make("section", { class: "inbox", "aria-labelledby": "inbox-title" },
      make("h1", { id: "inbox-title" }, "Inbox"), make("div", { class: "cards" }));
    get("main").replaceChildren(this.room);
    this.show();
    this.look();
  }

  // Cards that stay are kept: a person may be writing in one.
  show() {
    const cards = this.calls.map((waiting) => {
      if (!this.cards.has(waiting.name)) this.cards.set(waiting.name, this.makeCard(waiting));
      return this.cards.get(waiting.name);
    });
    const box = this.room.querySelector(".cards");
    for (const card of [...box.children]) if (!cards.includes(card)) card.remove();
    for (const card of cards) if (!card.isConnected) box.append(card);
    if (!cards.length) box.replaceChildren(make("p", { class: "note" }, "Nothing waits for you."));
  }

  makeCard({ session, id: own, tool_call_id: id, tool: name, arguments: args, needs }) {
    const decided = () => this.look();
    return make("article", { class: "tool asks" },
      make("h2", {}, make("code", {}, name), make("span", { class: "note" }, needs === "approval" ? " waits for your decision" : " waits for its result")),
      make("p", { class: "note" }, make("a", { href: `#/s/${encodeURIComponent(own)}` }, session.title || own),
        session.active_at ? ` · ${formatAge(session.active_at)}` : ""),
      make("pre", { tabIndex: 0, "aria-label": `Arguments of ${name}` }, JSON.stringify(args, null, 2)),
      (needs === "approval" ? makeDecision : makeAnswer)(own, { id, name, args }, decided));
  }
}
