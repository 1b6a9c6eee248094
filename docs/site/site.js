// SPDX-License-Identifier: MIT
// Search, copy buttons and the open contents of the pages. Without scripts the pages stay readable: buttons and search are hidden.
"use strict";
document.documentElement.classList.add("js");

// ---- copy buttons ----
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("pre").innerText;
    try {
      await navigator.clipboard.writeText(text);
    } catch (_) {  // an old browser, or a page without a secure origin
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

// ---- contents: open on wide screens, the section in view is marked ----
if (matchMedia("(min-width: 60em)").matches) {
  for (const list of document.querySelectorAll("nav details")) list.open = true;
  const pages = document.querySelector("nav.pages"), here = pages?.querySelector(".here");
  if (here) pages.scrollTop = here.offsetTop - pages.clientHeight / 2;
}
const sections = new Map([...document.querySelectorAll("nav.sections a")].map((a) => [decodeURIComponent(a.hash.slice(1)), a]));
if (sections.size && "IntersectionObserver" in window) {
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries)
      if (entry.isIntersecting) {
        for (const link of sections.values()) link.classList.remove("now");
        sections.get(entry.target.id)?.classList.add("now");
      }
  }, {rootMargin: "0px 0px -70% 0px"});
  for (const id of sections.keys()) {
    const heading = document.getElementById(id);
    if (heading) observer.observe(heading);
  }
}

// ---- search: every word of the query must begin a word of the entry; titles count most ----
const box = document.getElementById("search"), hits = document.getElementById("hits");
function loadIndex(then) {
  if (window.siteIndex) return then();
  const script = document.createElement("script");  // a script and not fetch(), which does not read files
  script.src = box.dataset.up + "search.js";
  script.onload = then;
  document.head.append(script);
}
const plain = (text) => text.toLowerCase();
function score(entry, words) {
  let total = 0;
  for (const word of words) {
    const starts = new RegExp("(^|[^a-z0-9])" + word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
    if (starts.test(entry.title)) total += entry.heading ? 6 : 10;
    else if (entry.heading && starts.test(entry.heading)) total += 8;
    else if (starts.test(entry.text)) total += 1 + Math.min(3, entry.text.split(starts).length / 4);
    else return 0;
    if (plain(entry.title) === word || plain(entry.heading) === word) total += 10;
  }
  return /^(CHANGELOG|bench\/)/.test(entry.url) ? total / 4 : total;  // history comes after the pages of today
}
function show() {
  const words = plain(box.value).split(/\s+/).filter(Boolean);
  hits.replaceChildren();
  hits.hidden = words.length === 0;
  if (!words.length) return;
  const found = window.siteIndex.map((entry) => [score(entry, words), entry]).filter(([s]) => s > 0).sort((a, b) => b[0] - a[0]);
  for (const [, entry] of found.slice(0, 12)) {
    const link = document.createElement("a");
    link.href = box.dataset.up + entry.url;
    const name = document.createElement("strong");
    name.textContent = entry.heading ? entry.title + ": " + entry.heading : entry.title;
    const at = Math.max(0, plain(entry.text).indexOf(words[0]) - 40), about = document.createElement("span");
    about.textContent = (at ? "... " : "") + entry.text.slice(at, at + 140);
    link.append(name, about);
    hits.append(link);
  }
  if (!found.length) hits.textContent = "No page has all of these words.";
}
if (box) {
  box.addEventListener("input", () => loadIndex(show));
  box.addEventListener("focus", () => loadIndex(() => {}));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") hits.querySelector("a")?.click();
    if (event.key === "Escape") { box.value = ""; show(); box.blur(); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); box.focus(); }
  });
  document.addEventListener("click", (event) => { if (!event.target.closest(".search")) hits.hidden = true; });
}
