// The Contextualizer and its words in C, compiled to WebAssembly: ctx_embed/kernel/contextualizer.c, which says what
// each call takes. Integers of 64 bits are BigInts here, and addresses are numbers of 32 bits.

// Rows of tokens in memory at a time, and how many of them have their products held.
const CAPACITY = 4096;
const HELD = 256;
// C reads words 8 bytes at a time.
const END = "\0".repeat(9);

/** Return a kernel's calls and memory. */
export class Kernel {
  /** @param {Uint8Array} code */
  static async load(code) {
    const { instance } = await WebAssembly.instantiate(code);
    return new Kernel(instance.exports);
  }

  /** @param {any} calls */
  constructor(calls) {
    this.calls = calls;
    calls._initialize();
  }

  /** Return the address of n bytes, zeros, which `free` takes back. */
  room(n) {
    const address = this.calls.malloc(n + 16);
    if (!address) throw new RangeError("not enough memory for the model");
    new Uint8Array(this.calls.memory.buffer, address, n).fill(0);
    return address;
  }

  free(address) {
    this.calls.ctx_free(address);
  }

  /** Return what lies at an address as an array of a type; valid until more memory is taken. */
  view(type, address, n) {
    return new type(this.calls.memory.buffer, address, n);
  }

  /** Return the address of a copy of an array. */
  copied(array) {
    const address = this.room(array.byteLength);
    this.view(array.constructor, address, array.length).set(array);
    return address;
  }

  /** Call `work` with the addresses of copies of arrays, which are freed when it returns. */
  with(arrays, work) {
    const addresses = arrays.map((array) => this.copied(array));
    try {
      return work(...addresses);
    } finally {
      for (const address of addresses) this.free(address);
    }
  }
}

/** The steps over rows of tokens, which come as texts need them. */
export class Model {
  /**
   * @param {Kernel} kernel
   * @param {{dimension: number, steps: number, rank: number, shared: boolean, mean: boolean, relative: boolean,
   *   floats: boolean}} shape `floats`: rows of the token table are float32, else int8
   * @param {Record<string, Float32Array>} arrays the parameters by the names of the kernel's ctx_parameters
   */
  constructor(kernel, shape, arrays) {
    this.kernel = kernel;
    this.shape = shape;
    this.c0 = arrays.c0;
    const parameters = ["U", "V", "W", "b", "gain", "bias", "c0", "s"];
    this.parameters = parameters.map((name) => (arrays[name] ? kernel.copied(arrays[name]) : 0));
    this.type = shape.floats ? Float32Array : Int8Array;
    this.pointer = 0;
    this.#start(CAPACITY);
  }

  /** Begin with an empty table of some rows. */
  #start(capacity) {
    const { kernel, shape } = this;
    if (this.pointer) for (const address of [this.pointer, this.levels, this.scales]) kernel.free(address);
    this.capacity = capacity;
    this.places = new Map();
    this.levels = kernel.room(capacity * shape.dimension * this.type.BYTES_PER_ELEMENT);
    this.scales = kernel.room(4 * capacity);
    const numbers = [shape.dimension, shape.steps, shape.rank, capacity, shape.shared, shape.mean, shape.relative, HELD, 0];
    const given = new Int32Array(30);
    numbers.forEach((number, place) => (given[2 * place] = Number(number)));
    given.set([...(shape.floats ? [0, 0, this.levels] : [this.levels, this.scales, 0]), ...this.parameters], 18);
    this.pointer = kernel.with([given], (address) => kernel.calls.ctx_model_new(address));
    if (!this.pointer) throw new RangeError("not enough memory for the model");
  }

  /**
   * Return c^K of a text, (m,), and c^0 of one without tokens.
   * @param {ArrayLike<number>} ids
   * @param {(id: number) => {levels: Int8Array | Float32Array, scale: number}} row the row of an id in the token table
   */
  embed(ids, row) {
    const { kernel, shape } = this;
    const different = new Set(Array.from(ids));
    const missing = [...different].filter((id) => !this.places.has(id));
    if (this.places.size + missing.length > this.capacity) this.#start(Math.max(CAPACITY, different.size));
    for (const id of different) {
      if (this.places.has(id)) continue;
      const place = this.places.size;
      const { levels, scale } = row(id);
      const begin = this.levels + place * levels.byteLength;
      kernel.view(this.type, begin, shape.dimension).set(levels);
      kernel.view(Float32Array, this.scales, this.capacity)[place] = scale;
      this.places.set(id, place);
    }
    const places = Int32Array.from(ids, (id) => this.places.get(id));
    return kernel.with([places, BigInt64Array.of(BigInt(ids.length)), this.c0], (at, length, context) => {
      const failed = kernel.calls.ctx_embed(this.pointer, at, length, 0, 1n, context);
      if (failed) throw new RangeError("not enough memory to embed this text");
      return kernel.view(Float32Array, context, shape.dimension).slice();
    });
  }
}

