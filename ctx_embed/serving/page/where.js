// Turns the chosen filters into the filter language of the index: year >= 2020 and lang in ("en").

const PLAIN = /^[\p{L}_][\p{L}\p{N}_-]*$/u;
const KEYWORDS = new Set(["and", "or", "not", "in", "is", "null", "contains", "true", "false"]);
// Names that the filter language cannot write.
const UNWRITABLE = /["\\`\p{C}]/u;

/** Return whether a field can stand in a filter. */
export const isWritable = (name) => name !== "" && !UNWRITABLE.test(name);

const fieldName = (name) => (PLAIN.test(name) && !KEYWORDS.has(name.toLowerCase()) ? name : `\`${name}\``);
const literal = (value) => (typeof value === "string" ? `"${value.replace(/["\\]/g, "\\$&")}"` : String(value));

/** Return the two ends of a range, "" where it is open. */
export function endsOf(range) {
  const place = range.indexOf("..");
  return place < 0 ? [range, range] : [range.slice(0, place), range.slice(place + 2)];
}

const isDate = (text) => /^\d{4}-\d\d-\d\d$/.test(text) && !Number.isNaN(Date.parse(text));
const dayAfter = (date) => new Date(Date.parse(date) + 86_400_000).toISOString().slice(0, 10);

function conditions(field, values) {
  const name = fieldName(field.name);
  if (field.type === "number") {
    const [from, to] = endsOf(values[0]).map((end) => (end.trim() === "" ? NaN : Number(end)));
    return [Number.isFinite(from) && `${name} >= ${from}`, Number.isFinite(to) && `${name} <= ${to}`];
  }
  if (field.type === "date") {
    const [from, to] = endsOf(values[0]).map((end) => (isDate(end) ? end : ""));
    // A date and time is greater as text than its date: compare with the day after.
    return [from && `${name} >= ${literal(from)}`, to && `${name} < ${literal(dayAfter(to))}`];
  }
  if (field.type === "boolean") {
    const known = values.filter((value) => value === "true" || value === "false");
    return [known.length > 0 && `${name} in (${known.join(", ")})`];
  }
  const texts = values.filter((value) => !value.includes("\0"));
  if (field.type === "list") {
    return [texts.length > 0 && `(${texts.map((value) => `${name} contains ${literal(value)}`).join(" or ")})`];
  }
  return [texts.length > 0 && `${name} in (${texts.map(literal).join(", ")})`];
}

const SOURCE = fieldName("source");
/** Return the condition that a document comes from a file. */
export const sourceIs = (source) => `${SOURCE} = ${literal(source)}`;

/** Return the conditions of chosen folders, types and part of a name of files; ``sources`` are all known ones. */
export function fileConditions({ folder, type, source }, sources) {
  const either = (parts) => parts.length > 0 && `(${parts.join(" or ")})`;
  // All that begins with a folder's name sorts before its name with the last character after it.
  const inFolder = (name) => `${SOURCE} >= ${literal(name)} and ${SOURCE} < ${literal(`${name}\u{10ffff}`)}`;
  const among = (names, not = "") => `${SOURCE} ${not}in (${names.map(literal).join(", ")})`;
  // Those of the type by name, or, if that is shorter, what contains it, with what differs by name.
  const ofType = (kind) => {
    const [wanted, others] = [true, false].map((is) => sources.filter((each) => (typeOf(each) === kind) === is));
    const [missed, extra] = [wanted.filter((each) => !each.includes(kind)), others.filter((each) => each.includes(kind))];
    const all = [`${SOURCE} contains ${literal(kind)}`, extra.length && among(extra, "not ")].filter(Boolean).join(" and ");
    const both = missed.length ? `(${all} or ${among(missed)})` : all;
    return wanted.length && (!kind || among(wanted).length < both.length) ? among(wanted) : both;
  };
  return [
    either(folder.map(inFolder)),
    either(type.map(ofType)),
    source && `${SOURCE} contains ${literal(source)}`,
  ];
}

/** Return the suffix of a file's name, in lower case with its dot; "" if it has none. */
export const typeOf = (source) => source.match(/[^/]\.([^./\s]{1,10})$/)?.[0].slice(1).toLowerCase() ?? "";

/**
 * Return the filter of chosen values, or null if nothing is chosen.
 * @param {object} filters {field: [text, ...]}; fields that the index does not have are ignored
 * @param {Array} fields the index's: name, type (number, date, boolean, list or string)
 * @param {string} [written] a further filter, written by hand
 * @param {Array} [further] further conditions
 */
export function whereOf(filters, fields, written = "", further = []) {
  const parts = fields
    .filter((field) => Object.hasOwn(filters, field.name) && isWritable(field.name))
    .flatMap((field) => conditions(field, filters[field.name]))
    .concat(further)
    .filter(Boolean);
  if (written.trim()) parts.push(parts.length ? `(${written.trim()})` : written.trim());
  return parts.length ? parts.join(" and ") : null;
}
