// The filter panel, built from the metadata of the index.

import { byId, button, el } from "./dom.js";
import { filtersOf, unfiltered } from "./state.js";
import { endsOf, isWritable, typeOf } from "./where.js";

const VALUES_SHOWN = 6;
const [MOST_FOLDERS, MOST_NAMES] = [500, 5_000];
const TITLES = { false: "no", true: "yes" };

// What is drawn stays when filters change, so that clicks and keys that are under way reach it: these functions bring
// it up to date with a state.
let updates = [];
let drawn = null;
let current = null;

const shown = (name) => name.replaceAll("_", " ");

function checkboxes(field, set, chosenOf = (state) => state.filters[field.name] ?? []) {
  const list = el("div.values");
  const boxes = new Map();
  const add = (value, documents) => {
    const box = el("input", {
      type: "checkbox",
      value,
      onchange: () => set([...boxes].filter(([, { checked }]) => checked).map(([name]) => name)),
    });
    boxes.set(value, box);
    const title = field.type === "boolean" ? (TITLES[value] ?? value) : value || (field.empty ?? "(empty)");
    list.append(
      el("label.option", {}, box, el("span.value", {}, title), el("span.count", {}, documents.toLocaleString("en"))),
    );
  };
  for (const { value, documents } of field.values) add(String(value), documents);
  const rest = boxes.size - VALUES_SHOWN;
  const unfold = () => {
    list.classList.remove("folded");
    more.remove();
  };
  const more = button(`${rest} more`, unfold, { class: "link", "aria-label": `${rest} more values of ${shown(field.name)}` });
  list.classList.toggle("folded", rest > 0);
  updates.push((state) => {
    const chosen = chosenOf(state);
    for (const value of chosen) if (!boxes.has(value)) add(value, 0);
    [...boxes].forEach(([value, box], place) => {
      box.checked = chosen.includes(value);
      if (box.checked && place >= VALUES_SHOWN) unfold();
    });
  });
  return [list, rest > 0 && more];
}

function range(field, set) {
  const dates = field.type === "date";
  const limits = [field.lowest, field.highest].map((end) => (dates ? String(end).slice(0, 10) : String(end)));
  const inputs = ["from", "to"].map((name, place) =>
    el("input", {
      type: dates ? "date" : "number",
      step: dates ? null : "any",
      min: dates ? limits[0] : null,
      max: dates ? limits[1] : null,
      placeholder: dates ? null : limits[place],
      "aria-label": `${shown(field.name)}, ${name}`,
      onchange: () => {
        const ends = inputs.map(({ value }) => value);
        set(ends.some(Boolean) ? [ends.join("..")] : []);
      },
    }),
  );
  updates.push((state) => {
    const ends = endsOf(state.filters[field.name]?.[0] ?? "..");
    inputs.forEach((input, place) => {
      if (input.value !== ends[place]) input.value = ends[place];
    });
  });
  return [
    el("div.range", {}, inputs[0], el("span", { "aria-hidden": "true" }, "–"), inputs[1]),
    dates && el("p.hint", {}, limits[0] === limits[1] ? limits[0] : `${limits[0]} to ${limits[1]}`),
  ];
}

function lowestRelevance(change) {
  const output = el("output", { for: "relevance" });
  const show = (value) => {
    output.textContent = Number(value).toFixed(2);
  };
  const slider = el("input", {
    type: "range",
    id: "relevance",
    min: 0,
    max: 0.95,
    step: 0.05,
    "aria-describedby": "relevance-hint",
    oninput: (event) => show(event.target.value),
    onchange: (event) => change({ relevance: Number(event.target.value) > 0 ? event.target.value : "" }),
  });
  updates.push((state) => {
    slider.value = state.relevance || 0;
    show(slider.value);
  });
  return el(
    "fieldset.facet",
    {},
    el("legend", {}, el("label", { for: "relevance" }, "lowest relevance")),
    el("div.slider", {}, slider, output),
    el("p.hint", { id: "relevance-hint" }, "0.80 hides the results of most questions that no document answers."),
  );
}

function expression(change) {
  const input = el("input", {
    type: "text",
    spellcheck: "false",
    autocapitalize: "none",
    placeholder: "year >= 2020",
    "aria-label": "Filter expression",
    "aria-describedby": "where-hint",
    onchange: () => change({ where: input.value }),
  });
  const details = el(
    "details.facet",
    {},
    el("summary", {}, "expression"),
    input,
    el("p.hint", { id: "where-hint" }, 'Any condition on the metadata, such as year >= 2020 and lang = "en".'),
  );
  updates.push((state) => {
    if (input.value !== state.where) input.value = state.where;
    if (state.where) details.open = true;
  });
  return details;
}

const DATE = /^\d{4}-\d\d-\d\d(T[\d:.]+(Z|[+-]\d\d:?\d\d)?)?$/;

