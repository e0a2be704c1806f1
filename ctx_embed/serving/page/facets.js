// The filter panel, built from the metadata of the index.

import { byId, button, el } from "./dom.js";
import { endsOf, isWritable } from "./where.js";

const VALUES_SHOWN = 6;
const unfolded = new Set();
const TITLES = { false: "no", true: "yes" };

const shown = (name) => name.replaceAll("_", " ");

function checkboxes(field, chosen, change) {
  const values = field.values.map(({ value, documents }) => [String(value), documents]);
  for (const value of chosen) if (!values.some(([known]) => known === value)) values.push([value, 0]);
  const open = unfolded.has(field.name) || chosen.some((value) => values.findIndex(([v]) => v === value) >= VALUES_SHOWN);
  const rows = (open ? values : values.slice(0, VALUES_SHOWN)).map(([value, documents]) =>
    el(
      "label.option",
      {},
      el("input", {
        type: "checkbox",
        value,
        checked: chosen.includes(value),
        onchange: (event) => change(event.target.checked ? [...chosen, value] : chosen.filter((other) => other !== value)),
      }),
      el("span.value", {}, field.type === "boolean" ? (TITLES[value] ?? value) : value || "(empty)"),
      el("span.count", {}, documents.toLocaleString("en")),
    ),
  );
  const rest = values.length - rows.length;
  if (rest > 0) {
    const more = button(`${rest} more`, () => {
      unfolded.add(field.name);
      more.replaceWith(...checkboxes(field, chosen, change).slice(VALUES_SHOWN));
    }, { class: "link", "aria-label": `${rest} more values of ${shown(field.name)}` });
    rows.push(more);
  }
  return rows;
}

function range(field, chosen, change) {
  const ends = chosen.length ? endsOf(chosen[0]) : ["", ""];
  const dates = field.type === "date";
  const limits = [field.lowest, field.highest].map((end) => (dates ? String(end).slice(0, 10) : String(end)));
  const input = (place, name) =>
    el("input", {
      type: dates ? "date" : "number",
      step: dates ? null : "any",
      min: dates ? limits[0] : null,
      max: dates ? limits[1] : null,
      value: ends[place],
      placeholder: dates ? null : limits[place],
      "aria-label": `${shown(field.name)}, ${name}`,
      onchange: (event) => {
        ends[place] = event.target.value;
        change(ends[0] || ends[1] ? [ends.join("..")] : []);
      },
    });
  return [
    el("div.range", {}, input(0, "from"), el("span", { "aria-hidden": "true" }, "–"), input(1, "to")),
    dates && el("p.hint", {}, limits[0] === limits[1] ? limits[0] : `${limits[0]} to ${limits[1]}`),
  ];
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

/** Return whether a field can be filtered in the panel: its values recur, or are numbers or dates. */
export function isFacet(field) {
  if (!isWritable(field.name) || PLACES.has(field.name)) return false;
  if (field.type === "number" || field.type === "date") return field.lowest !== null && field.lowest !== undefined;
  return field.values?.length > 0 && (field.values[0].documents > 1 || field.documents === 1);
}

/** Return how many filters a state has. */
export const chosenCount = (state) =>
  Object.values(state.filters).filter((values) => values.length).length + Boolean(state.where) + Boolean(state.threshold);

/**
 * Fill the filter panel.
 * @param {object} state
 * @param {Array} fields
 * @param {function} change called with the parts of the state that change
 */
export function showFilters(state, fields, change) {
  const panel = byId("filters");
  const focused = panel.contains(document.activeElement) ? document.activeElement : null;
  const place = focused && [...panel.querySelectorAll("input, button")].indexOf(focused);
  const set = (name, values) => {
    const filters = { ...state.filters, [name]: values };
    if (!values.length) delete filters[name];
    change({ filters });
  };
  const groups = fields.filter(isFacet).map((field) => {
    const chosen = state.filters[field.name] ?? [];
    const ranged = field.type === "number" || field.type === "date";
    const control = ranged ? range : checkboxes;
    return el(
      "fieldset.facet",
      {},
      el("legend", {}, shown(field.name)),
      control(field, chosen, (values) => set(field.name, values)),
    );
  });
  const threshold = el("input", {
    type: "range",
    id: "threshold",
    min: 0,
    max: 0.95,
    step: 0.05,
    value: state.threshold || 0,
    oninput: (event) => {
      event.target.nextElementSibling.textContent = Number(event.target.value).toFixed(2);
    },
    onchange: (event) => change({ threshold: Number(event.target.value) > 0 ? event.target.value : "" }),
  });
  const written = el("input", {
    type: "text",
    value: state.where,
    spellcheck: "false",
    autocapitalize: "none",
    placeholder: 'year >= 2020',
    "aria-label": "Filter expression",
    "aria-describedby": "where-hint",
    onchange: (event) => change({ where: event.target.value }),
  });
  const count = chosenCount(state);
  panel.replaceChildren(
    el(
      "div.filters-head",
      {},
      el("h2", {}, "Filters"),
      count > 0 && button("Clear all", () => change({ filters: {}, where: "", threshold: "" }), { class: "link" }),
    ),
    ...groups,
    el(
      "fieldset.facet",
      {},
      el("legend", {}, el("label", { for: "threshold" }, "lowest score")),
      el("div.slider", {}, threshold, el("output", { for: "threshold" }, Number(state.threshold || 0).toFixed(2))),
    ),
    el(
      "details.facet",
      { open: Boolean(state.where) },
      el("summary", {}, "expression"),
      written,
      el("p.hint", { id: "where-hint" }, 'Any condition on the metadata, such as year >= 2020 and lang = "en".'),
    ),
  );
  panel.hidden = false;
  if (focused && place >= 0) panel.querySelectorAll("input, button")[Math.max(place, 0)]?.focus();
  const toggle = byId("filters-toggle");
  toggle.textContent = count ? `Filters (${count})` : "Filters";
}
