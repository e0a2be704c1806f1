// The page: reads the state from the address, asks the server, and shows what it answers.

import { ApiError, hasKey, ofIndex, request, setKey, whenBusy } from "./api.js";
import { announce, button, byId, counted, el, tell } from "./dom.js";
import { explained } from "./explain.js";
import { topicsView } from "./explore.js";
import { asField, chosenCount, filesOf, showFilters } from "./facets.js";
import { hitItems } from "./hits.js";
import { addressOf, FIRST_HITS, stateOf, unfiltered } from "./state.js";
import { MARKS, units } from "./text.js";
import { fileConditions, sourceIs, whereOf } from "./where.js";

const PAUSE = 120;
const MOST_HITS = 200;
const SLOW = 250;
// The server lists this many values of each field; more sources are asked for apart.
const [VALUES, MOST_SOURCES] = [50, 20_000];
// Around a passage: so many characters of its document, or documents of its file; those within so many lines.
const [AROUND, BESIDE, WITHIN] = [900, 2, 30];
// Documents of a file that are listed to find what stands around one.
const MOST_LISTED = 200_000;
// Topics of larger indexes take too long to be computed unasked.
const [SUGGESTED_FROM, SUGGESTED_TO, SUGGESTIONS] = [20, 20_000, 6];

let state = stateOf(location.search);
let indexes = [];
let fields = [];
let files = null;
let fieldsOf = {};
let server = { keys: false };
let running = null;
let asking = false;
let started = false;
let typing;
const suggestions = {};

const results = byId("results");
const query = byId("query");
const described = () => indexes.find(({ name }) => name === state.index);

// The state and the address -----------------------------------------------------------------------------------------

function go(changes, { replace = false } = {}) {
  state = { ...state, count: FIRST_HITS, ...changes };
  const address = new URL(addressOf(state, indexes.length > 1), location).href;
  history[replace || address === location.href ? "replaceState" : "pushState"](null, "", address);
  return show();
}

