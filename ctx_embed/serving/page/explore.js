// The view that needs no query: topics.

import { ofIndex } from "./api.js";
import { button, counted, el } from "./dom.js";

const SHOWN_TEXT = 280;
const TOPIC_COUNTS = ["", "5", "10", "20", "40"];
let chosen = "";

const shortened = (text) => (text.length > SHOWN_TEXT ? `${text.slice(0, SHOWN_TEXT).replace(/\s+\S*$/, "")} …` : text);

function chooser(again) {
  return el(
    "label.chooser",
    {},
    "How many",
    el(
      "select",
      {
        onchange: (event) => {
          chosen = event.target.value;
          again();
        },
      },
      TOPIC_COUNTS.map((value) => el("option", { value, selected: chosen === value }, value || "automatic")),
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
  const count = chosen ? Number(chosen) : null;
  const { topics } = await ofIndex(index, "topics", { count }, signal);
  const largest = Math.max(...topics.map(({ size }) => size), 1);
  return {
    summary: counted(topics.length, "topic"),
    nodes: [
      el("div.view-head", {}, el("h2", {}, "Topics"), chooser(actions.again)),
      el("p.lead", {}, "Documents that speak of the same things, with the words typical of each group. Choose a group to search it."),
      el("ul.topics", {}, topics.map((topic) => topicCard(topic, largest, actions))),
    ],
  };
}
