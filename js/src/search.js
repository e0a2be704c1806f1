// Search of a static site: the ranking of ctx_embed/index, from the pieces that a query needs.

import { Encoder } from "./encoder.js";
import { namesIn, Pieces, Reader } from "./pieces.js";
import { Asking, tokensOf } from "./words.js";

export { Encoder } from "./encoder.js";
export { PieceError, Pieces } from "./pieces.js";

// Pieces of passages to read for a query, at least: those that may hold the best ones.
const PROBES = 10;

/**
 * @typedef {object} Hit
 * @property {string} url the page, with the anchor of the heading
 * @property {string} page the page
 * @property {string} title of the page
 * @property {string} heading above the snippet
 * @property {{text: string, marked: boolean}[]} above the heading in pieces, of which words of the query are marked
 * @property {string} text the passage
 * @property {{text: string, marked: boolean}[]} snippet the part with the most words of the query
 * @property {number} score the cosine with the query
 * @property {number} fused what orders the hits: the mean of the shares of the best cosine and the best score by words
 * @property {number | null} relevance 0 to 1, see ctx_embed/index/hits.py
 */

/** Compare two words as UTF-8 does. */
function compared(one, other) {
  const [first, second] = [Array.from(one), Array.from(other)];
  for (let place = 0; place < Math.min(first.length, second.length); place += 1) {
    const difference = first[place].codePointAt(0) - second[place].codePointAt(0);
    if (difference) return difference;
  }
  return first.length - second.length;
}

/** Return the place of the last item that is not above what is looked for, or -1. */
function lastUpTo(items, wanted, compare) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (compare(items[middle], wanted) <= 0) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Return the cosine of a unit vector with that of int8 codes: a code c stands for c (64 + |c|). */
function cosine(query, codes) {
  let [sum, square] = [0, 0];
  for (let place = 0; place < query.length; place += 1) {
    const value = codes[place] * (64 + Math.abs(codes[place]));
    sum += query[place] * value;
    square += value * value;
  }
  return Math.fround(Math.min(Math.max(sum / (Math.sqrt(square) || 1), -1), 1));
}

/**
 * Return passages with their cosines and fused scores, best first: `ranking_of` in ctx_embed/index/search.py.
 * @param {[number, number][]} found passages and cosines
 * @param {Map<number, number>} scores by words, best first
 */
function ranked(found, scores) {
  const [nearest, best] = [found.reduce((most, [, score]) => Math.max(most, score), 0), Math.max(0, ...scores.values())];
  const share = (score, most) => (most > 0 ? Math.max(score, 0) / most : 0);
  const every = found.map(([passage, score]) => ({ passage, score, fused: (share(score, nearest) + share(scores.get(passage) ?? 0, best)) / 2 }));
  return every.sort((one, two) => two.fused - one.fused);
}

/** Searches the index of a static site. */
export class Search {
  /**
   * @param {string} address of the folder that `ctx-embed export site` wrote
   * @param {{get?: (address: string, options?: RequestInit) => Promise<Response>, probes?: number}} [options]
   *   `probes`: pieces of passages to read for a query, at least; all of them rank exactly as the library does
   */
  constructor(address, { get, probes = PROBES } = {}) {
    this.pieces = new Pieces(address, get);
    this.probes = probes;
    /** @type {Promise<void> | null} */
    this.started = null;
  }

