// Shows hits: rank, where the text comes from, the text with what matched, its metadata, and what to do with it.

import { button, el } from "./dom.js";
import { bestSentence, excerptOf, highlighted, isCode, markedWords, rangesOf, readable, trimmedLines, units, wholeLines } from "./text.js";

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

/** Return where a hit comes from: the name of its document, as a link if it has an address, and the place in it. */
function origin({ metadata, location }) {
  const { title, source, url } = metadata;
  const page = location?.page ?? metadata.page;
  const line = location?.line ?? metadata.line;
  const address = valueText(url ?? source ?? "");
  const name = valueText(title ?? source ?? url ?? "");
  const place = [
    title !== undefined && source !== undefined && !LINK.test(source) && valueText(source),
    page != null && `page ${valueText(page)}`,
    line != null && `line ${valueText(line)}`,
    location?.heading,
  ].filter(Boolean);
  const target = Number.isInteger(page) && !address.includes("#") ? `${address}#page=${page}` : address;
  return { name, node: linked(name, target), place: place.join(", ") };
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

/** Return a share with two digits, never rounded up: 0.996 is not 1. */
const roundedDown = (share) => (Math.floor(100 * share + 1e-9) / 100).toFixed(2);

function score(rank, { score: value, relevance }) {
  const bar = el("span.fill");
  bar.style.inlineSize = `${Math.round(100 * Math.min(Math.max(value, 0), 1))}%`;
  return el(
    "p.score",
    {},
    el("span.hidden-label", {}, "Rank "),
    el("span.number", {}, String(rank)),
    el("span.track", { "aria-hidden": "true" }, bar),
    el("span.hint", { title: "Similarity of meaning to the query: 1 is the same, 0 unrelated. The order may also count words." }, `meaning ${value.toFixed(2)}`),
    typeof relevance === "number" &&
      el("span.hint", { title: "How many questions without an answer here (0 to 1) would have a worse best hit" }, `relevance ${roundedDown(relevance)}`),
  );
}

/** Return the range of the sentence that the server highlights, in the text as it is shown; null if there is none. */
function nearest(hit, text, shown) {
  if (!hit.highlight) return null;
  const part = shown(hit.text.slice(...units(hit.text, ...hit.highlight)));
  const place = part ? text.indexOf(part) : -1;
  return place < 0 ? null : [place, place + part.length];
}

/**
 * Return a paragraph with the best part of a passage, and a button that shows all of its document, if there is more.
 * The sentence that answers is underlined, unless nothing answers.
 */
function body(hit, words, actions) {
  const code = isCode(hit);
  const shown = code ? trimmedLines : readable;
  const text = shown(hit.text);
  const marks = rangesOf(text, words);
  const best = nearest(hit, text, shown) ?? bestSentence(text, marks);
  const excerpt = excerptOf(text, best);
  const window = code ? wholeLines(text, excerpt) : excerpt;
  const cut = window[0] > 0 || window[1] < text.length;
  // A sentence that is all there is to see needs no emphasis.
  const shownBest = best && !actions.unanswered && best[1] - best[0] < text.length ? best : null;
  const paragraph = code ? el("p.text.code", { dir: "ltr" }) : el("p.text", { dir: "auto" });
  const gap = code ? "\n" : " ";
  const short = () => {
    const before = window[0] > 0 || hit.start > 0 ? `…${gap}` : "";
    const after = window[1] < text.length || !hit.whole ? `${gap}…` : "";
    paragraph.replaceChildren(before, ...highlighted(text, window, marks, shownBest), after);
  };
  short();
  if (!cut && hit.whole) return [paragraph, null];
  const toggle = button("Show all", async () => {
    const open = toggle.getAttribute("aria-expanded") !== "true";
    toggle.setAttribute("aria-expanded", String(open));
    toggle.textContent = open ? "Show less" : "Show all";
    paragraph.classList.toggle("whole", open);
    if (!open) return short();
    const all = hit.whole ? text : shown(await actions.document(hit));
    const place = Math.max(all.indexOf(text), 0);
    const moved = shownBest && shownBest.map((at) => at + place);
    return paragraph.replaceChildren(...highlighted(all, [0, all.length], rangesOf(all, words), moved));
  }, { class: "link open", "aria-expanded": "false" });
  return [paragraph, toggle];
}

/** Return the hits of each document together, in the order of their best one. */
function byDocument(hits) {
  const groups = new Map();
  for (const hit of hits) {
    const key = JSON.stringify(hit.id);
    if (groups.has(key)) groups.get(key).push(hit);
    else groups.set(key, [hit]);
  }
  return [...groups.values()];
}

/** Return a further passage of a document. */
function further(hit, words, actions) {
  const [paragraph, toggle] = body(hit, words, actions);
  return el("div.further", {}, el("p.place", {}, [`meaning ${hit.score.toFixed(2)}`, origin(hit).place].filter(Boolean).join(" · ")), paragraph, toggle);
}

/**
 * Return a list item for each document that was found, with its passages.
 * @param {Array} hits as the server gives them
 * @param {object} actions like(hit), explain(hit, place, button), document(hit), which returns a document's text, and
 *   whether the query is unanswered
 */
export function hitItems(hits, actions) {
  const words = new Set(hits.flatMap((hit) => [...markedWords(hit.snippet)]));
  return byDocument(hits).map(([hit, ...others], number) => {
    const { name, node, place } = origin(hit);
    const [paragraph, toggle] = body(hit, words, actions);
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
      score(number + 1, hit),
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
        others.map((other) => further(other, words, actions)),
      ),
    );
  });
}
