// The files of a site's search: a manifest, and pieces that are named by the hash of their bytes.

import { sha256 } from "./sha256.js";

/** A file of the search is missing, damaged or of another version. */
export class PieceError extends Error {}

const FORMAT = 1;
// Bytes of a name in a list of names; a name has two digits for each.
const NAME = 12;

async function inflated(bytes) {
  const { readable, writable } = new DecompressionStream("deflate");
  const writer = writable.getWriter();
  const [content] = await Promise.all([new Response(readable).arrayBuffer(), writer.write(bytes), writer.close()]);
  return new Uint8Array(content);
}

/** Fetch pieces, each once, and check them. A piece that failed is fetched again when it is next asked for. */
export class Pieces {
  /**
   * @param {string} address of the folder of the manifest
   * @param {(address: string, options?: RequestInit) => Promise<Response>} [get] as `fetch` does
   */
  constructor(address, get = (url, options) => fetch(url, options)) {
    this.address = address.endsWith("/") ? address : `${address}/`;
    this.get = get;
    /** @type {Map<string, Promise<Uint8Array>>} */
    this.known = new Map();
  }

  async #bytes(path, options) {
    let answer;
    try {
      answer = await this.get(this.address + path, options);
    } catch (error) {
      throw new PieceError(`${path} cannot be fetched`, { cause: error });
    }
    if (!answer.ok) throw new PieceError(`${path} cannot be fetched (${answer.status})`);
    return new Uint8Array(await answer.arrayBuffer());
  }

  /** Fetch the manifest, asking the host whether it is still the newest. */
  async manifest() {
    let found;
    try {
      found = JSON.parse(new TextDecoder().decode(await this.#bytes("manifest.json", { cache: "no-cache" })));
    } catch (error) {
      if (error instanceof PieceError) throw error;
      throw new PieceError("manifest.json is damaged", { cause: error });
    }
    if (found?.format !== FORMAT) throw new PieceError("manifest.json is of another version of ctx-embed");
    return found;
  }

  /**
   * Return the content of the piece of a name.
   * @param {string} name
   */
  piece(name) {
    let found = this.known.get(name);
    if (!found) {
      found = this.#piece(name);
      this.known.set(name, found);
      found.catch(() => this.known.delete(name));
    }
    return found;
  }

  async #piece(name) {
    const path = `pieces/${name.slice(0, 2)}/${name.slice(2)}.bin`;
    // A cache may hold a damaged piece; the second time, the host itself is asked.
    for (const cache of /** @type {RequestCache[]} */ (["default", "reload"])) {
      const bytes = await this.#bytes(path, { cache });
      if (sha256(bytes).slice(0, 2 * NAME) === name) return inflated(bytes);
    }
    throw new PieceError(`${path} is damaged`);
  }
}

/**
 * Return the names in a list of names.
 * @param {Uint8Array} bytes
 */
export function namesIn(bytes) {
  const digits = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return digits.match(new RegExp(`.{${2 * NAME}}`, "g")) ?? [];
}

/** Read numbers from the bytes of a piece, one after the other. */
export class Reader {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  /** Return the next number: seven bits a byte, the lowest first; the last byte is below 128. */
  number() {
    let value = 0;
    for (let times = 1; ; times *= 128) {
      const byte = this.bytes[this.at++];
      value += (byte & 127) * times;
      if (!(byte >= 128)) return value;
    }
  }

  /** Return the next n bytes as an array of a type, e.g. Float32Array: a copy, since they may lie anywhere. */
  array(type, n) {
    const size = n * type.BYTES_PER_ELEMENT;
    const found = new type(this.bytes.slice(this.at, this.at + size).buffer);
    this.at += size;
    return found;
  }

  /** Return the next n bytes as text. */
  text(n) {
    return new TextDecoder().decode(this.array(Uint8Array, n));
  }
}
