// Lays a passage out as it is read: paragraphs without the marks of their markup, code with its lines, tables as tables.

import { el } from "./dom.js";
import { highlighted, isCode, readable, trimmedLines, wholeLines } from "./text.js";

const FENCE = /^ {0,3}(?:`{3,}|~{3,})[ \t]*(\S*)[^`\n]*$/;
const ROW = /^[ \t]*\|.*\|[ \t]*$/;
const RULE = /^[ \t]*\|(?:[ \t]*:?-+:?[ \t]*\|)+[ \t]*$/;

/** Return the lines of a text in groups of one kind: [kind, lines]; fences are left out. */
function grouped(text) {
  const lines = text.split("\n");
  const fences = lines.filter((line) => FENCE.test(line)).map((line) => line.match(FENCE)[1]);
  // A passage may begin within code: then its first fence, without a language, is the end of it.
  let inCode = fences.length % 2 === 1 && fences[0] === "";
  const groups = [];
  for (const line of lines) {
    if (FENCE.test(line)) {
      inCode = !inCode;
      groups.push(["gap", []]);
      continue;
    }
    const kind = inCode ? "code" : ROW.test(line) ? "table" : "prose";
    if (groups.at(-1)?.[0] === kind) groups.at(-1)[1].push(line);
    else groups.push([kind, [line]]);
  }
  return groups;
}

const cellsOf = (row) => row.trim().slice(1, -1).split(/(?<!\\)\|/).map((cell) => readable(cell.replaceAll("\\|", "|")));

/**
 * Return the text of a passage or document as it is shown, and its parts: kind, start, stop and, of a table, rows (lists
 * of ranges, one for each cell) and whether the first is its head.
 */
export function laidOut(raw, hit) {
  const groups = isCode(hit) ? [["code", [raw]]] : grouped(raw);
  const parts = [];
  let text = "";
  for (const [kind, lines] of groups) {
    const rows = kind === "table" ? lines.filter((line) => !RULE.test(line)).map(cellsOf) : [];
    const shown = { prose: readable, code: trimmedLines, table: () => rows.map((cells) => cells.join("\t")).join("\n"), gap: () => "" }[kind](lines.join("\n"));
    if (!shown.trim()) continue;
    if (text) text += "\n\n";
    const part = { kind, start: text.length, stop: text.length + shown.length, hasHead: RULE.test(lines[1] ?? "") };
    let place = part.start;
    part.rows = rows.map((cells) => cells.map((cell) => [place, (place += cell.length + 1) - 1]));
    parts.push(part);
    text += shown;
  }
  return { text, parts };
}

function table(text, { rows, hasHead }, [from, to], marks, best) {
  const line = (row, tag) => el("tr", {}, row.map((cell) => el(tag, { dir: "auto" }, highlighted(text, cell, marks, best))));
  const body = rows.slice(hasHead ? 1 : 0).filter((row) => row.at(-1)[1] > from && row[0][0] < to);
  return el(
    "div.table",
    { tabindex: "0", role: "region", "aria-label": "Table" },
    el("table", {}, hasHead && el("thead", {}, line(rows[0], "th")), el("tbody", {}, body.map((row) => line(row, "td")))),
  );
}

/**
 * Return nodes for the window [from, to] of a text that is laid out: whole lines of code, whole rows of tables.
 * ``before`` and ``after`` say whether more of the document is left out there.
 */
export function shownParts({ text, parts }, [from, to], marks, best, before = false, after = false) {
  const nodes = parts
    .filter(({ start, stop }) => stop > from && start < to)
    .map((part) => {
      const window = [Math.max(part.start, from), Math.min(part.stop, to)];
      if (part.kind === "table") return table(text, part, window, marks, best);
      if (part.kind === "prose") return el("p", { dir: "auto" }, highlighted(text, window, marks, best));
      const [start, stop] = wholeLines(text, window);
      return el("pre.code", { dir: "ltr" }, highlighted(text, [Math.max(start, part.start), Math.min(stop, part.stop)], marks, best));
    });
  const isProse = (node) => node?.tagName === "P";
  if (before && isProse(nodes[0])) nodes[0].prepend("… ");
  else if (before) nodes.unshift(el("p", {}, "…"));
  if (after && isProse(nodes.at(-1))) nodes.at(-1).append(" …");
  else if (after) nodes.push(el("p", {}, "…"));
  return nodes;
}
