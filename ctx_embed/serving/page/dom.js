// Builds elements. Data only ever becomes text nodes and attribute values, never markup.

/**
 * Return a new element.
 * @param {string} tag its name, with classes after dots: "p.notice"
 * @param {object} [attributes] attributes; functions are listeners ("onclick"); null, undefined and false are left out
 * @param {...(Node|string|null|undefined|false|Array)} children strings become text
 */
export function el(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Return the page's element with an id. */
export const byId = (id) => document.getElementById(id);

/** Return a button. */
export const button = (text, onclick, attributes = {}) => el("button", { type: "button", onclick, ...attributes }, text);

const SHAPES = {
  close: "M4 4l8 8M12 4l-8 8",
  down: "M4 6.5l4 4 4-4",
};

/** Return a small drawing that screen readers skip. */
export function icon(name) {
  const make = (tag) => document.createElementNS("http://www.w3.org/2000/svg", tag);
  const svg = make("svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const path = make("path");
  path.setAttribute("d", SHAPES[name]);
  svg.append(path);
  return svg;
}

let announcing;

/** Have screen readers say a text, once typing has paused. */
export function announce(text) {
  clearTimeout(announcing);
  announcing = setTimeout(() => {
    byId("status").textContent = text;
  }, 350);
}

let hiding;

/** Show a line at the bottom of the page for a while. */
export function tell(text) {
  const box = byId("message");
  clearTimeout(hiding);
  const hide = () => {
    box.hidden = true;
  };
  box.replaceChildren(
    el("span", {}, text),
    el("button", { type: "button", class: "quiet square", "aria-label": "Close this message", onclick: hide }, icon("close")),
  );
  box.hidden = false;
  hiding = setTimeout(hide, 8000);
}

/** Return a count with its noun: "1 document", "1,204 documents", "2 matches". */
export const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;
