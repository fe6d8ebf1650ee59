// The sessions at the left: a list with filters and a search, which looks again every few seconds.

import { call } from "./api.js";
import { describeCosts, formatAge, get, make, makeButton, words } from "./view.js";

const LOOK_MILLISECONDS = 5000;
const PAGE = 50;
const STATUSES = ["working", "awaiting_approval", "awaiting_external", "idle", "failed", "hibernated", "closed", "interrupted"];

export class SessionList {
  constructor() {
    this.sessions = [];
    this.selected = "";
    this.open = {};           // What the open session says of itself, which lists learn later.
    this.changed = () => {};  // Called when the row of the open session has changed.
    this.limit = PAGE;
    this.search = make("input", { type: "search", id: "search", placeholder: "Search", "aria-label": "Search the sessions: title, id, agent, user" });
    this.status = make("select", { "aria-label": "Status" }, make("option", { value: "" }, "all"), ...STATUSES.map((status) => make("option", { value: status }, words(status))));
    this.list = make("ul", { "aria-label": "Sessions, the newest first" });
    this.note = make("p", { class: "note", role: "status" });
    this.more = makeButton("More", () => { this.limit += PAGE; return this.look(); }, { hidden: true });
    this.search.oninput = () => this.show();
    this.status.onchange = () => this.look();
    get("sessions").replaceChildren(make("div", { class: "filters", role: "search" }, this.search, this.status), this.list, this.note, this.more);
  }

  start() {
    clearInterval(this.timer);
    this.look();
    this.timer = setInterval(() => document.hidden || this.look(), LOOK_MILLISECONDS);
  }

  async look() {
    const filters = new URLSearchParams({ limit: this.limit, ...(this.status.value && { status: this.status.value }) });
    try {
      const page = await call("GET", `sessions?${filters}`);
      this.sessions = page.sessions;
      this.problem = "";
      this.more.hidden = !page.has_more;
    } catch (refusal) {
      this.problem = refusal.message;
    }
    this.show();
  }

  // What is known of a session: the open one knows more than the list.
  find(id) {
    const row = this.sessions.find((session) => session.session_id === id);
    return id === this.open.session_id ? { ...row, ...this.open } : row;
  }

  // Take what the open session says of itself.
  update(open) {
    this.open = open;
    this.show();
  }

  show() {
    const wanted = this.search.value.trim().toLowerCase();
    const shown = this.sessions.map(({ session_id: id }) => this.find(id)).filter((session) =>
      [session.session_id, session.title, session.agent, session.user].some((text) => text?.toLowerCase().includes(wanted)));
    this.shown = shown.map((session) => session.session_id);
    const focused = document.activeElement?.dataset?.session;
    this.list.replaceChildren(...shown.map((session) => this.makeRow(session)));
    if (focused) this.list.querySelector(`[data-session="${CSS.escape(focused)}"]`)?.focus();
    this.changed();
    this.note.textContent = this.problem || (shown.length ? "" : wanted ? "No session of this list has these words." : "There are no sessions yet.");
    this.note.classList.toggle("bad", Boolean(this.problem));
  }

  makeRow({ session_id: id, title, status, agent, user, active_at: active, ...costs }) {
    const facts = [agent, user, describeCosts(costs)].filter(Boolean).join(" · ");
    const link = make("a", { href: `#/s/${encodeURIComponent(id)}`, "data-session": id, "aria-current": id === this.selected ? "page" : null },
      make("span", { class: "title", dir: "auto" }, title || id),
      make("span", { class: "row" },
        make("span", { class: `status ${status ?? ""}` }, words(status) || "…"),
        active && make("time", { dateTime: active, title: active }, formatAge(active))),
      facts && make("small", { class: "note" }, facts));
    return make("li", {}, link);
  }

  select(id) {
    this.selected = id;
    for (const link of this.list.querySelectorAll("a")) {
      if (link.dataset.session === id) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  // The session that many places after the selected one.
  findNext(step) {
    const place = this.shown?.indexOf(this.selected) ?? -1;
    return this.shown?.[place < 0 ? 0 : Math.min(Math.max(place + step, 0), this.shown.length - 1)];
  }
}