function show() {
  clearTimeout(typing);
  if (document.activeElement !== query || query.value.trim() !== state.query) query.value = state.query;
  document.querySelector(`input[name=mode][value=${state.mode}]`).checked = true;
  for (const link of byId("views").children) {
    link.href = addressOf({ ...stateOf(""), index: state.index, view: link.dataset.view }, indexes.length > 1);
    if (link.dataset.view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const searching = state.view === "search";
  byId("search").hidden = !searching;
  byId("layout").classList.toggle("wide", !searching);
  byId("filters").hidden = !searching;
  byId("filters-toggle").hidden = !searching;
  document.title = [state.query || (state.view === "search" ? "Search" : "Topics"), state.index].filter(Boolean).join(" · ");
  return run();
}

/** Run what the state asks for; an earlier run that is not finished is dropped. Until the indexes are known, start() will. */
async function run() {
  if (!indexes.length) return;
  running?.abort();
  const mine = new AbortController();
  running = mine;
  asking = false;
  let waiting;
  const slow = setTimeout(() => {
    results.classList.add("busy");
    results.setAttribute("aria-busy", "true");
  }, SLOW);
  try {
    if (state.view === "search") {
      const known = readFields(state.index);
      // Only chosen filters need to know the fields' types.
      if (chosenCount(state)) await known;
      if (running !== mine) return;
      drawFilters();
      await searchView(mine);
    } else {
      waiting = setTimeout(showProgress, SLOW);
      const { nodes, summary } = await topicsView(state.index, { ...actions, again: run }, mine.signal);
      if (running === mine) {
        results.replaceChildren(...nodes);
        announce(summary);
      }
    }
  } catch (error) {
    if (running === mine && error.name !== "AbortError") failed(error);
  } finally {
    clearTimeout(slow);
    clearTimeout(waiting);
    if (running === mine) {
      running = null;
      results.classList.remove("busy");
      results.removeAttribute("aria-busy");
      // What had the focus may be gone.
      if (started && document.activeElement === document.body) results.focus({ preventScroll: true });
      started = true;
    }
  }
}

/** Say what the server is doing while topics are computed. */
function showProgress() {
  const documents = described()?.documents;
  results.replaceChildren(
    el("p.lead", { role: "status" }, `Grouping ${documents ? counted(documents, "document") : "the documents"} … This takes a moment, once after each change of the index.`),
  );
}

/** Have the fields of an index; without them, the panel has no filters but search works. */
function readFields(index) {
  if (fieldsOf.index !== index) {
    fields = [];
    files = null;
    const read = { index };
    const sourcesOf = async ({ fields: found }) => {
      const values = found.find(({ name }) => name === "source")?.values ?? [];
      const listed = values.length < VALUES ? values : (await ofIndex(index, "facets", { field: "source", limit: MOST_SOURCES })).values;
      return [found.map(asField), filesOf(listed)];
    };
    read.done = ofIndex(index, "fields").then(sourcesOf).then(
      (found) => {
        if (fieldsOf !== read) return;
        [fields, files] = found;
        drawFilters();
      },
      () => {
        if (fieldsOf === read) fieldsOf = {};
      },
    );
    fieldsOf = read;
  }
  return fieldsOf.done;
}

function drawFilters() {
  if (state.view === "search" && !asking) showFilters(state, fields, files, (changes) => go(changes));
}

function failed(error) {
  if (!(error instanceof ApiError)) throw error;
  if (error.status === 401) {
    askForKey(hasKey() ? "This key was not accepted." : "");
    return;
  }
  results.replaceChildren(
    el(
      "div.notice.error",
      { role: "alert" },
      el("h2", {}, "That did not work"),
      el("p", {}, error.message),
      error.status === 400 && chosenCount(state)
        ? button("Clear the filters", () => go(unfiltered()), { class: "primary" })
        : button("Try again", () => (indexes.length ? run() : start()), { class: "primary" }),
    ),
  );
}

// Searching ---------------------------------------------------------------------------------------------------------

async function searchView(mine) {
  const where = whereOf(state.filters, fields, state.where, fileConditions(state, files?.sources ?? []));
  if (!state.query && state.like === undefined) {
    await welcome(where, mine);
    return;
  }
  const liked = state.like === undefined || state.query ? null : await likedDocument(mine.signal);
  if (running !== mine) return;
  if (liked === undefined) {
    results.replaceChildren(el("div.notice", {}, el("h2", {}, "No such document"), el("p", {}, `The index has no document with the id ${state.like}.`)));
    announce("No such document");
    return;
  }
  const body = liked ? { like: liked.id } : { query: state.query, mode: state.mode, snippets: MARKS, highlight: true };
  body.k = state.count;
  if (where !== null) body.where = where;
  if (state.relevance && !liked) body.min_relevance = Number(state.relevance);
  const begun = performance.now();
  const answer = await ofIndex(state.index, "search", body, mine.signal);
  if (running !== mine) return;
  showHits(answer, liked ? liked.text : state.query, liked, performance.now() - begun);
}

async function likedDocument(signal) {
  const { documents } = await ofIndex(state.index, "get", { ids: [state.like] }, signal);
  return documents[0] ?? undefined;
}

async function welcome(where, mine) {
  const documents = described()?.documents ?? 0;
  let line = `${counted(documents, "document")}. Write a question, a phrase or a few words; results appear as you type.`;
  if (documents === 0) line = "This index has no documents yet.";
  else if (where !== null) {
    const { count } = await ofIndex(state.index, "count", { where }, mine.signal);
    if (running !== mine) return;
    line = `${counted(count, "document")} of ${documents.toLocaleString("en")} ${count === 1 ? "meets" : "meet"} the filters. Write something to rank them.`;
  }
  results.replaceChildren(
    el(
      "div.welcome",
      {},
      el("h1", {}, `Search ${state.index}`),
      el("p", {}, line),
      documents > 0 && el("p", {}, "Or look at its ", viewLink("topics", "topics"), "."),
      el("div", { id: "suggestions" }),
    ),
  );
  announce(where === null ? "" : line);
  if (documents >= SUGGESTED_FROM && documents <= SUGGESTED_TO) await suggest(mine);
}

/** Show a text of each of the largest topics to begin with; without them, nothing is missing. */
async function suggest(mine) {
  const { name, generation } = described();
  const key = `${name}/${generation}`;
  try {
    suggestions[key] ??= (await ofIndex(name, "topics", {}, mine.signal)).topics;
  } catch (error) {
    if (error instanceof ApiError) return;
    throw error;
  }
  const texts = suggestions[key].slice(0, SUGGESTIONS).map(({ examples: [[id, text]] }) => ({ id, text: text.trim() }));
  if (running !== mine) return;
  byId("suggestions")?.replaceChildren(
    el("h2", {}, "What is in it: choose a text to see others like it"),
    el("ul", {}, texts.filter(({ text }) => text).map((hit) => el("li", {}, button(el("span", { dir: "auto" }, hit.text.slice(0, 300)), () => actions.like(hit), { class: "quiet" })))),
  );
}

const viewLink = (view, text) =>
  el("a", { href: addressOf({ ...stateOf(""), index: state.index, view }, indexes.length > 1), "data-view": view }, text);

function showHits({ hits, answered, warnings = [] }, asked, liked, milliseconds) {
  const before = [...results.querySelectorAll(".hit")];
  // The focus stays at its place in the list; from "Show more" it goes to the first hit that is new.
  const place = document.activeElement?.matches(".more") ? before.length : before.indexOf(document.activeElement?.closest(".hit"));
  const documents = described()?.documents;
  const filtered = chosenCount(state) > 0 ? " that meet the filters" : "";
  const unanswered = answered === false && hits.length > 0;
  const matches = hits.length < state.count ? counted(hits.length, "match") : `The ${hits.length} best matches`;
  const found = unanswered ? `Nothing here answers this. The nearest ${counted(hits.length, "passage")}` : matches;
  const searched = documents ? ` Searched ${counted(documents, "document")} in ${Math.max(Math.round(milliseconds), 1)} ms.` : "";
  // A phrase that no passage has is in quotation marks.
  const corrected = Object.entries(hits[0]?.corrected ?? {}).map(([typed, word]) => `“${word}” instead of ${typed.replace(/^[^"]+$/, "“$&”")}`).join(", ");
  const notes = [...(corrected ? [`Searched for ${corrected}: no document has it.`] : []), ...warnings];
  const summary = hits.length ? `${found}${filtered}.${searched}` : "No results";
  const list = el("ol.hits", {}, hitItems(hits, { ...actions, unanswered, explain: (...parts) => explain(asked, liked, ...parts) }));
  results.replaceChildren(
    ...(liked ? [likeBanner(liked)] : []),
    el("p.summary", {}, summary),
    ...(notes.length > 0 ? [el("p.hint", { role: "note" }, notes.join(" "))] : []),
    hits.length ? list : nothing(warnings),
    ...(hits.length >= state.count && state.count < MOST_HITS
      ? [button("Show more", () => { state.count = Math.min(state.count + FIRST_HITS, MOST_HITS); run(); }, { class: "quiet more" })]
      : []),
  );
  if (place >= 0) results.querySelectorAll(".hit")[place]?.focus({ preventScroll: true });
  announce(hits.length ? `${found}${filtered}` : "No results");
}

function likeBanner(liked) {
  const text = liked.text.trim();
  return el(
    "div.liked",
    {},
    el("p", { dir: "auto" }, el("b", {}, "Like document ", String(liked.id), ": "), text.length > 180 ? `${text.slice(0, 180)}…` : text),
    button("Back to searching", () => go({ like: undefined }).then(() => query.focus()), { class: "link" }),
  );
}

function nothing(warnings) {
  const reasons = [];
  if (chosenCount(state)) reasons.push("Fewer filters or a lower relevance may help.");
  if (state.mode === "words") reasons.push("No document has a word of the query: search by meaning finds other words too.");
  return el(
    "div.notice",
    {},
    el("h2", {}, "Nothing found"),
    el("p", {}, reasons.join(" ") || (warnings.length ? "Try words of another language or of another kind." : "The index has no documents yet.")),
    chosenCount(state) > 0 && button("Clear the filters", () => go(unfiltered()), { class: "quiet" }),
    state.mode === "words" && button("Search by meaning", () => go({ mode: "dense" }), { class: "quiet" }),
  );
}

async function explain(asked, liked, hit, place, toggle) {
  const open = toggle.getAttribute("aria-expanded") !== "true";
  toggle.setAttribute("aria-expanded", String(open));
  place.hidden = !open;
  if (!open || place.childNodes.length) return;
  place.replaceChildren(el("p.hint", {}, "One moment …"));
  try {
    const answer = await ofIndex(state.index, "explain", { query: asked, text: hit.text });
    place.replaceChildren(...explained(answer, liked ? `Document ${liked.id}` : "Query"));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    place.replaceChildren(el("p.hint", { role: "alert" }, `No explanation: ${error.message}`));
  }
}

/** Return what a document has before and after a passage, each a list of at most one text, cut at line ends or words. */
function aroundIn(text, hit) {
  const [start, stop] = units(text, hit.start, hit.stop);
  const first = text.slice(Math.max(start - AROUND, 0), start);
  const last = text.slice(stop, stop + AROUND);
  const before = start > AROUND ? first.replace(/^(?:[^\n]*\n|\S*\s)/, "… ") : first;
  const after = stop + AROUND < text.length ? last.replace(/(?:\n[^\n]*|\s\S*)$/, " …") : last;
  return [before, after].map((each) => (each.trim() ? [each] : []));
}

/** Return the texts of the documents before and after one in its file, such as rows of a table or paragraphs. */
async function besideIn({ id, metadata: { source, line } }) {
  const near = Number.isInteger(line) ? ` and line >= ${line - WITHIN} and line <= ${line + WITHIN}` : "";
  // Rows of many lines have none so near.
  for (const where of near ? [sourceIs(source) + near, sourceIs(source)] : [sourceIs(source)]) {
    let kept = [];
    for (let offset = 0, length = 1; length && offset < MOST_LISTED; offset += length) {
      const { documents } = await ofIndex(state.index, "documents", { where, offset, limit: 1000 });
      length = documents.length;
      kept.push(...documents);
      if (near) kept.sort((one, other) => one.metadata.line - other.metadata.line);
      const place = kept.findIndex((each) => each.id === id);
      const texts = (first, stop) => kept.slice(Math.max(first, 0), stop).map(({ text }) => text);
      if (place >= 0 && (place + BESIDE < kept.length || (!length && kept.length > 1)))
        return [texts(place - BESIDE, place), texts(place + 1, place + 1 + BESIDE)];
      if (place < 0) kept = kept.slice(-BESIDE);
    }
  }
  return [[], []];
}

const actions = {
  like: (hit) => {
    // Another list: reading starts at its head.
    document.activeElement?.blur();
    return go({ view: "search", like: hit.id, query: "" }).then(() => scrollTo({ top: 0 }));
  },
  search: (text) => go({ view: "search", query: text, like: undefined }),
  // A document that is a whole file has its name as its id.
  hasSiblings: ({ id, metadata: { source } }) => typeof source === "string" && id !== source,
  fileOf: (source) => (described()?.files ? `v1/indexes/${encodeURIComponent(state.index)}/file?source=${encodeURIComponent(source)}` : null),
  around: async (hit) => (hit.whole ? besideIn(hit) : aroundIn(await actions.document(hit), hit)),
  document: async (hit) => (await ofIndex(state.index, "get", { ids: [hit.id] })).documents[0]?.text ?? hit.text,
};

// Starting ----------------------------------------------------------------------------------------------------------

function askForKey(problem) {
  asking = true;
  byId("filters").hidden = true;
  const input = el("input", { type: "password", id: "api-key", autocomplete: "off", required: true, spellcheck: "false" });
  results.replaceChildren(
    el(
      "form.notice",
      {
        onsubmit: (event) => {
          event.preventDefault();
          setKey(input.value.trim());
          start();
        },
      },
      el("h2", {}, "This server asks for a key"),
      problem && el("p.problem", { role: "alert" }, problem),
      el("label.stacked", { for: "api-key" }, "API key"),
      input,
      el("p.hint", {}, "It is kept until you close this tab."),
      el("button", { type: "submit", class: "primary" }, "Continue"),
      indexes.length > 0 && button("Cancel", run, { class: "quiet" }),
    ),
  );
  input.focus();
}

function showIndexes() {
  const several = indexes.length > 1;
  byId("index-choice").hidden = !several;
  byId("index-name").hidden = several;
  byId("index-name").textContent = several ? "" : (state.index ?? "");
  byId("index").replaceChildren(...indexes.map(({ name }) => el("option", { value: name, selected: name === state.index }, name)));
}

async function start() {
  try {
    server = await request("server");
    byId("key").hidden = !server.keys;
    if (server.keys && !(await request("access")).read) throw new ApiError(401, "A key is needed.");
    indexes = (await request("indexes")).indexes;
  } catch (error) {
    failed(error);
    return;
  }
  if (!indexes.length) {
    results.replaceChildren(el("div.notice", {}, el("h2", {}, "No index"), el("p", {}, "The server was started without an index; name one: ctx-embed serve my.index")));
    return;
  }
  if (!described()) state.index = indexes[0].name;
  showIndexes();
  // What was typed meanwhile counts.
  const typed = query.value.trim();
  if (typed && typed !== state.query) await go({ query: typed, like: undefined }, { replace: true });
  else await show();
}

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  go({ query: query.value.trim(), like: query.value.trim() ? undefined : state.like });
});
query.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    const text = query.value.trim();
    if (indexes.length && text !== state.query) go({ query: text, like: undefined }, { replace: state.query !== "" });
  }, PAUSE);
});
for (const mode of document.querySelectorAll("input[name=mode]")) mode.addEventListener("change", () => go({ mode: mode.value }));
byId("index").addEventListener("change", (event) => {
  go({ index: event.target.value, ...unfiltered(), relevance: state.relevance, like: undefined });
});
byId("filters-toggle").addEventListener("click", (event) => {
  const open = byId("filters").classList.toggle("open");
  event.currentTarget.setAttribute("aria-expanded", String(open));
});
byId("key").addEventListener("click", () => askForKey(""));
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-view]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go({ view: link.dataset.view });
});
addEventListener("popstate", () => {
  const index = state.index;
  state = stateOf(location.search);
  if (!described()) state.index = indexes[0]?.name ?? index;
  showIndexes();
  show();
});

