// What the page shows, and its form in the address, so that a link can be shared.

export const MODES = ["hybrid", "dense", "words"];
export const VIEWS = ["search", "topics"];
export const FIRST_HITS = 10;
const FIELD = "f.";

/** Return an object of filters without a prototype: a field may have any name. */
export const filtersOf = (filters) => Object.assign(Object.create(null), filters);

/** Return the part of a state without any filter. */
export const unfiltered = () => ({ filters: filtersOf(), where: "", relevance: "", folder: [], type: [], source: "" });

/**
 * The state: view, index, query, mode, like (a document's id or undefined), filters ({field: [text, ...]}, a range as
 * "from..to"), folder and type (lists) and source (part of a name) of files, where (a filter written by hand), relevance
 * (the lowest one, as text) and count (hits asked for).
 */
export function stateOf(address) {
  const given = new URLSearchParams(address);
  const one = (name, allowed) => (allowed.includes(given.get(name)) ? given.get(name) : allowed[0]);
  const filters = filtersOf();
  for (const [name, value] of given) {
    if (name.startsWith(FIELD)) (filters[name.slice(FIELD.length)] ??= []).push(value);
  }
  let like;
  try {
    like = given.has("like") ? JSON.parse(given.get("like")) : undefined;
  } catch {
    like = given.get("like");
  }
  return {
    view: one("view", VIEWS),
    index: given.get("index"),
    query: given.get("q") ?? "",
    mode: one("mode", MODES),
    like: typeof like === "string" || Number.isInteger(like) ? like : undefined,
    filters,
    where: given.get("where") ?? "",
    relevance: given.get("relevance") ?? "",
    folder: given.getAll("folder"),
    type: given.getAll("type"),
    source: given.get("source") ?? "",
    count: FIRST_HITS,
  };
}

/** Return the address of a state: a relative link. */
export function addressOf(state, several) {
  const made = new URLSearchParams();
  if (several && state.index) made.set("index", state.index);
  if (state.view !== VIEWS[0]) made.set("view", state.view);
  if (state.query) made.set("q", state.query);
  if (state.like !== undefined) made.set("like", JSON.stringify(state.like));
  if (state.mode !== MODES[0]) made.set("mode", state.mode);
  for (const [name, values] of Object.entries(state.filters)) {
    for (const value of values) made.append(FIELD + name, value);
  }
  for (const name of ["folder", "type"]) for (const value of state[name]) made.append(name, value);
  if (state.source) made.set("source", state.source);
  if (state.where) made.set("where", state.where);
  if (state.relevance) made.set("relevance", state.relevance);
  const query = made.toString();
  return query ? `?${query}` : location.pathname;
}