  /** Fetch what all searches need; a search does it, too. Repeat it after an error. */
  start() {
    this.started ??= this.#start().catch((error) => {
      this.started = null;
      throw error;
    });
    return this.started;
  }

  async #start() {
    const { pieces } = this;
    const manifest = await pieces.manifest();
    this.constants = manifest.constants;
    this.encoder = new Encoder(pieces, manifest.model);
    this.asking = new Asking(manifest.constants, manifest.model.word);
    const found = ["index", "passages", "words"].map((name) => pieces.piece(manifest.pieces[name]));
    const [index, ...lists] = await Promise.all(found);
    await this.encoder.ready;
    this.names = { passages: namesIn(lists[0]), words: namesIn(lists[1]) };
    const reader = new Reader(index);
    this.index = JSON.parse(reader.text(reader.number()));
    this.lengths = reader.array(Uint32Array, this.index.count);
    this.mean = reader.array(Float32Array, manifest.model.kept);
    this.signs = reader.array(Uint8Array, this.index.count * Math.ceil(manifest.model.kept / 8));
  }

  /** Return the passages that have a token, and how often. */
  async #having(token) {
    const place = lastUpTo(this.index.words, token, compared);
    if (place < 0) return [];
    const reader = new Reader(await this.pieces.piece(this.names.words[place]));
    // Each token has the number of its passages, and each passage how far it is from the one before; the counts follow.
    let [having, skipped, before] = [/** @type {number[]} */ ([]), 0, 0];
    for (const each of reader.text(reader.number()).split("\n")) {
      const found = new Array(reader.number());
      for (let at = 0, passage = 0; at < found.length; at += 1) found[at] = passage += reader.number();
      if (each === token) [having, skipped] = [found, before];
      before += found.length;
    }
    for (; skipped > 0; skipped -= 1) reader.number();
    return having.map((passage) => [passage, reader.number()]);
  }

  /** Return the best passages by BM25, best first, with their scores: `Bm25.best` in index/words.py. */
  async #byWords(words, tables) {
    const { k1, b, leastWeight, large, commonPart, depth } = this.constants;
    const { count: passages, average } = this.index;
    const tokens = words.map((word) => tokensOf(word, tables)).filter((of) => of.length);
    let lists = await Promise.all(tokens.flat().map((token) => this.#having(token)));
    if (passages > large && lists.length > 1) {
      const rare = lists.filter((having) => having.length < Math.floor(commonPart * passages));
      if (rare.length) lists = rare;
    }
    const scores = new Map();
    for (const having of lists) {
      const weight = Math.max(Math.log((passages - having.length + 0.5) / (having.length + 0.5)), 0) || leastWeight;
      for (const [passage, count] of having) {
        const norm = k1 * (1 - b + (b * this.lengths[passage]) / average);
        scores.set(passage, (scores.get(passage) ?? 0) + weight * ((count * (k1 + 1)) / (count + norm)));
      }
    }
    return new Map([...scores].sort((one, two) => two[1] - one[1] || one[0] - two[0]).slice(0, depth));
  }

  /** Return an estimate of each passage's cosine with a unit vector: as if all numbers were as far from the mean. */
  #estimates(query) {
    const { count, apart } = this.index;
    const size = Math.ceil(query.length / 8);
    // What each value of each byte of signs adds.
    const adds = new Float32Array(256 * size);
    for (let place = 0; place < adds.length; place += 1) {
      for (let bit = 0; bit < 8; bit += 1) adds[place] += ((place >> (7 - bit)) & 1 ? apart : -apart) * (query[8 * (place >> 8) + bit] ?? 0);
    }
    const ofMean = query.reduce((sum, value, place) => sum + value * this.mean[place], 0);
    return Float32Array.from({ length: count }, (_, passage) => {
      let sum = ofMean;
      for (let place = 0; place < size; place += 1) sum += adds[256 * place + this.signs[size * passage + place]];
      return sum;
    });
  }

  /** Return the passages of a piece, each with its number, what is shown, and its vector in codes. */
  async #piece(place) {
    const reader = new Reader(await this.pieces.piece(this.names.passages[place]));
    const every = JSON.parse(reader.text(reader.number()));
    return every.map((shown, at) => ({ passage: this.index.passages[place] + at, shown, codes: reader.array(Int8Array, this.encoder.settings.kept) }));
  }

  /** Return the passages that rank best, with what is shown, cosine and fused score, best first. */
  async #ranked(query, scores, k) {
    const isRead = query.some(Boolean);
    const estimates = isRead ? this.#estimates(query) : new Float32Array(this.index.count);
    const wanted = Math.max(this.probes, k);
    const least = isRead ? (estimates.slice().sort().at(-Math.max(this.constants.depth, wanted)) ?? -Infinity) : Infinity;
    /** @type {[number, number][]} */
    const likely = [];
    estimates.forEach((score, passage) => (score >= least || scores.has(passage)) && likely.push([passage, score]));
    const places = new Set();
    for (const { passage } of ranked(likely, scores)) {
      places.add(lastUpTo(this.index.passages, passage, (one, other) => one - other));
      if (places.size >= wanted) break;
    }
    const read = (await Promise.all([...places].map((place) => this.#piece(place)))).flat();
    const shown = new Map(read.map((of) => [of.passage, of.shown]));
    const cosines = new Map(read.map(({ passage, codes }) => [passage, isRead ? cosine(query, codes) : 0]));
    const near = read.filter(({ codes }) => isRead && codes.some(Boolean)).map(({ passage }) => passage);
    near.sort((one, two) => cosines.get(two) - cosines.get(one) || one - two);
    const found = new Set([...[...scores.keys()].filter((passage) => shown.has(passage)), ...near.slice(0, this.constants.depth)]);
    return ranked([...found].map((passage) => [passage, cosines.get(passage)]), scores).map((hit) => ({ ...hit, shown: shown.get(hit.passage) }));
  }

  /**
   * Fetch what a query needs of the model and of words. It is called with the words that are typed, so that little is
   * left to fetch when the last one is.
   * @param {string} query
   */
  async prepare(query) {
    await this.start();
    const tables = await this.encoder.tables(query);
    await Promise.all([this.encoder.ids(query), this.#byWords(this.asking.words(query, tables), tables)]);
  }

  /**
   * Return the best k passages for a query, and whether one of them seems to answer it (null: unknown).
   * @param {string} query
   * @param {number} [k]
   * @returns {Promise<{hits: Hit[], answered: boolean | null}>}
   */
  async search(query, k = 10) {
    // What is longer would hold the page.
    query = query.slice(0, 10_000);
    await this.start();
    const { relevance: [deviations, ofWords, ofPassages, base], relevant } = this.constants;
    const { count, unrelated } = this.index;
    const tables = await this.encoder.tables(query);
    const words = this.asking.words(query, tables);
    const [vector, scores] = await Promise.all([this.encoder.embed(query), this.#byWords(words, tables)]);
    const best = (await this.#ranked(vector, scores, k)).slice(0, k);
    const tokens = new Set(words.flatMap((word) => tokensOf(word, tables)));
    const isJudged = unrelated && vector.some(Boolean);
    const hits = best.map(({ shown: [page, title, headings, text], score, fused }) => {
      const share = this.asking.share(words, text, tables);
      let relevance = null;
      if (isJudged) {
        const height = (deviations * (score - unrelated[0])) / unrelated[1] + ofWords * share + base - ofPassages * Math.sqrt(2 * Math.log(count + 3));
        relevance = Math.exp(-Math.exp(-Math.min(Math.max(height, -50), 50)));
      }
      // What stands under its heading need not repeat it.
      const body = text.replace(/^#{1,6} .*\n+(?=.)/, "");
      const { snippet, at } = this.asking.snippet(tokens, body, tables);
      // Offsets are in characters of Python, which writes rare letters as one.
      const offset = Array.from(text.slice(0, text.length - body.length + at)).length;
      const [, heading, anchor] = headings.findLast(([start]) => start <= offset);
      const above = this.asking.snippet(tokens, heading, tables).snippet;
      return { url: anchor ? `${page}#${encodeURIComponent(anchor)}` : page, page, title, heading, above, text, snippet, score, fused, relevance };
    });
    return { hits, answered: isJudged ? hits.some(({ relevance }) => relevance >= relevant) : null };
  }
}
