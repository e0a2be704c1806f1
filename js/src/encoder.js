// The model of a site: texts to unit vectors, from the pieces that the texts need.

import { Kernel, Model, Words } from "./kernel.js";
import { namesIn, Reader } from "./pieces.js";
import { needsTables, Tables, Tokenizer } from "./text.js";

/**
 * Return a vector scaled to length 1, as float32; zeros stay zeros.
 * @param {ArrayLike<number>} vector
 */
export function unit(vector) {
  let square = 0;
  for (let place = 0; place < vector.length; place += 1) square += vector[place] * vector[place];
  const length = Math.sqrt(square) || 1;
  return Float32Array.from(vector, (value) => value / length);
}

/** Embeds texts as the model of the index does. */
export class Encoder {
  /**
   * @param {import("./pieces.js").Pieces} pieces
   * @param {any} settings what the manifest says of the model
   */
  constructor(pieces, settings) {
    this.pieces = pieces;
    this.settings = settings;
    /** @type {Map<number, {levels: Int8Array | Float32Array, scale: number}>} */
    this.rows = new Map();
    /** @type {Map<number, number>} */
    this.pairs = new Map();
    this.ready = this.#start();
    // Whoever embeds a text hears of the failure.
    this.ready.catch(() => {});
  }

  async #start() {
    const { pieces, settings } = this;
    const [code, listed, parameters, phrases, names] = await Promise.all(
      ["kernel", "vocabulary", "parameters", "phrases", "rows"].map((name) => pieces.piece(settings.pieces[name])),
    );
    const kernel = await Kernel.load(code);
    const entries = new TextDecoder().decode(listed).split("\n");
    this.names = namesIn(names);
    // Phrases by their two parts, which lie in planes of bytes, too: all first ones, and then all second ones.
    const most = phrases.length / 3;
    const part = (place) => (phrases[place] << 16) | (phrases[most + place] << 8) | phrases[2 * most + place];
    for (let place = 0; place < most / 2; place += 1) {
      this.pairs.set(part(place) * settings.size + part(most / 2 + place), settings.entries + place);
    }
    this.tokenizer = new Tokenizer(new Words(kernel, entries, settings.cuts, settings.longest), entries, settings);
    // Planes of bytes: exponents, the higher and the lower half of 16 bits, and signs, eight in a byte.
    const n = settings.arrays.reduce((sum, [, size]) => sum + size, 0);
    const all = Uint32Array.from({ length: n }, (_, place) => {
      const sign = parameters[3 * n + (place >> 3)] << (24 + (place & 7));
      return (sign & 0x80000000) | (parameters[place] << 23) | (parameters[n + place] << 15) | (parameters[2 * n + place] << 7);
    });
    const reader = new Reader(new Uint8Array(all.buffer));
    const arrays = Object.fromEntries(settings.arrays.map(([name, size]) => [name, reader.array(Float32Array, size)]));
    this.model = new Model(kernel, settings, arrays);
  }

  /** Return the tables if one of some texts needs them, else null. */
  async tables(...texts) {
    if (!texts.some(needsTables)) return null;
    const found = await this.pieces.piece(this.settings.pieces.tables);
    this.read ??= new Tables(JSON.parse(new TextDecoder().decode(found)));
    return this.read;
  }

  /** Fetch the rows of some ids. */
  async #fetched(ids) {
    const { rows, dimension, floats } = this.settings;
    const shards = new Set(ids.filter((id) => !this.rows.has(id)).map((id) => Math.floor(id / rows)));
    await Promise.all(
      [...shards].map(async (shard) => {
        const reader = new Reader(await this.pieces.piece(this.names[shard]));
        const n = reader.number();
        const levels = reader.array(floats ? Float32Array : Int8Array, n * dimension);
        const planes = reader.array(Uint8Array, 4 * n);
        const scales = new Float32Array(planes.map((_, at) => planes[(at % 4) * n + (at >> 2)]).buffer);
        scales.forEach((scale, at) => this.rows.set(shard * rows + at, { levels: levels.subarray(at * dimension, (at + 1) * dimension), scale }));
      }),
    );
  }

  /**
   * Return the ids of a text, with phrases merged, and fetch their rows; none if the model cannot read it.
   * @param {string} text
   * @returns {Promise<number[]>}
   */
  async ids(text) {
    await this.ready;
    const tables = await this.tables(text);
    let ids = this.tokenizer.ids(text, tables);
    if (!this.tokenizer.isRead(text, ids, tables)) return [];
    // Passes from left to right, until there is no pair to merge.
    for (let before = -1; before !== ids.length; ) {
      before = ids.length;
      const merged = [];
      for (let place = 0; place < ids.length; place += 1) {
        const phrase = this.pairs.get(ids[place] * this.settings.size + ids[place + 1]);
        merged.push(phrase ?? ids[place]);
        if (phrase !== undefined) place += 1;
      }
      ids = merged;
    }
    await this.#fetched(ids);
    return ids;
  }

  /**
   * Return the unit vector of a text; zeros if the model cannot read it.
   * @param {string} text
   */
  async embed(text) {
    const ids = await this.ids(text);
    const context = ids.length ? this.model.embed(ids, (id) => this.rows.get(id)) : new Float32Array(this.settings.dimension);
    return unit(context.subarray(0, this.settings.kept));
  }
}