/** Return a field of the server; strings that are dates become a field of dates. */
export function asField(field) {
  const values = field.values ?? [];
  if (field.type !== "string" || !values.length || !values.every(({ value }) => DATE.test(value))) return field;
  const sorted = values.map(({ value }) => value).sort();
  return { ...field, type: "date", lowest: field.lowest ?? sorted[0], highest: field.highest ?? sorted.at(-1) };
}

// A place in a source; nobody looks for all texts on a page 7.
const PLACES = new Set(["page", "line"]);

/**
 * Return the files of an index: its sources, and its folders and types as fields. Null if no source looks like a file.
 * @param {Array} sources {value, documents} of each source
 */
export function filesOf(sources) {
  const named = sources.filter(({ value }) => typeof value === "string");
  if (!named.some(({ value }) => value.includes("/") || typeOf(value))) return null;
  const [folders, types] = [new Map(), new Map()];
  const add = (counts, name, documents) => counts.set(name, (counts.get(name) ?? 0) + documents);
  for (const { value, documents } of named) {
    add(types, typeOf(value), documents);
    for (let end = value.indexOf("/", 1); end > 0; end = value.indexOf("/", end + 1)) {
      // The slashes of an address, after its scheme, end no folder.
      if (!/[:/]/.test(value[end - 1])) add(folders, value.slice(0, end + 1), documents);
    }
  }
  // A folder with nothing but one folder is left out.
  for (const [name, documents] of [...folders]) {
    const above = name.slice(0, name.lastIndexOf("/", name.length - 2) + 1);
    if (folders.get(above) === documents) folders.delete(above);
  }
  const listed = (counts) =>
    [...counts].map(([value, documents]) => ({ value, documents })).sort((one, other) => other.documents - one.documents || (one.value < other.value ? -1 : 1));
  return {
    sources: named.map(({ value }) => value),
    folder: { name: "folder", values: listed(folders).slice(0, MOST_FOLDERS) },
    type: { name: "type", empty: "(no suffix)", values: listed(types) },
  };
}

/** Return whether a field can be filtered in the panel: its values recur, or are numbers or dates. */
export function isFacet(field) {
  if (!isWritable(field.name) || PLACES.has(field.name)) return false;
  if (field.type === "number" || field.type === "date") return field.lowest !== null && field.lowest !== undefined;
  return field.values?.length > 0 && (field.values[0].documents > 1 || field.documents === 1);
}

/** Return how many filters a state has. */
export const chosenCount = (state) =>
  [...Object.values(state.filters), state.folder, state.type].filter((values) => values.length).length +
  [state.source, state.where, state.relevance].filter(Boolean).length;

/**
 * Show the filters of a state in the panel.
 * @param {object} state
 * @param {Array} fields
 * @param {object} files see filesOf
 * @param {function} change called with the parts of the state that change
 */
export function showFilters(state, fields, files, change) {
  current = state;
  if (drawn !== fields) draw(fields, files, change);
  for (const update of updates) update(state);
  const count = chosenCount(state);
  byId("filters").hidden = false;
  byId("filters-toggle").textContent = count ? `Filters (${count})` : "Filters";
}

/** Return the filters of files: folders, types, and a part of the name. */
function ofFiles(files, change) {
  const facets = ["folder", "type"].filter((name) => files[name].values.length > 1);
  const names = files.sources.slice(0, MOST_NAMES).map((value) => el("option", { value }));
  const input = el("input", {
    type: "text",
    list: "sources",
    spellcheck: "false",
    autocapitalize: "none",
    placeholder: "part of a name",
    "aria-label": "Source",
    onchange: () => change({ source: input.value.trim() }),
  });
  updates.push((state) => {
    if (input.value !== state.source) input.value = state.source;
  });
  return [
    ...facets.map((name) => {
      const boxes = checkboxes(files[name], (values) => change({ [name]: values }), (state) => state[name]);
      return el("fieldset.facet", {}, el("legend", {}, name), boxes);
    }),
    el("fieldset.facet.named", {}, el("legend", {}, "source"), input, el("datalist", { id: "sources" }, names)),
  ];
}

function draw(fields, files, change) {
  updates = [];
  drawn = fields;
  const clear = button("Clear all", () => change(unfiltered()), { class: "link" });
  updates.push((state) => {
    clear.hidden = chosenCount(state) === 0;
  });
  const facets = fields.filter((field) => isFacet(field) && !(files && field.name === "source")).map((field) => {
    const set = (values) => {
      const filters = filtersOf(current.filters);
      filters[field.name] = values;
      if (!values.length) delete filters[field.name];
      change({ filters });
    };
    const control = field.type === "number" || field.type === "date" ? range : checkboxes;
    return el("fieldset.facet", {}, el("legend", {}, shown(field.name)), control(field, set));
  });
  byId("filters").replaceChildren(
    el("div.filters-head", {}, el("h2", {}, "Filters"), clear),
    ...(files ? ofFiles(files, change) : []),
    ...facets,
    lowestRelevance(change),
    expression(change),
  );
}
