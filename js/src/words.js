// Search by words: what a query asks for, and what marks it in a text; ctx_embed/index/words.py has the same in Python.

import { stem } from "./porter.js";

/**
 * Return the words of a read text in the form in which texts are indexed, with their places, and further words by which
 * a search finds it: `_read_words` in ctx_embed/text/normalisation.py.
 * @param {string} read
 * @param {RegExp} pattern
 * @param {import("./text.js").Tables | null} tables
 */
export function readWords(read, pattern, tables) {
  const words = [];
  const more = [];
  let cut = null;
  for (const found of read.matchAll(pattern)) {
    const { paired, net, sharp, word: written, plus, cut: isCut } = found.groups;
    const start = found.index;
    const before = cut;
    cut = null;
    if (paired) {
      const letters = Array.from(paired);
      letters.forEach((letter, at) => {
        if (at + 1 < letters.length || at === 0) words.push({ word: letter + (letters[at + 1] ?? ""), start, stop: start + paired.length });
        if (letters.length > 1) more.push({ word: letter, start, stop: start + paired.length });
      });
    } else if (net) {
      words.push({ word: `dot${net}`, start, stop: start + 4 });
      more.push({ word: net, start: start + 1, stop: start + 4 });
    } else if (sharp) words.push({ word: `${sharp}sharp`, start, stop: start + found[0].length });
    else {
      const word = tables ? Array.from(written, (letter) => tables.strokes.get(letter) ?? letter).join("") : written;
      const stop = start + written.length;
      if (plus) {
        words.push({ word: `${word}plusplus`, start, stop: stop + 2 });
        if (word.length > 1) more.push({ word, start, stop });
      } else {
        words.push({ word, start, stop });
        if (before && /^\p{Ll}/u.test(word)) more.push({ word: before.word + word, start: before.start, stop });
      }
      if (isCut && !/\d$/.test(word)) cut = words.at(-1);
    }
  }
  return { words, more };
}

/**
 * Return the tokens of a word, as SQLite makes them.
 * @param {string} word
 * @param {import("./text.js").Tables | null} tables
 */
export function tokensOf(word, tables) {
  const folded = tables ? tables.fold(word) : word.toLowerCase();
  return folded.split(" ").filter(Boolean).map(stem);
}

/** What the words of queries and texts are compared by. */
export class Asking {
  /**
   * @param {any} constants of the manifest
   * @param {string} pattern of words in ASCII
   */
  constructor(constants, pattern) {
    this.constants = constants;
    this.functionWords = new Set(constants.functionWords);
    this.pattern = new RegExp(pattern, "gu");
  }

  #read(text, tables) {
    return readWords(tables ? tables.normalised(text) : text, tables ? tables.word : this.pattern, tables);
  }

  /** Return the words that a query asks for, in lower case: without function words, unless there are no others. */
  words(query, tables) {
    const every = this.#read(query, tables).words.map(({ word }) => word.toLowerCase());
    const said = every.filter((word) => !this.functionWords.has(word));
    return [...new Set(said.length ? said : every)].slice(0, this.constants.mostWords);
  }

  /** Return the share of a query's words that a text has, in any form: `word_shares` in index/hits.py. */
  share(words, text, tables) {
    const { endings, leastStem, mostEnding } = this.constants;
    const stems = new Set(
      words.map((word) => {
        const ending = endings.find((end) => word.endsWith(end) && word.length >= end.length + leastStem) ?? "";
        return word.slice(0, word.length - ending.length);
      }),
    );
    if (!stems.size) return 0;
    const { words: own, more } = this.#read(text, tables);
    const written = [...own, ...more].map(({ word }) => word.toLowerCase());
    const has = (part) => written.some((word) => word.startsWith(part) && word.length <= part.length + mostEnding);
    return [...stems].filter(has).length / stems.size;
  }

  /**
   * Return the part of a text with the most different tokens of a query, in pieces, of which the marked ones are these,
   * and where the first of them is.
   * @param {Set<string>} tokens
   * @param {string} text
   * @param {import("./text.js").Tables | null} tables
   * @returns {{snippet: {text: string, marked: boolean}[], at: number}}
   */
  snippet(tokens, text, tables, length = 240) {
    const found = readWords(text, tables ? tables.word : this.pattern, tables).words;
    const matches = found.flatMap((word) => {
      const token = tokensOf(word.word, tables).find((each) => tokens.has(each));
      return token === undefined ? [] : [{ ...word, token }];
    });
    let best = 0;
    let most = 0;
    // How often each token is in the part that begins with a match, and the match after it.
    const counts = new Map();
    let after = 0;
    matches.forEach(({ start, token }, place) => {
      for (; after < matches.length && matches[after].stop <= start + length; after += 1) {
        counts.set(matches[after].token, (counts.get(matches[after].token) ?? 0) + 1);
      }
      if (counts.size > most) [most, best] = [counts.size, place];
      if (after <= place) after = place + 1;
      else if (counts.get(token) > 1) counts.set(token, counts.get(token) - 1);
      else counts.delete(token);
    });
    const around = matches.length ? Math.max(matches[best].start - length / 4, 0) : 0;
    const left = around && text.slice(0, around).length + Math.max(text.slice(around).search(/(?<=\s)\S/), 0);
    const rest = text.slice(left, left + length + 40);
    const end = text.length <= left + rest.length ? rest.length : Math.max(rest.lastIndexOf(" "), length);
    const right = left + end;
    const pieces = [];
    let at = left;
    for (const { start, stop } of matches) {
      if (start < at || stop > right) continue;
      pieces.push({ text: text.slice(at, start), marked: false }, { text: text.slice(start, stop), marked: true });
      at = stop;
    }
    pieces.push({ text: text.slice(at, right), marked: false });
    if (left) pieces.unshift({ text: "\u2026", marked: false });
    if (right < text.length) pieces.push({ text: "\u2026", marked: false });
    return { snippet: pieces.filter((piece) => piece.text), at: matches[best]?.start ?? 0 };
  }
}
