// How a text is read, as ctx_embed/text reads it: with Python's Unicode, in tables, and never with the browser's.

/** Whether a text needs the tables: other texts are read the same without them. */
export const needsTables = (text) => /[^\0-\x7f]/.test(text);

// Hangul syllables are composed by a formula.
const [SYLLABLE, LEADING, VOWEL, TRAILING] = [0xac00, 0x1100, 0x1161, 0x11a7];
const [LEADINGS, VOWELS, TRAILINGS] = [19, 21, 28];
const REMOVED = /\0/g;

const mapOf = ([from, to]) => new Map(Array.from(from, (character, place) => [character, to[place]]));

/** Python's Unicode, and what the tokenizer and SQLite do with each character; ctx_embed/site/tables.py makes them. */
export class Tables {
  /** @param {any} found the tables as JSON values */
  constructor(found) {
    const of = (characters) => new RegExp(`[${characters}]`, "u");
    this.read = mapOf(found.read);
    this.decomposed = mapOf(found.decomposed);
    this.composed = new Map(Array.from(found.composed, (character) => [this.decomposed.get(character), character]));
    this.combining = found.combining.map(([number, characters]) => ({ number, is: of(characters) }));
    this.marks = of(found.combining.map(([, characters]) => characters).join(""));
    this.context = new RegExp(found.context, "gu");
    this.word = new RegExp(found.word, "gu");
    this.letter = of(`${found.letters}A-Za-z`);
    this.invisible = of(found.invisible);
    this.strokes = mapOf(found.strokes);
    this.folded = mapOf(found.folded);
    this.tokenized = mapOf(found.tokenized);
    this.apart = of(found.apart);
    this.removed = of(found.removed);
  }

  /** Return a text with the characters that mean the same written the same way, not yet composed. */
  readings(text) {
    const read = Array.from(text.toWellFormed?.() ?? wellFormed(text), (character) => {
      if (character > "\x7f") return this.read.get(character) ?? character;
      return (character < " " && !"\t\n\r".includes(character)) || character === "\x7f" ? " " : character;
    }).join("");
    const inContext = (found, ...groups) => {
      const { kept, space, inside } = groups.at(-1);
      if (kept) return found;
      if (space) return `${found[0]} `;
      return found.replace(/./gsu, (character) => (character === "\xad" && !inside ? "-" : "\0"));
    };
    return read.replace(this.context, inContext).replace(REMOVED, "");
  }

  /** Return a text as full text reads it: `normalised` in ctx_embed/text/normalisation.py. */
  normalised(text) {
    return this.#composed(this.readings(text));
  }

  #order(character) {
    return this.marks.test(character) ? this.combining.find(({ is }) => is.test(character)).number : 0;
  }

  /** Return the full canonical decomposition of a character. */
  #parts(character) {
    const syllable = character.codePointAt(0) - SYLLABLE;
    if (syllable >= 0 && syllable < LEADINGS * VOWELS * TRAILINGS) {
      const last = syllable % TRAILINGS;
      const codes = [LEADING + Math.floor(syllable / (VOWELS * TRAILINGS)), VOWEL + (Math.floor(syllable / TRAILINGS) % VOWELS)];
      return String.fromCodePoint(...codes, ...(last ? [TRAILING + last] : []));
    }
    const parts = this.decomposed.get(character);
    return parts === undefined ? character : Array.from(parts, (part) => this.#parts(part)).join("");
  }

  #pair(first, second) {
    const [one, two] = [first.codePointAt(0), second.codePointAt(0)];
    if (one >= LEADING && one < LEADING + LEADINGS && two >= VOWEL && two < VOWEL + VOWELS) {
      return String.fromCodePoint(SYLLABLE + ((one - LEADING) * VOWELS + two - VOWEL) * TRAILINGS);
    }
    const syllable = one - SYLLABLE;
    if (syllable >= 0 && syllable < LEADINGS * VOWELS * TRAILINGS && syllable % TRAILINGS === 0 && two > TRAILING && two < TRAILING + TRAILINGS) {
      return String.fromCodePoint(one + two - TRAILING);
    }
    return this.composed.get(first + second);
  }

  /** Return Unicode's form NFC of a text (UAX 15). */
  #composed(text) {
    const parts = Array.from(text, (character) => this.#parts(character)).join("");
    /** @type {{character: string, order: number}[]} */
    const ordered = [];
    let run = [];
    const close = () => {
      // There may be more marks than a call takes arguments.
      for (const mark of run.sort((one, two) => one.order - two.order)) ordered.push(mark);
      run = [];
    };
    for (const character of parts) {
      const order = this.#order(character);
      if (order) run.push({ character, order });
      else {
        close();
        ordered.push({ character, order });
      }
    }
    close();
    const written = [];
    let starter = -1;
    let before = 0;
    for (const { character, order } of ordered) {
      const isNext = starter === written.length - 1;
      const pair = starter >= 0 && (isNext || before < order) && (order || isNext) ? this.#pair(written[starter], character) : undefined;
      if (pair !== undefined) written[starter] = pair;
      else {
        if (!order) starter = written.length;
        before = order;
        written.push(character);
      }
    }
    return written.join("");
  }

  /** Return a word as SQLite's tokenizer writes it, in lower case and without accents; spaces separate its tokens. */
  fold(word) {
    return Array.from(word, (character) => (character > "\x7f" ? (this.folded.get(character) ?? character) : character.toLowerCase())).join("");
  }

  /** Return a read text as the model's tokenizer writes it, with spaces around what is a token of its own. */
  forTokenizer(read) {
    return Array.from(read, (character) => {
      if (character <= "\x7f") return character;
      if (this.removed.test(character)) return "";
      return this.apart.test(character) ? ` ${character} ` : (this.tokenized.get(character) ?? character);
    }).join("");
  }

  /** Return the words of a text alone, for what a model cannot read is judged by them. */
  wordsAlone(text) {
    return Array.from(text, (character) => (this.letter.test(character) ? character : this.invisible.test(character) ? "" : " ")).join("");
  }
}

