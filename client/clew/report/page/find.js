// The box above the turns of a report: it hides the turns without a text, and opens those that a link leads to.

import { get, make, makeButton } from "./view.js";

const MOST_MARKS = 500;
const WAIT_MILLISECONDS = 120;

export function makeFind(turns) {
  const texts = new Map();
  const box = make("input", { type: "search", id: "find", autocomplete: "off", spellcheck: false, placeholder: "Text; Enter opens what has it", "aria-label": "Find turns" });
  const found = make("span", { id: "count", role: "status", class: "note" });
  const read = (element) => element.textContent.toLowerCase();
  const readTurn = (turn) => {
    if (!texts.has(turn)) texts.set(turn, read(turn));
    return texts.get(turn);
  };
  const getNeedle = () => box.value.trim().toLowerCase();
  const getShown = () => turns.filter((turn) => !turn.hidden);

  function find() {
    const needle = getNeedle();
    for (const turn of turns) turn.hidden = needle !== "" && !readTurn(turn).includes(needle);
    for (const pause of document.querySelectorAll("#conversation > .pause")) pause.hidden = needle !== "";
    found.textContent = needle ? `${getShown().length} of ${turns.length}` : "";
    mark(needle, getShown());
  }

  // Open the turns that have the text, and what is folded in them around it.
  function openFound() {
    const needle = getNeedle();
    if (!needle) return;
    for (const turn of getShown()) {
      turn.open = true;
      for (const fold of turn.querySelectorAll("details")) fold.open ||= read(fold).includes(needle);
    }
  }

  function reveal(hash) {
    let target = null;
    try {
      target = get(decodeURIComponent(hash.slice(1)));
    } catch { /* It leads nowhere. */ }
    if (!target) return;
    if (target.closest("[hidden]")) {
      box.value = "";
      find();
    }
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    target.scrollIntoView();
  }

  let waiting = 0;
  box.oninput = () => {
    clearTimeout(waiting);
    waiting = setTimeout(find, WAIT_MILLISECONDS);
  };
  box.onkeydown = (event) => {
    if (event.key !== "Enter") return;
    clearTimeout(waiting);
    find();
    openFound();
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    if (link) setTimeout(() => reveal(link.hash));
  });
  addEventListener("hashchange", () => reveal(location.hash));
  const tools = make("div", { id: "tools", class: "find" }, make("label", { for: "find", "aria-hidden": "true" }, "Find turns"), box, found,
    makeButton("Open all", () => getShown().forEach((turn) => { turn.open = true; })), makeButton("Fold all", () => turns.forEach((turn) => { turn.open = false; })));
  return { tools, reveal };
}

// Ranges in the document, so that the page's elements stay as they are.
function mark(needle, turns) {
  if (!("highlights" in CSS)) return;
  CSS.highlights.delete("found");
  if (!needle) return;
  const ranges = [];
  for (const turn of turns) {
    const walker = document.createTreeWalker(turn, NodeFilter.SHOW_TEXT);
    while (ranges.length < MOST_MARKS && walker.nextNode()) {
      const { data } = walker.currentNode;
      const text = data.toLowerCase();
      if (text.length !== data.length) continue;
      for (let at = text.indexOf(needle); at >= 0; at = text.indexOf(needle, at + needle.length)) {
        const range = new Range();
        range.setStart(walker.currentNode, at);
        range.setEnd(walker.currentNode, at + needle.length);
        ranges.push(range);
      }
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}