/** The words of a WordPiece vocabulary: those of ASCII letters and digits, in lower case. */
export class Words {
  /**
   * @param {Kernel} kernel
   * @param {string[]} entries by id
   * @param {string} cuts the ASCII characters that are tokens of their own
   * @param {number} longest characters of a word that WordPiece reads
   */
  constructor(kernel, entries, cuts, longest) {
    this.kernel = kernel;
    const kinds = new Uint8Array(128);
    for (const cut of cuts) kinds[cut.charCodeAt(0)] = 1;
    const seed = crypto.getRandomValues(new BigUint64Array(1))[0] >> 1n;
    const most = 2 ** Math.ceil(Math.log2(2 * entries.length + 2));
    this.table = kernel.with([kinds], (address) => kernel.calls.ctx_words_new(seed, BigInt(most), address));
    const json = entries.map((entry, id) => `${JSON.stringify(entry)}:${id}`).join(",");
    const bytes = new TextEncoder().encode(json + END);
    const [size, ids] = [BigInt(bytes.length - END.length), BigInt(entries.length)];
    const most_letters = BigInt(Math.min(longest, 255));
    const all = this.table && kernel.with([bytes], (at) => kernel.calls.ctx_words_entries(this.table, at, size, ids, most_letters));
    if (!all) throw new RangeError("not enough memory for the vocabulary");
  }

  /**
   * Return the ids of a text.
   * @param {string} text
   * @param {(word: string) => number[]} others the ids of a word that is not in the table
   */
  ids(text, others) {
    const { kernel, table } = this;
    const bytes = new TextEncoder().encode(text.replaceAll("\0", " ") + END);
    const size = bytes.length - END.length + 1;
    const slots = 2 ** Math.ceil(Math.log2(size + 1));
    const sizes = [4 * size, 8, 16 * size, 4 * slots, 8];
    return kernel.with([bytes, ...sizes.map((n) => new Uint8Array(n))], (s, records, ends, spans, seen, known) => {
      const unknown = Number(kernel.calls.ctx_words_find(table, s, 1n, records, ends, spans, seen, BigInt(slots - 1), known));
      const count = Number(kernel.view(BigInt64Array, ends, 1)[0]);
      let room = Number(kernel.view(BigInt64Array, known, 1)[0]);
      const places = Array.from(kernel.view(BigInt64Array, spans, 2 * unknown), Number);
      const found = [];
      const starts = [0n];
      for (let word = 0; word < unknown; word += 1) {
        for (const id of others(new TextDecoder().decode(bytes.subarray(places[2 * word], places[2 * word + 1])))) found.push(id);
        starts.push(BigInt(found.length));
      }
      for (const record of kernel.view(Int32Array, records, count)) {
        if (record < 0) room += Number(starts[-record] - starts[-1 - record]);
      }
      const given = [Int32Array.from(found), BigInt64Array.from(starts), new Int32Array(room + 1), new BigInt64Array(1)];
      return kernel.with(given, (other, start, ids, length) => {
        const n = kernel.calls.ctx_words_ids(table, 0, records, ends, 1n, other, start, ids, length);
        return Array.from(kernel.view(Int32Array, ids, Number(n)));
      });
    });
  }
}
