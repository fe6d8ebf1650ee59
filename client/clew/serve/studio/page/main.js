// The studio: which room is open, the key of the tab, and the keyboard.

import { getKey, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { Inbox } from "./inbox.js";
import { SessionList } from "./list.js";
import { openNew } from "./new.js";
import { Seen } from "./seen.js";
import { get, make } from "./view.js";

const list = new SessionList();
const inbox = new Inbox();
let chat = null;
let seen = null;

function open() {
  if (!getKey()) return signIn();
  chat?.close();
  chat = seen = null;
  list.open = {};
  document.body.classList.remove("menu");
  get("show-menu").setAttribute("aria-expanded", "false");
  get("seen").hidden = true;
  const [, room, id] = /^#\/([a-z]*)\/?(.*)$/.exec(location.hash) ?? [];
  document.body.dataset.room = room || "list";
  list.select(room === "s" ? decodeURIComponent(id) : "");
  if (room === "s" && id) {
    chat = new Chat(decodeURIComponent(id), list);
    chat.open();
    document.title = `${chat.id} · Clew studio`;
    return;
  }
  document.title = "Clew studio";
  if (room === "inbox") inbox.open();
  else if (room === "new") openNew();
  else get("main").replaceChildren(make("p", { class: "note welcome" }, "Choose a session, or open a new one."));
}

function toggleSeen() {
  if (!chat) return;
  if (!get("seen").hidden) return seen.close();
  seen ??= new Seen(chat);
  seen.open();
}

// ---- The key.

function signIn(problem = "") {
  get("key-problem").textContent = problem;
  if (!get("sign-in").open) get("sign-in").showModal();
}

get("sign-in").onclose = () => {
  setKey(get("key").value.trim());
  get("key").value = "";
  start();
};
get("sign-in").oncancel = (event) => event.preventDefault();
get("forget-key").onclick = () => { setKey(""); location.hash = "#/"; location.reload(); };
addEventListener("signed-out", ({ detail }) => { chat?.close(); signIn(detail ?? "The key is not valid."); });

function start() {
  if (!getKey()) return signIn();
  list.start();
  inbox.start();
  open();
}

// ---- The keyboard.

const KEYS = {
  "/": () => get("search").focus(),
  "?": () => get("keys").showModal(),
  n: () => { location.hash = "#/new"; },
  i: () => { location.hash = "#/inbox"; },
  m: () => get("message")?.focus(),
  w: toggleSeen,
  j: () => go(1),
  k: () => go(-1),
  Escape: () => { if (!get("seen").hidden) seen?.close(); },
};

function go(step) {
  const id = list.findNext(step);
  if (id) location.hash = `#/s/${encodeURIComponent(id)}`;
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (!KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});
get("show-keys").onclick = KEYS["?"];
get("show-menu").onclick = () => get("show-menu").setAttribute("aria-expanded", String(document.body.classList.toggle("menu")));
addEventListener("toggle-seen", toggleSeen);
addEventListener("hashchange", open);
start();
