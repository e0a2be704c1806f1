// Shows hits: rank, where the text comes from, the text with what matched, its metadata, and what to do with it.

import { ApiError } from "./api.js";
import { laidOut, shownParts } from "./blocks.js";
import { button, el, tell } from "./dom.js";
import { bestSentence, excerptOf, markedWords, rangesOf, units } from "./text.js";

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

const opening = (text, address) => el("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, text);
const linked = (text, address) => (LINK.test(address) ? opening(text, address) : text);

/**
 * Return where a hit comes from: the name of its document, as a link if it has an address or if ``fileOf`` returns one for
 * its source, and the place in it.
 */
function origin({ metadata, location }, fileOf) {
  const { title, source, url } = metadata;
  const page = location?.page ?? metadata.page;
  const line = location?.line ?? metadata.line;
  const web = valueText(url ?? source ?? "");
  const address = LINK.test(web) ? web : ((typeof source === "string" && fileOf(source)) || "");
  const name = valueText(title ?? source ?? url ?? "");
  const place = [
    title !== undefined && source !== undefined && !LINK.test(source) && valueText(source),
    page != null && `page ${valueText(page)}`,
    line != null && `line ${valueText(line)}`,
    address && !LINK.test(web) && /\.zip\//i.test(source) && "opens the zip",
    location?.heading !== title && location?.heading,
  ].filter(Boolean);
  const target = Number.isInteger(page) && !address.includes("#") ? `${address}#page=${page}` : address;
  return { name, node: address ? opening(name, target) : name, place: place.join(", ") };
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
function nearest(hit, text) {
  if (!hit.highlight) return null;
  const part = laidOut(hit.text.slice(...units(hit.text, ...hit.highlight)), hit).text;
  const place = part ? text.indexOf(part) : -1;
  return place < 0 ? null : [place, place + part.length];
}

/**
 * Return the best part of a passage, and buttons: one shows all of its document, the other what stands around it.
 * The sentence that answers is underlined, unless nothing answers.
 */
function body(hit, words, actions) {
  const laid = laidOut(hit.text, hit);
  const { text } = laid;
  const marks = rangesOf(text, words);
  const best = nearest(hit, text) ?? bestSentence(text, marks);
  const window = excerptOf(text, best);
  const cut = window[0] > 0 || window[1] < text.length;
  // A sentence that is all there is to see needs no emphasis.
  const shownBest = best && !actions.unanswered && best[1] - best[0] < text.length ? best : null;
  const box = el("div.text");
  const inFull = () => shownParts(laid, [0, text.length], marks, shownBest);
  const short = () =>
    shownParts(laid, window, marks, shownBest, window[0] > 0 || hit.start > 0, window[1] < text.length || !hit.whole);
  const whole = async () => {
    if (hit.whole) return inFull();
    const all = laidOut(await actions.document(hit), hit);
    const place = all.text.indexOf(text);
    const moved = place < 0 ? null : shownBest?.map((at) => at + place);
    return shownParts(all, [0, all.text.length], rangesOf(all.text, words), moved);
  };
  const around = async () => {
    const [before, after] = (await actions.around(hit)).map((texts) =>
      texts.map((each) => {
        const near = laidOut(each, hit);
        return el("div.around", {}, shownParts(near, [0, near.text.length], rangesOf(near.text, words), null));
      }),
    );
    const nothing = before.length + after.length ? [] : [el("p.hint", {}, "Nothing stands around it.")];
    return [...before, ...inFull(), ...after, ...nothing];
  };
  box.replaceChildren(...short());
  const choices = [
    (cut || !hit.whole) && { kind: "open", names: ["Show all", "Show less"], opened: whole },
    (!hit.whole || actions.hasSiblings(hit)) && { kind: "near", names: ["Neighbours", "Without neighbours"], opened: around },
  ].filter(Boolean);
  let shown = null;
  const show = async (choice) => {
    shown = choice;
    choices.forEach((each) => {
      each.button.setAttribute("aria-expanded", String(each === choice));
      each.button.textContent = each.names[Number(each === choice)];
    });
    try {
      const nodes = choice ? await choice.opened() : short();
      if (shown === choice) box.replaceChildren(...nodes);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      tell(error.message);
      if (shown === choice) show(null);
    }
  };
  for (const choice of choices) {
    const toggle = () => show(shown === choice ? null : choice);
    choice.button = button(choice.names[0], toggle, { class: `link ${choice.kind}`, "aria-expanded": "false" });
  }
  return [box, choices.map((choice) => choice.button)];
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
  const [box, buttons] = body(hit, words, actions);
  const place = [`meaning ${hit.score.toFixed(2)}`, origin(hit, actions.fileOf).place].filter(Boolean).join(" · ");
  return el("div.further", {}, el("p.place", {}, place), box, el("div.actions", {}, buttons));
}

/**
 * Return a list item for each document that was found, with its passages.
 * @param {Array} hits as the server gives them
 * @param {object} actions like(hit), explain(hit, place, button), document(hit), which returns a document's text,
 *   around(hit), which returns texts before and after it, hasSiblings(hit), whether its file has other documents,
 *   fileOf(source), the address of a file (null: none), and whether the query is unanswered
 */
export function hitItems(hits, actions) {
  const words = new Set(hits.flatMap((hit) => [...markedWords(hit.snippet)]));
  return byDocument(hits).map(([hit, ...others], number) => {
    const { name, node, place } = origin(hit, actions.fileOf);
    const [box, buttons] = body(hit, words, actions);
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
        box,
        metadataList(hit),
        el(
          "div.actions",
          {},
          buttons,
          more("More like this", () => actions.like(hit), "like"),
          explain,
        ),
        explanation,
        others.map((other) => further(other, words, actions)),
      ),
    );
  });
}