const wellFormed = (text) => text.replace(/\p{Surrogate}/gu, "\ufffd");

/** The ids of texts, as :class:`TextTokenizer` in ctx_embed/text/tokenizer.py has them, before phrases are merged. */
export class Tokenizer {
  /**
   * @param {import("./kernel.js").Words} words
   * @param {string[]} entries by id
   * @param {{added: Record<string, number>, cuts: string, longest: number, unknown: number, continued: string}} settings
   */
  constructor(words, entries, settings) {
    Object.assign(this, { words, entries, settings });
    this.added = Object.keys(settings.added);
    const escaped = this.added.map((token) => token.replace(/[^\w]/g, "\\$&"));
    this.splitting = escaped.length ? new RegExp(`(${escaped.join("|")})`) : null;
    // ASCII characters that are tokens of their own but begin added tokens, so that C does not cut at them.
    this.uncut = new RegExp(`([${[..."!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"].filter((sign) => !settings.cuts.includes(sign)).map((sign) => `\\${sign}`).join("")}])`);
    const signs = [...settings.cuts].map((sign) => `\\${sign}`).join("");
    this.before = signs ? new RegExp(`([${signs}])(?=[^\\0-\\x7f])`, "g") : /$^/g;
    /** @type {Map<string, number> | null} */
    this.named = null;
  }

  /** Return the ids of one word that C does not know. */
  #others(word) {
    // Private characters stand for added tokens; the tokenizer removes all others.
    const place = word.codePointAt(0) - 0xe000;
    if (place >= 0 && place < this.added.length) return [this.settings.added[this.added[place]]];
    this.named ??= new Map(this.entries.map((entry, id) => [entry, id]));
    const lower = word.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());
    return lower.split(this.uncut).filter(Boolean).flatMap((piece) => this.#pieces(Array.from(piece)));
  }

  /** WordPiece: the longest entries, one after the other; a word that is not made of entries is unknown. */
  #pieces(letters) {
    const { longest, unknown, continued } = this.settings;
    if (letters.length > longest) return [unknown];
    const found = [];
    for (let begin = 0; begin < letters.length; ) {
      let end = letters.length;
      let id;
      for (; end > begin; end -= 1) {
        id = this.named.get((begin ? continued : "") + letters.slice(begin, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return [unknown];
      found.push(id);
      begin = end;
    }
    return found;
  }

  /**
   * Return the ids of a text.
   * @param {string} text
   * @param {Tables | null} tables needed unless the text is ASCII
   */
  ids(text, tables) {
    const read = tables ? tables.readings(text) : text;
    const parts = this.splitting ? read.split(this.splitting) : [read];
    const written = parts.map((part, place) => {
      if (place % 2) return ` ${String.fromCodePoint(0xe000 + this.added.indexOf(part))} `;
      return tables ? tables.forTokenizer(part).replace(this.before, "$1 ") : part;
    });
    return this.words.ids(written.join(""), (word) => this.#others(word));
  }

  /**
   * Return whether the model can read a text of some ids: `is_read` in ctx_embed/text/tokenizer.py.
   * @param {string} text
   * @param {number[]} ids
   * @param {Tables | null} tables
   */
  isRead(text, ids, tables) {
    const { unknown, continued } = this.settings;
    if (!ids.includes(unknown)) return ids.length > 0;
    const isWord = (id) => id !== unknown && /[\p{L}\p{No}\p{Nl}]/u.test(this.entries[id]) && !this.entries[id].startsWith(continued);
    const balanceOf = (of) => of.reduce((sum, id) => sum + (id === unknown ? -1 : Number(isWord(id))), 0);
    const without = ids.filter((id) => id === unknown).length;
    const said = ids.filter((id) => id !== unknown && /[\p{L}\p{N}]/u.test(this.entries[id])).length;
    let balance = balanceOf(ids);
    if (without > balance) {
      const alone = tables ? tables.wordsAlone(text) : text.replace(/[^A-Za-z]/g, " ");
      balance = balanceOf(this.ids(alone, tables));
    }
    return balance >= 0 && said > 0;
  }
}