const root = document.documentElement;
const showTheme = () => byId("theme").setAttribute("aria-pressed", String(root.dataset.theme === "dark"));
root.addEventListener("themechange", showTheme);
byId("theme").addEventListener("click", () => root.dispatchEvent(new Event("themetoggle")));
showTheme();
whenBusy((seconds) => tell(`The server is busy. Trying again in ${counted(seconds, "second")}.`));

// The keyboard ------------------------------------------------------------------------------------------------------

function move(step) {
  const hits = [...results.querySelectorAll(".hit")];
  const place = hits.indexOf(document.activeElement?.closest?.(".hit"));
  if (place + step < 0) query.focus();
  else hits[place + step]?.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const hit = document.activeElement?.closest?.(".hit");
  const onHit = hit !== null && hit === document.activeElement;
  const inField = document.activeElement?.matches?.("input:not([type=radio], [type=checkbox], [type=range]), select");
  const click = (kind) => hit.querySelector(kind)?.click();
  const keys = {
    "/": () => !inField && state.view === "search" && query.select() === undefined && query.focus() === undefined,
    ArrowDown: () => (hit || [query, results].includes(document.activeElement)) && move(1) === undefined,
    ArrowUp: () => hit && move(-1) === undefined,
    Enter: () => onHit && click(hit.querySelector(".open") ? ".open" : ".explain") === undefined,
    m: () => onHit && click(".like") === undefined,
    e: () => onHit && click(".explain") === undefined,
    n: () => onHit && hit.querySelector(".near") && click(".near") === undefined,
    Escape: () => {
      if (hit) query.focus();
      else if (state.like !== undefined && !state.query) go({ like: undefined });
      else if (document.activeElement === query && query.value) {
        query.value = "";
        go({ query: "" });
      } else if ([document.body, results].includes(document.activeElement)) query.focus();
      else return false;
      return true;
    },
  };
  const run = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (run?.()) event.preventDefault();
});

start();
