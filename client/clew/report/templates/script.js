"use strict";
(() => {
  const turns = [...document.querySelectorAll("details.turn")];
  const tools = document.getElementById("tools");
  const box = document.getElementById("find");
  const count = document.getElementById("count");
  const texts = new Map();
  const MAX_MARKS = 500;

  const read = (turn) => {
    if (!texts.has(turn)) texts.set(turn, turn.textContent.toLowerCase());
    return texts.get(turn);
  };

  const show = (element) => {
    for (let at = element; at; at = at.parentElement) {
      if (at.hidden) at.hidden = false;
      if (at.tagName === "DETAILS") at.open = true;
    }
  };

  // Ranges in the document, so that the page's elements stay as they are.
  const mark = (needle) => {
    if (!("highlights" in CSS)) return;
    CSS.highlights.delete("found");
    if (!needle) return;
    const ranges = [];
    for (const turn of turns) {
      if (turn.hidden) continue;
      const walker = document.createTreeWalker(turn, NodeFilter.SHOW_TEXT);
      while (ranges.length < MAX_MARKS && walker.nextNode()) {
        const text = walker.currentNode.data.toLowerCase();
        if (text.length !== walker.currentNode.data.length) continue;
        for (let at = text.indexOf(needle); at >= 0; at = text.indexOf(needle, at + needle.length)) {
          const range = new Range();
          range.setStart(walker.currentNode, at);
          range.setEnd(walker.currentNode, at + needle.length);
          ranges.push(range);
        }
      }
    }
    CSS.highlights.set("found", new Highlight(...ranges));
  };

  const find = () => {
    const needle = box.value.trim().toLowerCase();
    let matching = 0;
    for (const turn of turns) {
      turn.hidden = needle !== "" && !read(turn).includes(needle);
      if (!turn.hidden) matching += 1;
    }
    for (const pause of document.querySelectorAll("#conversation > .pause")) pause.hidden = needle !== "";
    count.textContent = needle ? `${matching} of ${turns.length}` : "";
    mark(needle);
  };

  // Open the turns that have the text, and what is folded in them around it.
  const openMatching = () => {
    const needle = box.value.trim().toLowerCase();
    if (!needle) return;
    for (const turn of turns) {
      if (turn.hidden) continue;
      turn.open = true;
      for (const fold of turn.querySelectorAll("details")) {
        if (fold.textContent.toLowerCase().includes(needle)) fold.open = true;
      }
    }
  };

  const reveal = (hash) => {
    let target = null;
    try {
      target = document.getElementById(decodeURIComponent(hash.slice(1)));
    } catch {
      return;
    }
    if (!target) return;
    if (target.closest("[hidden]")) {
      box.value = "";
      find();
    }
    show(target);
    target.scrollIntoView();
  };

  if (turns.length) {
    tools.hidden = false;
    let waiting = 0;
    box.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(find, 120);
    });
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      clearTimeout(waiting);
      find();
      openMatching();
    });
    document.getElementById("open-all").addEventListener("click", () => {
      for (const turn of turns) if (!turn.hidden) turn.open = true;
    });
    document.getElementById("fold-all").addEventListener("click", () => {
      for (const turn of turns) turn.open = false;
    });
  }
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element && event.target.closest("a[href^='#']");
    if (link) setTimeout(() => reveal(link.hash));
  });
  addEventListener("hashchange", () => reveal(location.hash));
  if (location.hash) reveal(location.hash);
})();
