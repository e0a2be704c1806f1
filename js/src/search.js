// Search of a static site: the ranking of ctx_embed/index, from the pieces that a query needs.

import { Encoder, unit } from "./encoder.js";
import { namesIn, Pieces, Reader } from "./pieces.js";
import { Asking, tokensOf } from "./words.js";

export { Encoder } from "./encoder.js";
export { PieceError, Pieces } from "./pieces.js";

// Clusters of vectors to read for a query: those that may hold the best passages.
const PROBES = 8;
const NO_CLUSTER = 0xffff;

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

/** Return scores as shares of the best one; those below 0 count as 0. */
function sharesOfBest(scores) {
  const best = Math.max(0, ...scores);
  return scores.map((score) => (best > 0 ? Math.max(score, 0) / best : 0));
}

/** Searches the index of a static site. */
export class Search {
  /**
   * @param {string} address of the folder that `ctx-embed export site` wrote
   * @param {{get?: (address: string, options?: RequestInit) => Promise<Response>, probes?: number}} [options]
   *   `probes`: clusters of vectors to read for a query; all of them rank exactly as the library does
   */
  constructor(address, { get, probes = PROBES } = {}) {
    this.pieces = new Pieces(address, get);
    this.probes = probes;
    /** @type {Promise<void> | null} */
    this.started = null;
    this.vectors = new Map();
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
    const found = ["index", "vectors", "texts", "words"].map((name) => pieces.piece(manifest.pieces[name]));
    const [index, ...lists] = await Promise.all(found);
    await this.encoder.ready;
    this.names = { vectors: namesIn(lists[0]), texts: namesIn(lists[1]), words: namesIn(lists[2]) };
    const reader = new Reader(index);
    const head = JSON.parse(reader.text(reader.number()));
    this.index = head;
    this.clusterOf = reader.array(Uint16Array, head.passages);
    this.lengths = reader.array(Uint32Array, head.passages);
    const means = reader.array(Int8Array, head.clusters * manifest.model.kept);
    const lengths = reader.array(Float32Array, head.clusters);
    this.means = this.#decoded(means).map((mean, cluster) => mean.map((value) => value * lengths[cluster]));
    this.members = Array.from({ length: head.clusters }, () => /** @type {number[]} */ ([]));
    this.clusterOf.forEach((cluster, passage) => cluster !== NO_CLUSTER && this.members[cluster].push(passage));
  }

  /** Return the unit vectors of int8 codes: a code c stands for c (64 + |c|). */
  #decoded(codes) {
    const { kept } = this.encoder.settings;
    const vectors = [];
    for (let at = 0; at < codes.length; at += kept) {
      vectors.push(unit(Float32Array.from(codes.subarray(at, at + kept), (code) => code * (64 + Math.abs(code)))));
    }
    return vectors;
  }

  /** Return the passages that have a token, and how often. */
  async #having(token) {
    const place = lastUpTo(this.index.words, token, compared);
    if (place < 0) return [];
    const reader = new Reader(await this.pieces.piece(this.names.words[place]));
    const tokens = reader.text(reader.number()).split("\n");
    for (const each of tokens) {
      const having = [];
      for (let left = reader.number(), passage = 0; left > 0; left -= 1) {
        passage += reader.number();
        having.push([passage, reader.number()]);
      }
      if (each === token) return having;
    }
    return [];
  }

  /** Return the best passages by BM25, best first, with their scores: `Bm25.best` in index/words.py. */
  async #byWords(words, tables) {
    const { k1, b, leastWeight, large, commonPart, depth } = this.constants;
    const { passages, average } = this.index;
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

  /** Return the vectors of a cluster's passages by passage. */
  async #cluster(number) {
    if (!this.vectors.has(number)) {
      const codes = new Int8Array((await this.pieces.piece(this.names.vectors[number])).buffer);
      this.vectors.set(number, this.#decoded(codes));
    }
    return this.members[number].map((passage, place) => [passage, this.vectors.get(number)[place]]);
  }

  /** Return the passages that rank best, with cosine and fused score, best first: `ranking_of` in index/search.py. */
  async #ranked(query, scores) {
    const cosineOf = (vector) => {
      let sum = 0;
      for (let place = 0; place < query.length; place += 1) sum += query[place] * vector[place];
      return Math.fround(Math.min(Math.max(sum, -1), 1));
    };
    const cosines = new Map();
    const found = [...scores.keys()];
    const byWords = sharesOfBest([...scores.values()]);
    if (query.some(Boolean)) {
      const estimates = this.means.map(cosineOf);
      const best = sharesOfBest(estimates);
      const hopes = best.slice();
      found.forEach((passage, place) => {
        const cluster = this.clusterOf[passage];
        if (cluster === NO_CLUSTER) return;
        hopes[cluster] = Math.max(hopes[cluster], best[cluster] + byWords[place]);
        // What a passage has until its cluster is read.
        cosines.set(passage, estimates[cluster]);
      });
      const chosen = [...hopes.keys()].sort((one, two) => hopes[two] - hopes[one]).slice(0, this.probes);
      const read = (await Promise.all(chosen.map((cluster) => this.#cluster(cluster)))).flat();
      const near = read.map(([passage, vector]) => [passage, cosineOf(vector)]);
      near.sort((one, two) => two[1] - one[1] || one[0] - two[0]);
      near.forEach(([passage, cosine], rank) => {
        if (rank < this.constants.depth || scores.has(passage)) cosines.set(passage, cosine);
      });
      found.push(...near.slice(0, this.constants.depth).map(([passage]) => passage).filter((passage) => !scores.has(passage)));
    }
    const shares = sharesOfBest(found.map((passage) => cosines.get(passage) ?? 0));
    const fused = found.map((passage, place) => ({ passage, score: cosines.get(passage) ?? 0, fused: (shares[place] + (byWords[place] ?? 0)) / 2 }));
    return fused.sort((one, two) => two.fused - one.fused);
  }

  /**
   * Return the best k passages for a query, and whether one of them seems to answer it (null: unknown).
   * @param {string} query
   * @param {number} [k]
   * @returns {Promise<{hits: Hit[], answered: boolean | null}>}
   */
  async search(query, k = 10) {
    await this.start();
    const { relevance: [deviations, ofWords, ofPassages, base], relevant } = this.constants;
    const { passages, unrelated } = this.index;
    const tables = await this.encoder.tables(query);
    const words = this.asking.words(query, tables);
    const [vector, scores] = await Promise.all([this.encoder.embed(query), this.#byWords(words, tables)]);
    const ranked = (await this.#ranked(vector, scores)).slice(0, k);
    const tokens = new Set(words.flatMap((word) => tokensOf(word, tables)));
    const isJudged = unrelated && vector.some(Boolean);
    const hits = ranked.map(async ({ passage, score, fused }) => {
      const place = lastUpTo(this.index.texts, passage, (one, other) => one - other);
      const piece = JSON.parse(new TextDecoder().decode(await this.pieces.piece(this.names.texts[place])));
      const [page, title, headings, text] = piece[passage - this.index.texts[place]];
      const share = this.asking.share(words, text, tables);
      let relevance = null;
      if (isJudged) {
        const height = (deviations * (score - unrelated[0])) / unrelated[1] + ofWords * share + base - ofPassages * Math.sqrt(2 * Math.log(passages + 3));
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
    const every = await Promise.all(hits);
    return { hits: every, answered: isJudged ? every.some(({ relevance }) => relevance >= relevant) : null };
  }
}
