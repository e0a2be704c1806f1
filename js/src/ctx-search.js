// <ctx-search src="/search/">: a box that searches a static site by meaning and by words.
//
// Attributes: `src` is the folder that `ctx-embed export site` wrote, and `base` the address from which the pages were
// indexed (the folder above `src` if it is left out). `placeholder` and `label` are texts of the box, `parameter` is the
// one of the address that holds a first query, e.g. "q". `inline` lets hits take the place below the box. Colours are
// those of the page's `color-scheme`, or of the properties --ctx-accent, --ctx-background, --ctx-text, --ctx-quiet,
// --ctx-line and --ctx-mark. What stands inside the element is shown where it cannot run.

import { Search } from "./search.js";

// Milliseconds without a key after which a query that is being typed is searched for; one that is pasted does not wait.
const PAUSE = 120;
const HITS = 10;

const STYLE = `
:host {
  display: block;
  position: relative;
  font: inherit;
  --accent: var(--ctx-accent, light-dark(#1f5f8b, #8cc4ec));
  --back: var(--ctx-background, light-dark(#fff, #1b1d20));
  --text: var(--ctx-text, light-dark(#1b1d20, #e4e6e8));
  --quiet: var(--ctx-quiet, light-dark(#5a6067, #a3a9b0));
  --line: var(--ctx-line, light-dark(#c9ced4, #444a51));
  --mark: var(--ctx-mark, light-dark(#fff0b3, #5c4a00));
}
:host(.sidebar) { margin: 1rem; }
* { box-sizing: border-box; }
input {
  width: 100%;
  font: inherit;
  color: var(--text);
  background: var(--back);
  border: 1px solid var(--quiet);
  border-radius: .4em;
  padding: .5em .75em;
}
input::placeholder { color: var(--quiet); opacity: 1; }
input:focus-visible, a:focus-visible, button:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
.found {
  position: absolute;
  z-index: 1000;
  inset-inline-start: 0;
  width: max(100%, min(38rem, 92vw));
  max-height: min(75vh, 44rem);
  margin-top: .35em;
  overflow-y: auto;
  overscroll-behavior: contain;
  text-align: start;
  line-height: 1.45;
  color: var(--text);
  background: var(--back);
  border: 1px solid var(--line);
  border-radius: .5em;
  box-shadow: 0 .5em 2em rgb(0 0 0 / .2);
}
:host([inline]) .found { position: static; width: 100%; max-height: none; box-shadow: none; }
.found[hidden] { display: none; }
.status { margin: 0; padding: .6em .9em; font-size: .85em; color: var(--quiet); }
.status button { font: inherit; color: var(--accent); background: none; border: 1px solid; border-radius: .3em; cursor: pointer; }
ol { list-style: none; margin: 0; padding: 0; }
section { border-top: 1px solid var(--line); padding: .5em 0; }
h2 { margin: 0; padding: .2em .9em; font-size: .85em; font-weight: 600; color: var(--quiet); overflow-wrap: anywhere; }
h2, .heading, .snippet { unicode-bidi: plaintext; }
a { display: block; padding: .4em .9em; color: inherit; text-decoration: none; }
a:hover, a:focus { background: color-mix(in srgb, var(--accent) 12%, transparent); }
.heading { display: block; font-weight: 600; color: var(--accent); overflow-wrap: anywhere; }
.snippet { display: block; font-size: .9em; overflow-wrap: anywhere; }
mark { color: inherit; background: var(--mark); border-radius: .15em; }
`;

/** Return an element with a class and with texts or elements inside; texts are never read as markup. */
function element(name, className, ...inside) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...inside);
  return made;
}

/** The end of a title, such as the name of the site. */
const END = /(?<!\s)\s+[\u2014\u2013|\u00b7:-]\s+.*$/s;

