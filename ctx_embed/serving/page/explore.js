// The views that need no query: topics, and pairs of documents that say nearly the same.

import { ofIndex } from "./api.js";
import { button, counted, el } from "./dom.js";
import { differences, highlighted } from "./text.js";

const SHOWN_TEXT = 280;
const TOPIC_COUNTS = ["", "5", "10", "20", "40"];
const THRESHOLDS = ["0.98", "0.95", "0.9", "0.85", "0.8"];
const choice = { topics: "", duplicates: "0.9" };

const shortened = (text) => (text.length > SHOWN_TEXT ? `${text.slice(0, SHOWN_TEXT).replace(/\s+\S*$/, "")} …` : text);

function chooser(view, label, values, name, again) {
  return el(
    "label.chooser",
    {},
    label,
    el(
      "select",
      {
        onchange: (event) => {
          choice[view] = event.target.value;
          again();
        },
      },
      values.map((value) => el("option", { value, selected: choice[view] === value }, name(value))),
    ),
  );
}

function topicCard(topic, largest, actions) {
  const bar = el("span.fill");
  bar.style.inlineSize = `${Math.round((100 * topic.size) / largest)}%`;
  const [first, rest] = [topic.words.slice(0, 3), topic.words.slice(3)];
  return el(
    "li.topic",
    {},
    el("h3", {}, button(first.join(", ") || "(no words)", () => actions.search(topic.words.slice(0, 5).join(" ")), { class: "link" })),
    el("p.size", {}, counted(topic.size, "passage"), el("span.track", { "aria-hidden": "true" }, bar)),
    rest.length > 0 && el("p.hint", {}, rest.join(", ")),
    el(
      "ul.examples",
      {},
      topic.examples.map(([id, text]) =>
        el("li", {}, el("p", { dir: "auto" }, shortened(text.trim()) || "(empty)"), button("More like this", () => actions.like({ id, text }), {
          class: "link",
          "aria-label": `More like this: ${text.trim().slice(0, 60)}`,
        })),
      ),
    ),
  );
}

/** Return the nodes of the topics of an index. */
export async function topicsView(index, actions, signal) {
  const count = choice.topics ? Number(choice.topics) : null;
  const { topics } = await ofIndex(index, "topics", { count }, signal);
  const largest = Math.max(...topics.map(({ size }) => size), 1);
  const head = chooser("topics", "How many", TOPIC_COUNTS, (value) => value || "automatic", actions.again);
  return {
    summary: counted(topics.length, "topic"),
    nodes: [
      el("div.view-head", {}, el("h2", {}, "Topics"), head),
      el("p.lead", {}, "Documents that speak of the same things, with the words typical of each group. Choose a group to search it."),
      el("ul.topics", {}, topics.map((topic) => topicCard(topic, largest, actions))),
    ],
  };
}

function side(id, text, ranges, actions) {
  return el(
    "div.twin",
    {},
    el("p", { dir: "auto" }, ranges ? highlighted(text, [0, text.length], ranges, null) : shortened(text)),
    el(
      "div.actions",
      {},
      el("span.hint", {}, `id ${id}`),
      button("More like this", () => actions.like({ id, text }), { class: "link", "aria-label": `More like this: document ${id}` }),
    ),
  );
}

function pairItem(pair, actions) {
  const [left, right] = [pair.left_text.trim(), pair.right_text.trim()];
  const [first, second] = differences(left, right) ?? [null, null];
  const same = first?.length === 0 && second?.length === 0;
  return el(
    "li.pair-of",
    {},
    el("p.score", {}, el("span.hidden-label", {}, "Similarity "), el("span.number", {}, pair.score.toFixed(2)), same && el("span.hint", {}, "same words")),
    el("div.twins", {}, side(pair.left, left, first, actions), side(pair.right, right, second, actions)),
  );
}

/** Return the nodes of the near-duplicates of an index. */
export async function duplicatesView(index, actions, signal) {
  const { pairs } = await ofIndex(index, "duplicates", { threshold: Number(choice.duplicates), most: 100 }, signal);
  const head = chooser("duplicates", "Similar by at least", THRESHOLDS, (value) => value, actions.again);
  return {
    summary: counted(pairs.length, "pair"),
    nodes: [
      el("div.view-head", {}, el("h2", {}, "Near-duplicates"), head),
      pairs.length > 0
        ? el("p.lead", {}, `${counted(pairs.length, "pair")} of documents that say nearly the same, the most similar first. Words that only one of them has are marked.`)
        : el("p.lead", {}, "No two documents are that similar. Choose a lower similarity to see more."),
      el("ol.pairs-of", {}, pairs.map((pair) => pairItem(pair, actions))),
    ],
  };
}
