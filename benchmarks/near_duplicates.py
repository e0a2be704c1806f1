"""Near-duplicates: python benchmarks/near_duplicates.py --data DIR --work FOLDER [--lines N] [--json FILE]"""

import difflib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import corpus_sentences, data_option, json_option, report, work_option
from jobs import ctx_embed_command, run_once

PLANTED_SHARE = 0.05
JUDGED = 1000
# A merge counts as wrong if the sentences share a smaller fraction of their words.
COMMON_WORDS = 0.7


def other_case(text: str, generator: random.Random) -> str:
    return generator.choice([text.upper(), text.lower(), text.title()])


def other_punctuation(text: str, generator: random.Random) -> str:
    return generator.choice(
        [f'"{text}"', text.rstrip(".!?"), text.replace(" ", "  ", 2), text.replace(",", " -") + "!"]
    )


def typing_error(text: str, generator: random.Random) -> str:
    """Return the text with a letter left out, doubled or swapped with the next."""
    places = [place for place in range(len(text) - 1) if text[place : place + 2].isalpha()]
    if not places:
        return text
    place = generator.choice(places)
    first, second = text[place], text[place + 1]
    return text[:place] + generator.choice([second, first + first + second, second + first]) + text[place + 2 :]


def other_word(text: str, generator: random.Random) -> str:
    """Return the text without a short word, or with a filler word added."""
    words = text.split()
    short = [place for place, word in enumerate(words) if len(word) <= 4 and word.isalpha()]
    if short and generator.random() < 0.5:
        del words[generator.choice(short)]
    else:
        words.insert(generator.randrange(len(words)), generator.choice(["also", "really", "now", "the"]))
    return " ".join(words)


EDITS: dict[str, Callable[[str, random.Random], str]] = {
    "case": other_case,
    "punctuation": other_punctuation,
    "typing error": typing_error,
    "word": other_word,
}


@click.command()
@data_option
@work_option
@click.option("--lines", default=1_000_000, show_default=True)
@click.option("--threshold", help="As of `ctx-embed dedupe`.")
@json_option
def main(data: Path, work: Path, lines: int, threshold: str | None, json_path: Path | None) -> None:
    """Print the time, memory, copies found and wrong merges for sentences of which one in twenty is an edited copy."""
    work.mkdir(exist_ok=True)
    generator = random.Random(0)
    planted = round(PLANTED_SHARE * lines)
    texts = corpus_sentences(data, lines - planted)
    # Put each copy at a random place after its original.
    order = [(float(place), place, "") for place in range(len(texts))]
    for number, place in enumerate(generator.sample(range(len(texts)), planted)):
        order.append((generator.uniform(place, len(texts)), place, list(EDITS)[number % len(EDITS)]))
    order.sort()
    row_of = {place: row for row, (_, place, kind) in enumerate(order) if not kind}
    rows = [EDITS[kind](texts[place], generator) if kind else texts[place] for _, place, kind in order]
    pairs = [(row_of[place], row, kind) for row, (_, place, kind) in enumerate(order) if kind]
    (work / "lines.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    command = ctx_embed_command(
        "dedupe", work / "lines.txt", "-o", work / "unique.txt", "--groups", work / "groups.jsonl"
    )
    seconds, processor, megabytes = run_once(command + (["--threshold", threshold] if threshold else []))
    leader: dict[int, int] = {}
    with (work / "groups.jsonl").open(encoding="utf-8") as file:
        for group in map(json.loads, file):
            leader |= {member["row"] - 1: group["kept"]["row"] - 1 for member in group["dropped"]}
    facts: dict[str, Any] = {
        "lines": len(rows),
        "seconds": seconds,
        "processor seconds": processor,
        "peak MB": megabytes,
        "dropped": len(leader),
    }
    for kind in EDITS:
        # A pair is missed only if both rows are kept: if the original is dropped, its copy may resemble another row.
        found = [left in leader or right in leader for left, right, edit in pairs if edit == kind]
        facts[f"found, {kind}"] = float(np.mean(found))
    facts["found"] = float(np.mean([left in leader or right in leader for left, right, _ in pairs]))
    copies = {row for _, row, _ in pairs}
    natural = sorted(row for row in leader if row not in copies)
    judged = random.Random(1).sample(natural, min(JUDGED, len(natural)))
    shares = [common_words(rows[row], rows[leader[row]]) for row in judged]
    facts |= {"natural": len(natural), "merged wrongly": float(np.mean([share < COMMON_WORDS for share in shares]))}
    for row, share in zip(judged, shares, strict=True):
        if share < COMMON_WORDS:
            print(f"{share:.2f}\t{rows[row]}\t{rows[leader[row]]}", file=sys.stderr)
    report([facts], json_path)


def common_words(left: str, right: str) -> float:
    words = [["".join(filter(str.isalnum, word)) for word in text.casefold().split()] for text in (left, right)]
    return difflib.SequenceMatcher(None, *words, autojunk=False).ratio()


if __name__ == "__main__":
    main()
