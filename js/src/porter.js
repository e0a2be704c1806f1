// The stems of words, as SQLite's tokenizer `porter` makes them; a test compares them with SQLite's own.
// Source: Porter, An algorithm for suffix stripping (1980); sqlite.org/fts5.html#porter_tokenizer.

const SECOND = [
  ["ational", "ate"], ["tional", "tion"], ["enci", "ence"], ["anci", "ance"], ["izer", "ize"], ["logi", "log"], ["bli", "ble"],
  ["alli", "al"], ["entli", "ent"], ["eli", "e"], ["ousli", "ous"], ["ization", "ize"], ["ation", "ate"], ["ator", "ate"],
  ["alism", "al"], ["iveness", "ive"], ["fulness", "ful"], ["ousness", "ous"], ["aliti", "al"], ["iviti", "ive"], ["biliti", "ble"],
];
const THIRD = [["icate", "ic"], ["ative", ""], ["alize", "al"], ["iciti", "ic"], ["ical", "ic"], ["ful", ""], ["ness", ""]];
const FOURTH = "al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize".split(" ");

const isVowel = (letter, afterConsonant) => "aeiou".includes(letter) || (afterConsonant && letter === "y");

/** Return which letters are consonants; a y is one unless it follows one. */
function consonants(stem) {
  const found = [];
  for (const letter of stem) found.push(!isVowel(letter, found.at(-1) ?? false));
  return found;
}

/** Return how many runs of vowels are followed by a consonant. */
function measure(stem) {
  const found = consonants(stem);
  return found.filter((is, place) => place && is && !found[place - 1]).length;
}

const hasVowel = (stem) => [...stem].some((letter, place) => isVowel(letter, place > 0));

/** Whether a stem ends with a consonant, a vowel and a consonant, the last not w, x or y. */
function endsShort(stem) {
  const [first, second, third] = consonants(stem).slice(-3);
  return !/[wxy]$/.test(stem) && Boolean(first && !second && third);
}

const ends = (word, suffix) => word.length > suffix.length && word.endsWith(suffix);
const cut = (word, suffix) => word.slice(0, word.length - suffix.length);

function replaced(word, rules) {
  const rule = rules.find(([suffix]) => ends(word, suffix));
  return rule && measure(cut(word, rule[0])) > 0 ? cut(word, rule[0]) + rule[1] : word;
}

function ofBytes(given) {
  let word = given;
  if (word.endsWith("s")) {
    if (word.at(-2) === "e") word = word.slice(0, (word.length > 4 && word.endsWith("sses")) || (word.length > 3 && word.at(-3) === "i") ? -2 : -1);
    else if (word.at(-2) !== "s") word = word.slice(0, -1);
  }
  let shortened = false;
  if (ends(word, "eed")) {
    if (measure(cut(word, "eed")) > 0) word = word.slice(0, -1);
  } else {
    const suffix = ["ed", "ing"].find((each) => ends(word, each));
    shortened = suffix !== undefined && hasVowel(cut(word, suffix));
    if (shortened) word = cut(word, suffix);
  }
  if (shortened) {
    if (["at", "bl", "iz"].some((each) => ends(word, each))) word += "e";
    else if (!/[aeioulsz]$/.test(word) && word.at(-1) === word.at(-2)) word = word.slice(0, -1);
    else if (measure(word) === 1 && endsShort(word)) word += "e";
  }
  if (word.endsWith("y") && hasVowel(word.slice(0, -1))) word = `${word.slice(0, -1)}i`;
  word = replaced(replaced(word, SECOND), THIRD);
  const last = FOURTH.find((suffix) => ends(word, suffix));
  if (last && measure(cut(word, last)) > 1 && (last !== "ion" || /[st]$/.test(cut(word, last)))) word = cut(word, last);
  const stem = word.slice(0, -1);
  if (word.endsWith("e") && (measure(stem) > 1 || (measure(stem) === 1 && !endsShort(stem)))) word = stem;
  return word.endsWith("ll") && measure(word.slice(0, -1)) > 1 ? word.slice(0, -1) : word;
}

/** @type {Map<string, string>} */
const known = new Map();

/**
 * Return the stem of a word in lower case without accents.
 * @param {string} word
 */
export function stem(word) {
  let found = known.get(word);
  if (found === undefined) {
    // SQLite counts bytes, of which those of other letters are consonants.
    const bytes = new TextEncoder().encode(word);
    const short = bytes.length < 3 || bytes.length > 64;
    found = short ? word : new TextDecoder().decode(Uint8Array.from(ofBytes(String.fromCharCode(...bytes)), (byte) => byte.charCodeAt(0)));
    known.set(word, found);
  }
  return found;
}