/** Return titles without the end that most of them share. */
function withoutSharedEnd(titles) {
  const ends = titles.map((title) => title.match(END)?.[0] ?? "");
  const isShared = (end) => end !== "" && ends.filter((each) => each === end).length > titles.length / 2;
  return titles.map((title, place) => (titles.length > 1 && isShared(ends[place]) ? title.slice(0, -ends[place].length) : title));
}

/** Return a snippet's pieces without marks of Markdown. */
const shown = ({ text, marked }) => {
  const plain = text.replace(/^#{1,6} +|^```.*$|\*\*|`/gm, "");
  return marked ? element("mark", "", plain) : plain;
};

export class CtxSearch extends HTMLElement {
  #search = /** @type {Search | null} */ (null);
  #timer = 0;
  #asked = "";
  // The query whose hits are in the list.
  #shown = "";

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open", delegatesFocus: true });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(STYLE);
    root.adoptedStyleSheets = [sheet];
    this.box = element("input", "");
    Object.assign(this.box, { type: "search", autocomplete: "off", spellcheck: false, enterKeyHint: "search" });
    this.status = element("p", "status");
    this.status.setAttribute("role", "status");
    this.list = element("ol", "");
    this.found = element("div", "found", this.status, this.list);
    this.found.hidden = true;
    root.append(element("div", "", this.box), this.found);
    root.firstElementChild?.setAttribute("role", "search");
    this.box.addEventListener("input", (event) => this.#typed(/insertText|delete/.test(/** @type {InputEvent} */ (event).inputType ?? "")));
    this.box.addEventListener("focus", () => {
      this.#load();
      this.#open(Boolean(this.box.value.trim()));
    });
    root.addEventListener("keydown", (event) => this.#pressed(/** @type {KeyboardEvent} */ (event)));
    this.addEventListener("focusout", (event) => {
      const next = /** @type {FocusEvent} */ (event).relatedTarget;
      // A click inside the list leaves the box without going elsewhere.
      if (next && next !== this && !this.contains(/** @type {Node} */ (next))) this.#close();
    });
  }

  connectedCallback() {
    const label = this.getAttribute("label") ?? "Search";
    this.box.setAttribute("aria-label", label);
    this.box.placeholder = this.getAttribute("placeholder") ?? label;
    this.outside = (event) => event.composedPath().includes(this) || this.#close();
    document.addEventListener("pointerdown", this.outside);
    // A hit on this page has been opened.
    this.closing = () => this.#close();
    window.addEventListener("hashchange", this.closing);
    // An element that is moved keeps its query.
    if (this.box.value) return;
    const query = new URLSearchParams(location.search).get(this.getAttribute("parameter") ?? "");
    if (query) {
      this.box.value = query;
      this.#typed(false);
    }
  }

  disconnectedCallback() {
    document.removeEventListener("pointerdown", this.outside);
    window.removeEventListener("hashchange", this.closing);
  }

  get #source() {
    return new URL(this.getAttribute("src") ?? ".", document.baseURI).href.replace(/\/?$/, "/");
  }

  /** Fetch what all searches need; an error shows once a query is searched for. */
  #load() {
    this.#search ??= new Search(this.#source);
    this.#search.start().catch(() => {});
    return this.#search;
  }

  #typed(isTyping) {
    clearTimeout(this.#timer);
    const query = this.box.value.trim();
    // Words that are finished are got ready while the next one is typed.
    if (query && /\s$/.test(this.box.value)) this.#load().prepare(query).catch(() => {});
    if (!query) this.#close();
    else this.#timer = window.setTimeout(() => this.#run(query), isTyping ? PAUSE : 0);
  }

  async #run(query) {
    this.#asked = query;
    this.#open(true);
    if (!this.list.firstChild) this.status.textContent = "Searching\u2026";
    try {
      const { hits, answered } = await this.#load().search(query.slice(0, 1000), HITS);
      if (this.#asked === query && this.box.value.trim()) this.#show(hits, answered);
    } catch (error) {
      console.error(error);
      // A site that was built anew has another manifest and other pieces.
      this.#search = null;
      if (this.#asked !== query) return;
      const again = element("button", "", "Try again");
      again.type = "button";
      again.addEventListener("click", () => {
        this.box.focus();
        this.#run(this.box.value.trim());
      });
      this.list.replaceChildren();
      this.#shown = "";
      this.status.replaceChildren("The search could not be loaded. ", again);
    }
  }

  /** Show hits, grouped by page, in the order of the best hit of each. */
  #show(hits, answered) {
    const base = new URL(this.getAttribute("base") ?? new URL("..", this.#source), document.baseURI).href;
    const pages = new Map();
    for (const hit of hits) {
      if (!pages.has(hit.page)) pages.set(hit.page, []);
      pages.get(hit.page).push(hit);
    }
    const titles = withoutSharedEnd([...pages.values()].map(([hit]) => hit.title));
    const groups = [...pages.values()].map((some, place) => {
      const title = element("h2", "", titles[place]);
      title.id = `page-${place}`;
      const links = some.map((hit) => {
        // The title stands above.
        const isNew = !["", hit.title, hit.title.replace(END, "")].includes(hit.heading);
        const link = element("a", "", ...(isNew ? [element("span", "heading", ...hit.above.map(shown))] : []), element("span", "snippet", ...hit.snippet.map(shown)));
        const address = new URL(hit.url, base);
        // An index of something else than pages may hold any address.
        if (/^https?:$/.test(address.protocol)) link.href = address.href;
        return element("li", "", link);
      });
      const group = element("section", "", title, element("ol", "", ...links));
      group.setAttribute("aria-labelledby", title.id);
      return element("li", "", group);
    });
    const at = this.#links.indexOf(this.#focused);
    this.found.scrollTop = 0;
    this.list.replaceChildren(...groups);
    this.#shown = this.#asked;
    // Who has moved into the list stays there.
    if (at >= 0) (this.#links[at] ?? this.box).focus();
    const count = `${hits.length} ${hits.length === 1 ? "passage" : "passages"} on ${pages.size} ${pages.size === 1 ? "page" : "pages"}`;
    const nearest = "Nothing here seems to answer this. The nearest passages:";
    this.status.textContent = hits.length === 0 ? "Nothing found." : answered === false ? nearest : count;
    this.dispatchEvent(new CustomEvent("ctx-found", { detail: { query: this.#asked, hits, answered } }));
  }

  get #links() {
    return /** @type {HTMLElement[]} */ ([...this.list.querySelectorAll("a")]);
  }

  get #focused() {
    return /** @type {HTMLElement} */ (this.shadowRoot?.activeElement);
  }

  /** Show or hide the list, moved so far that the page does not cut it. */
  #open(isOpen) {
    this.found.hidden = !isOpen;
    this.found.style.translate = "";
    const { left, right } = this.found.getBoundingClientRect();
    const over = Math.max(right - document.documentElement.clientWidth, 0) || Math.min(left, 0);
    this.found.style.translate = `${-over}px`;
  }

  #close() {
    clearTimeout(this.#timer);
    this.found.hidden = true;
  }

  /** @param {KeyboardEvent} event */
  #pressed(event) {
    if (event.isComposing) return;
    const links = this.#links;
    const at = links.indexOf(this.#focused);
    if (event.key === "Escape" && !this.found.hidden) {
      this.box.focus();
      this.#close();
    } else if (event.key === "Enter" && at < 0 && event.target === this.box) {
      // Enter opens the best hit of what is shown, and otherwise searches at once.
      if (this.#shown === this.box.value.trim() && links.length && !this.found.hidden) links[0].click();
      else if (this.box.value.trim()) this.#run(this.box.value.trim());
    } else if (event.key === "ArrowDown" && links.length) {
      this.#open(true);
      links[Math.min(at + 1, links.length - 1)].focus();
    } else if (event.key === "ArrowUp" && at >= 0) (links[at - 1] ?? this.box).focus();
    else return;
    event.preventDefault();
  }
}

if (!customElements.get("ctx-search")) customElements.define("ctx-search", CtxSearch);
