// A query and a hit as coloured words: what each word adds to the score, or takes from it.

import { el } from "./dom.js";
import { units } from "./text.js";

// The deepest colour needs a weight of at least this many times the mean of its text.
const EVEN = 2;
const STRONGEST = 5;
// Smaller weights are neither coloured nor named: rounded to two digits, they are nothing.
const LEAST = 0.005;

const signed = (weight) => `${weight < 0 ? "−" : "+"}${Math.abs(weight).toFixed(2)}`;

function coloured(side) {
  const size = side.tokens.map(({ weight }) => Math.abs(weight));
  const mean = size.reduce((sum, weight) => sum + weight, 0) / (size.length || 1);
  const deepest = Math.max(...size, EVEN * mean);
  const nodes = [];
  let place = 0;
  for (const { start, stop, weight } of side.tokens) {
    const [from, to] = units(side.text, start, stop);
    if (from < place || to > side.text.length) continue;
    const kind = Math.abs(weight) < LEAST ? "span" : weight < 0 ? "span.against" : "span.for";
    const word = el(kind, { title: signed(weight) }, side.text.slice(from, to));
    word.style.setProperty("--share", `${deepest > 0 ? Math.round((60 * Math.abs(weight)) / deepest) : 0}%`);
    nodes.push(side.text.slice(place, from), word);
    place = to;
  }
  return [...nodes, side.text.slice(place)];
}

function strongest(side) {
  return side.tokens
    .filter(({ text, weight }) => Math.abs(weight) >= LEAST && /[\p{L}\p{N}]/u.test(text))
    .sort((one, other) => Math.abs(other.weight) - Math.abs(one.weight))
    .slice(0, STRONGEST)
    .flatMap(({ text, weight }, place) => [place > 0 && ", ", el("b", {}, text), ` ${signed(weight)}`]);
}

const column = (name, side) =>
  el(
    "div",
    {},
    el("h4", {}, name),
    el("p.words", {}, side.tokens.length ? coloured(side) : "no words that the model knows"),
    side.tokens.length > 0 && el("p.hint", {}, "Most: ", strongest(side), "."),
  );

/** Return the explanation of a hit: the answer of the server, drawn; ``asked`` names what was searched for. */
export function explained(answer, asked) {
  return [
    el(
      "p.key",
      {},
      el("span.for.sample", {}, "for"),
      " ",
      el("span.against.sample", {}, "against"),
      ` What each word adds to the score of ${answer.score.toFixed(2)}, seen from either side.`,
    ),
    el("div.sides", {}, column(asked, answer.query), column("Text", answer.document)),
  ];
}
