// Finds what to highlight in texts. Ranges are [start, stop] in UTF-16 units, as JavaScript's strings count.

import { el } from "./dom.js";

/** The marks that the server is asked to put around the query's words in a snippet. */
export const MARKS = ["\u0002", "\u0003"];
const WORD = /[\p{L}\p{N}]+/gu;
const EXCERPT = 420;

// Lines of signs alone, marks of headings, emphasis, code, links and roles, as texts in Markdown or reStructuredText have them.
const MARKUP = [
  [/^[ \t]*[^\p{L}\p{N}\s]{3,}[^\p{L}\p{N}\n]*$/gmu, ""],
  [/^ {0,3}#{1,6}[ \t]+/gm, ""],
  [/!?\[([^\[\]\n]{1,500})\]\([^()\s]{0,500}\)/g, "$1"],
  [/:[\w:.-]{1,50}:`~?([^`<\n]{1,500}?)\s*(?:<[^<>`\n]{1,500}>)?`/g, "$1"],
  [/(\*\*|``?|__)(?=\S)([^\n*`]{1,500}?)\1/g, "$2"],
  [/\n\s*\n\s*\n+/g, "\n\n"],
];

/** Return a text without the marks of its markup, for reading. */
export const readable = (text) => MARKUP.reduce((left, [marks, kept]) => left.replace(marks, kept), text).trim();

// Source code and data, which are shown as they are.
const CODE = new Set(
  `.py .pyi .pyw .c .cc .cpp .cxx .h .hh .hpp .cs .java .kt .kts .scala .go .rs .swift .m .mm .js .jsx .mjs .cjs .ts .tsx .vue
  .svelte .php .rb .pl .pm .lua .r .jl .sh .bash .zsh .fish .ps1 .bat .sql .css .scss .less .hs .ml .mli .ex .exs .erl .clj .dart
  .groovy .proto .zig .nim .f90 .f95 .pas .v .vhd .asm .s .tf .gradle .cmake .el .lisp .toml .ini .cfg .conf .yaml .yml .xml
  .json`.split(/\s+/),
);
const CODE_NAMES = /(?:^|\/)(?:(?:GNU)?[Mm]akefile|CMakeLists\.txt|(?:Docker|Container|Jenkins|Rake|Gem|Vagrant|just)file)$/;

/** Return whether a text comes from a file of source code. */
export const isCode = ({ location }) => {
  const source = location?.source ?? "";
  return CODE.has(source.match(/\.\w+$/)?.[0].toLowerCase()) || CODE_NAMES.test(source);
};

/** Return source code without blank lines around it. */
export const trimmedLines = (text) => text.replace(/^(?:[^\S\n]*\n)+/, "").trimEnd();

const folded = (word) => word.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();

/** Return a range of characters (code points, as Python counts them) as a range of UTF-16 units. */
export function units(text, start, stop) {
  if (!/[\ud800-\udbff]/.test(text)) return [start, stop];
  let place = 0;
  let count = 0;
  const found = [text.length, text.length];
  for (const character of text) {
    if (count === start) found[0] = place;
    if (count === stop) found[1] = place;
    place += character.length;
    count += 1;
  }
  return found;
}

/** Return the words that a snippet marks, folded to lower case without accents. */
export function markedWords(snippet) {
  const words = new Set();
  for (const part of (snippet ?? "").split(MARKS[0]).slice(1)) {
    for (const word of part.split(MARKS[1])[0].match(WORD) ?? []) words.add(folded(word));
  }
  return words;
}

/** Return the ranges of a text's words that are among some folded words. */
export function rangesOf(text, words) {
  if (!words.size) return [];
  return [...text.matchAll(WORD)]
    .filter(([word]) => words.has(folded(word)))
    .map((match) => [match.index, match.index + match[0].length]);
}

/** Return the ranges of a text's sentences. */
export function sentencesOf(text) {
  if (typeof Intl.Segmenter !== "function") {
    return [...text.matchAll(/[^.!?\n]+[.!?\n]*\s*/g)].map((match) => [match.index, match.index + match[0].length]);
  }
  return [...new Intl.Segmenter("en", { granularity: "sentence" }).segment(text)].map(({ index, segment }) => [
    index,
    index + segment.length,
  ]);
}

const trimmed = (text, [start, stop]) => {
  const part = text.slice(start, stop);
  return [start + part.length - part.trimStart().length, stop - (part.length - part.trimEnd().length)];
};

/** Return the range of the first sentence with the most different marked words, or null if no word is marked. */
export function bestSentence(text, marks) {
  if (!marks.length) return null;
  let best = null;
  let most = 0;
  for (const [start, stop] of sentencesOf(text)) {
    const inside = marks.filter(([from, to]) => from >= start && to <= stop).map(([from, to]) => folded(text.slice(from, to)));
    const different = new Set(inside).size;
    if (different > most) [best, most] = [[start, stop], different];
  }
  return best && trimmed(text, best);
}

/** Return the range of a long text to show first: around the best sentence, else its beginning. */
export function excerptOf(text, best) {
  if (text.length <= EXCERPT * 1.25) return [0, text.length];
  const toWord = (place, step) => {
    let at = place;
    for (let moved = 0; moved < 30 && at > 0 && at < text.length && !/\s/.test(text[at]); moved += 1) at += step;
    return at;
  };
  if (!best) return [0, toWord(EXCERPT, -1)];
  // Whole sentences around the best one, as many as there is room for: a third of it before, the rest after.
  const room = Math.max(EXCERPT - (best[1] - best[0]), 0);
  const sentences = sentencesOf(text);
  const start = sentences.find(([first]) => first >= best[0] - room / 3)?.[0] ?? best[0];
  const limit = start + EXCERPT;
  const stop = sentences.findLast(([, last]) => last <= limit)?.[1] ?? 0;
  return trimmed(text, [Math.min(start, best[0]), stop >= best[1] ? stop : toWord(Math.min(limit, text.length), -1)]);
}

/** Return a range with the whole of its first and last line. */
export function wholeLines(text, [start, stop]) {
  const end = text.indexOf("\n", stop);
  return [text.lastIndexOf("\n", start - 1) + 1, end < 0 ? text.length : end];
}

/** Return nodes for part of a text: marked words in <mark>, the best sentence in span.best. */
export function highlighted(text, [from, to], marks, best) {
  const pieces = (start, stop) => {
    const nodes = [];
    let place = start;
    for (const [first, last] of marks) {
      if (first < start || last > stop) continue;
      nodes.push(text.slice(place, first), el("mark", {}, text.slice(first, last)));
      place = last;
    }
    return [...nodes, text.slice(place, stop)];
  };
  if (!best || best[0] >= to || best[1] <= from) return pieces(from, to);
  const [start, stop] = [Math.max(best[0], from), Math.min(best[1], to)];
  return [...pieces(from, start), el("span.best", {}, pieces(start, stop)), ...pieces(stop, to)];
}
