"""How often the highlighted sentence of a passage is the one that answers: python benchmarks/highlights.py --data DIR

A passage is six sentences of an article (pairs/qa_squad_sentences, in the order of the file), one of which answers the
question. The first stage of the default model was trained on neither the question nor its answer; its second stage, and
the permissive model, drew pairs from all files of their recipes, this one among them. Weights are compared on the first
half of the questions; the second half is for the report.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import ctx_embed
from ctx_embed.index.hits import highlights, word_shares
from ctx_embed.numpy_model import Embedder
from ctx_embed.training.distillation.texts import Source, read_blocks, read_pair_rows

QUESTIONS, SENTENCES, NEIGHBOURS = 2000, 6, 40
HITS = 10
SQUAD = "qa_squad_sentences.jsonl.gz"
TRAINING = Path(ctx_embed.__file__).parent / "pretrained/default/first-stage.json"


def trained_texts(data: Path) -> set[str]:
    """Return the texts of pairs that the first stage was trained on, as its training cut them."""
    texts: set[str] = set()
    for source in json.loads(TRAINING.read_text())["sources"]:
        if SQUAD in source["files"]:
            paths = [data / "pairs" / name for name in source["files"]]
            cut = Source(paths, texts=source["texts"], fair=True, first_words=source["first_words"])
            for block in read_blocks(cut):
                texts.update(block.texts)
    return texts


def passages(data: Path) -> list[tuple[str, list[str], int]]:
    """Return questions, each with the sentences of its passage and the number of the one that answers."""
    rows = [row[:2] for row in read_pair_rows(data / "pairs" / SQUAD)]
    trained = trained_texts(data)
    draw = np.random.default_rng(0)
    found = []
    for place in draw.permutation(len(rows)).tolist():
        question, answer = rows[place]
        near = rows[max(place - NEIGHBOURS // 2, 0) : place + NEIGHBOURS // 2]
        others = [text for text in dict.fromkeys(text for _, text in near) if text != answer]
        if len(others) >= SENTENCES - 1 and not trained & {question, answer}:
            draw.shuffle(others)
            at = int(draw.integers(SENTENCES))
            found.append((question, [*others[:at], answer, *others[at : SENTENCES - 1]], at))
    return found[:QUESTIONS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--minilm", action="store_true", help="beside all-MiniLM-L6-v2, minutes")
    arguments = parser.parse_args()
    asked = passages(arguments.data)
    answers = np.array([answer for *_, answer in asked])
    questions, texts = [question for question, *_ in asked], [text for _, texts, _ in asked for text in texts]
    model = Embedder.load(arguments.model)
    shares = np.array([word_shares(question, listed) for question, listed, _ in asked])
    halves = {"first half": slice(None, QUESTIONS // 2), "second half": slice(QUESTIONS // 2, None)}

    def report(name: str, scores: np.ndarray) -> None:
        hits = scores.argmax(axis=1) == answers
        cells = [
            f"{100 * hits[half].mean():.1f} ± {100 * hits[half].std() / len(hits[half]) ** 0.5:.1f}"
            for half in halves.values()
        ]
        print(f"| {name} | {' | '.join(cells)} |")

    print(f"| sentence of {SENTENCES} with | {' | '.join(halves)} |\n|---|--:|--:|")
    cosines = similarity(model, questions, texts)
    report("most words of the question", shares)
    for weight in (0, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2):
        report(f"cosine + {weight} times the share of words", cosines + weight * shares)
    if arguments.minilm:
        report("cosine by all-MiniLM-L6-v2", similarity(ctx_embed.load("minilm"), questions, texts))
    taken = []
    for first in range(0, 500, HITS):
        question, vectors = questions[first], model.encode([questions[first]])
        hits = ["\n\n".join(listed) for _, listed, _ in asked[first : first + HITS]]
        began = time.process_time()
        highlights(hits, [question], vectors, model.encode)
        taken.append((time.process_time() - began) / HITS)
    length = sum(map(len, texts)) / len(asked) + 2 * SENTENCES - 2
    print(f"\n{1000 * np.median(taken):.2f} processor ms a hit, {HITS} hits of {length:.0f} characters at once")


def similarity(model: object, questions: list[str], texts: list[str]) -> np.ndarray:
    vectors = np.asarray(model.encode(texts)).reshape(len(questions), SENTENCES, -1)  # type: ignore[attr-defined]
    return np.einsum("qd,qsd->qs", np.asarray(model.encode(questions)), vectors)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
