// Shows hits: score, where the text comes from, the text with what matched, its metadata, and what to do with it.

import { button, el } from "./dom.js";
import { bestSentence, excerptOf, highlighted, markedWords, rangesOf, units } from "./text.js";

// Metadata that say where a text comes from; they stand above it, the others below.
const ORIGIN = ["title", "source", "url", "page", "line"];
const SHOWN_VALUE = 60;
const LINK = /^https?:\/\/\S+$/i;

/** Return a metadata value as text. */
export function valueText(value) {
  if (Array.isArray(value)) return value.map(valueText).join(", ");
  if (value !== null && typeof value === "object") return JSON.stringify(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return value === null ? "" : String(value);
}

const linked = (text, address) =>
  LINK.test(address) ? el("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, text) : text;

function origin(metadata) {
  const { title, source, url, page, line } = metadata;
  const address = valueText(url ?? source ?? "");
  const name = valueText(title ?? source ?? url ?? "");
  const place = [
    title !== undefined && source !== undefined && !LINK.test(source) && valueText(source),
    page !== undefined && `page ${valueText(page)}`,
    line !== undefined && `line ${valueText(line)}`,
  ].filter(Boolean);
  return { name, node: linked(name, address), place: place.join(", ") };
}

function metadataList(hit) {
  const entries = Object.entries(hit.metadata).filter(
    ([name, value]) => !ORIGIN.includes(name) && value !== null && valueText(value) !== "",
  );
  const shown = entries.map(([name, value]) => {
    const text = valueText(value);
    const short = text.length > SHOWN_VALUE ? `${text.slice(0, SHOWN_VALUE)}…` : text;
    return el("div", { title: text.length > SHOWN_VALUE ? text : null }, el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, linked(short, text)));
  });
  return el("dl.meta", {}, el("div", {}, el("dt", {}, "id"), el("dd", {}, String(hit.id))), shown);
}

function score(value) {
  const bar = el("span.fill");
  bar.style.inlineSize = `${Math.round(100 * Math.min(Math.max(value, 0), 1))}%`;
  return el(
    "p.score",
    { title: "Cosine similarity of the query and this text: 1 is the same, 0 unrelated" },
    el("span.hidden-label", {}, "Score "),
    el("span.number", {}, value.toFixed(2)),
    el("span.track", { "aria-hidden": "true" }, bar),
  );
}

function body(hit, words) {
  const text = hit.text;
  const marks = rangesOf(text, words);
  const best = hit.sentence ? units(text, ...hit.sentence) : bestSentence(text, marks);
  const whole = hit.document ?? text;
  const window = excerptOf(text, best);
  const cut = window[0] > 0 || window[1] < text.length;
  // A sentence that is all there is to see needs no emphasis.
  const shownBest = best && best[1] - best[0] < text.trim().length ? best : null;
  const start = hit.document == null ? 0 : units(whole, hit.start, hit.start)[0];
  const paragraph = el("p.text", { dir: "auto" });
  const draw = (open) => {
    if (open) {
      const moved = shownBest && shownBest.map((place) => place + start);
      paragraph.replaceChildren(...highlighted(whole, [0, whole.length], rangesOf(whole, words), moved));
    } else {
      const before = window[0] > 0 || start > 0 ? "… " : "";
      const after = window[1] < text.length || start + text.length < whole.trimEnd().length ? " …" : "";
      paragraph.replaceChildren(before, ...highlighted(text, window, marks, shownBest), after);
    }
    paragraph.classList.toggle("whole", open);
  };
  draw(false);
  if (!cut && whole.length === text.length) return [paragraph, null];
  const toggle = button("Show all", () => {
    const open = toggle.getAttribute("aria-expanded") !== "true";
    toggle.setAttribute("aria-expanded", String(open));
    toggle.textContent = open ? "Show less" : "Show all";
    draw(open);
  }, { class: "link open", "aria-expanded": "false" });
  return [paragraph, toggle];
}

/**
 * Return a list item for each hit.
 * @param {Array} hits as the server gives them
 * @param {object} actions like(hit) and explain(hit, place)
 */
export function hitItems(hits, actions) {
  const words = new Set(hits.flatMap((hit) => [...markedWords(hit.snippet)]));
  return hits.map((hit, number) => {
    const { name, node, place } = origin(hit.metadata);
    const [paragraph, toggle] = body(hit, words);
    const explanation = el("div.explanation", { hidden: true });
    const explain = button("Explain", () => actions.explain(hit, explanation, explain), {
      class: "link explain",
      "aria-expanded": "false",
    });
    const label = name || `Result ${number + 1}`;
    const more = (text, run, kind) => button(text, run, { class: `link ${kind}`, "aria-label": `${text}: ${label}` });
    return el(
      "li.hit",
      { tabindex: "-1" },
      score(hit.score),
      el(
        "article",
        {},
        el("div.head", {}, el("h3", name ? {} : { class: "hidden-label" }, name ? node : label), place && el("p.place", {}, place)),
        paragraph,
        metadataList(hit),
        el(
          "div.actions",
          {},
          toggle,
          more("More like this", () => actions.like(hit), "like"),
          explain,
        ),
        explanation,
      ),
    );
  });
}
