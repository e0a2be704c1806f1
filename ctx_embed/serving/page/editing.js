// Adds a document and deletes one, each with a way back.

import { ofIndex } from "./api.js";
import { byId, button, el, icon } from "./dom.js";

const FIELDS_OFFERED = 6;

let hiding;

/** Show a line at the bottom of the page, with a way back if there is one. */
export function tell(text, undo) {
  const box = byId("message");
  clearTimeout(hiding);
  const hide = () => {
    box.hidden = true;
  };
  box.replaceChildren(
    el("span", {}, text),
    ...(undo ? [button("Undo", () => { hide(); undo(); }, { class: "link undo" })] : []),
    el("button", { type: "button", class: "quiet square", "aria-label": "Close this message", onclick: hide }, icon("close")),
  );
  box.hidden = false;
  // A line that offers a way back stays until it is closed or another takes its place.
  if (!undo) hiding = setTimeout(hide, 8000);
}

function dialog(title, content, action, run, kind = "primary") {
  const box = byId("dialog");
  const problem = el("p.problem", { role: "alert", hidden: true });
  const submit = el("button", { type: "submit", class: kind }, action);
  const form = el(
    "form",
    {
      method: "dialog",
      novalidate: true,
      onsubmit: async (event) => {
        event.preventDefault();
        submit.disabled = true;
        problem.hidden = true;
        try {
          await run();
          box.close();
        } catch (error) {
          problem.textContent = error.message;
          problem.hidden = false;
        } finally {
          submit.disabled = false;
        }
      },
    },
    el("h2", { id: "dialog-title" }, title),
    content,
    problem,
    el("div.buttons", {}, button("Cancel", () => box.close(), { class: "quiet" }), submit),
  );
  box.replaceChildren(form);
  box.showModal();
}

/** Ask, then delete the document of a hit; ``changed`` is called after the deletion and after its undoing. */
export function removeDocument(index, hit, changed) {
  const text = (hit.document ?? hit.text).trim();
  const excerpt = text.length > 240 ? `${text.slice(0, 240)}…` : text;
  dialog(
    "Delete this document?",
    [el("blockquote", { dir: "auto" }, excerpt || "(empty)"), el("p.hint", {}, `Document ${hit.id} of ${index}.`)],
    "Delete",
    async () => {
      const { documents } = await ofIndex(index, "get", { ids: [hit.id] });
      await ofIndex(index, "delete", { ids: [hit.id] });
      changed();
      const [document] = documents;
      const restore = async () => {
        try {
          await ofIndex(index, "add", { texts: [document.text], ids: [document.id], metadata: [document.metadata] });
          tell(`Document ${hit.id} is back.`);
          changed();
        } catch (error) {
          tell(`It could not be brought back: ${error.message}`);
        }
      };
      tell(`Deleted document ${hit.id}.`, document ? restore : undefined);
    },
    "danger",
  );
}

const shown = (name) => name.replaceAll("_", " ");

/** Return a row of the form: a known field with a fitting input, or a field to be named. */
function row(field) {
  const named = field !== undefined;
  const id = named ? `field-${field.name}` : null;
  const choices = named && ["string", "list"].includes(field.type) && field.values?.length ? `${id}-values` : null;
  const types = { number: "number", date: "date" };
  const value =
    named && field.type === "boolean"
      ? el("select", { id }, el("option", { value: "" }), el("option", { value: "true" }, "yes"), el("option", { value: "false" }, "no"))
      : el("input", {
          id,
          type: (named && types[field.type]) || "text",
          step: named && field.type === "number" ? "any" : null,
          list: choices,
          placeholder: named ? (field.type === "list" ? "separated by commas" : null) : "Value",
          "aria-label": named ? null : "Value",
        });
  const made = el(
    "div.pair",
    {},
    named ? el("label", { for: id }, shown(field.name)) : el("input", { type: "text", placeholder: "Field", "aria-label": "Name of a further field" }),
    value,
    choices && el("datalist", { id: choices }, field.values.map((known) => el("option", { value: known.value }))),
  );
  const read = () => ({ name: named ? field.name : made.firstElementChild.value.trim(), text: value.value.trim(), type: field?.type });
  return { made, read };
}

function typed(text, type) {
  if (type === "number") return Number(text);
  if (type === "boolean") return text === "true";
  if (type === "list") return text.split(",").map((part) => part.trim()).filter(Boolean);
  return text;
}

/** Ask for a text and its metadata, then add them as a document. */
export function addDocument(index, fields, changed) {
  const rows = fields.filter(({ type }) => type !== "object").slice(0, FIELDS_OFFERED).map((field) => row(field));
  const further = row();
  rows.push(further);
  const pairs = el("div.pairs", {}, rows.map(({ made }) => made));
  const another = button("Another field", () => {
    const added = row();
    rows.push(added);
    pairs.append(added.made);
    added.made.firstElementChild.focus();
  }, { class: "link" });
  const text = el("textarea", { rows: 5, dir: "auto" });
  dialog(
    `Add a document to ${index}`,
    [el("label.stacked", {}, "Text", text), el("fieldset", {}, el("legend", {}, "Metadata, if you like"), pairs, another)],
    "Add",
    async () => {
      if (!text.value.trim()) throw new Error("Write the text of the document first.");
      const metadata = {};
      for (const { name, text: value, type } of rows.map(({ read }) => read())) {
        if (value === "") continue;
        if (name === "") throw new Error(`Name the field of the value “${value}”, or clear the value.`);
        metadata[name] = typed(value, type);
      }
      const { ids } = await ofIndex(index, "add", { texts: [text.value], metadata: [metadata] });
      changed();
      tell(`Added document ${ids[0]}.`, async () => {
        try {
          await ofIndex(index, "delete", { ids });
          tell(`Removed document ${ids[0]} again.`);
          changed();
        } catch (error) {
          tell(`It could not be removed: ${error.message}`);
        }
      });
    },
  );
  text.focus();
}
