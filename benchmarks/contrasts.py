"""Where word order and small words decide: is a text nearer to its paraphrase than to a text of like words?

    python benchmarks/contrasts.py default minilm [MODEL ...]

Prints for each kind of contrast the share of triples in which it is, in percent, and the mean margin between the two
cosines; chance is 50. A bag of words is drawn to the contrast, which shares more words with the text by design.
"""

from __future__ import annotations

import sys

import numpy as np

from ctx_embed.loading import load

# text, paraphrase, contrast
CONTRASTS: dict[str, list[tuple[str, str, str]]] = {
    "negation": [
        ("the soup was good", "the broth tasted nice", "the soup was not good"),
        ("she likes the new office", "the new workplace pleases her", "she does not like the new office"),
        ("the train arrived on time", "the railway service was punctual", "the train never arrived on time"),
        ("nobody came to the meeting", "the meeting had no visitors", "everybody came to the meeting"),
        ("the screen is bright enough", "the display has sufficient light", "the screen is not bright enough"),
        ("i would buy this phone again", "i'd get the same mobile once more", "i wouldn't buy this phone again"),
        ("the test found an error", "a bug turned up in the check", "the test found no error"),
        ("he can swim", "he is able to swim well", "he can't swim"),
        ("the plot makes sense", "the story is logical", "the plot makes no sense"),
        ("the bridge is safe", "one can cross the bridge without danger", "the bridge is hardly safe"),
        ("all windows were closed", "every window was shut", "not all windows were closed"),
        ("it is worth the money", "the price is justified", "it isn't worth the money"),
        ("they agreed to the plan", "the plan had their consent", "they didn't agree to the plan"),
        ("the film never bores", "the movie is entertaining throughout", "the film always bores"),
        ("without salt it tastes better", "leaving out the salt improves the taste", "with salt it tastes better"),
    ],
    "word order": [
        ("the dog bit the man", "a man was bitten by the dog", "the man bit the dog"),
        ("anna lent money to paul", "paul borrowed money from anna", "paul lent money to anna"),
        ("the cat chased the mouse", "the mouse fled from the cat", "the mouse chased the cat"),
        ("the home team beat the guests", "the guests lost to the home team", "the guests beat the home team"),
        (
            "first paint the wall, then hang the lamp",
            "the lamp is hung once the wall is painted",
            "first hang the lamp, then paint the wall",
        ),
        ("a flight from oslo to rome", "flying to rome out of oslo", "a flight from rome to oslo"),
        ("the teacher asked the pupil", "the pupil was asked by the teacher", "the pupil asked the teacher"),
        ("the company sued the city", "the city was taken to court by the company", "the city sued the company"),
        ("gold is dearer than silver", "silver costs less than gold", "silver is dearer than gold"),
        (
            "he moved from the farm to the town",
            "he left the farm and went to live in town",
            "he moved from the town to the farm",
        ),
        ("the father carried the child", "the child was carried by his father", "the child carried the father"),
        ("the car hit the truck", "the truck was struck by the car", "the truck hit the car"),
    ],
    "small words": [
        ("the keys are in the drawer", "the drawer holds the keys", "the keys are on the drawer"),
        ("she worked before lunch", "she did her work in the morning", "she worked after lunch"),
        ("the price went up", "the price rose", "the price went down"),
        ("turn the heating on", "start the heating", "turn the heating off"),
        ("a letter to the mayor", "a letter that the mayor receives", "a letter from the mayor"),
        ("more than ten people came", "over ten people showed up", "less than ten people came"),
        ("he spoke for the law", "he argued in favour of the law", "he spoke against the law"),
        ("the shop opens at six", "the store's doors open at six o'clock", "the shop closes at six"),
        ("tea with milk", "milky tea", "tea without milk"),
        ("the most expensive room", "the room with the highest price", "the least expensive room"),
        ("the plane took off", "the aircraft departed", "the plane was taken over"),
        ("both brothers passed the exam", "the two brothers passed their exam", "neither brother passed the exam"),
    ],
}


def contrasts(name: str) -> dict[str, tuple[float, float]]:
    """The share of triples in percent, and the mean margin, by kind of contrast."""
    model = load(None if name == "default" else name)
    results = {}
    for kind, triples in CONTRASTS.items():
        text, paraphrase, contrast = (
            model.encode(list(column), normalize_embeddings=True) for column in zip(*triples, strict=True)
        )
        margins = (text * paraphrase).sum(1) - (text * contrast).sum(1)
        results[kind] = 100 * float(np.mean(margins > 0)), float(margins.mean())
    return results


def main(names: list[str]) -> None:
    print("| encoder | " + " | ".join(f"{kind} ({len(triples)})" for kind, triples in CONTRASTS.items()) + " |")
    print("|---|" + "---|" * len(CONTRASTS))
    for name in names:
        print(
            f"| {name} | " + " | ".join(f"{s:.0f} ({m:+.3f})" for s, m in contrasts(name).values()) + " |", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1:] or ["default"])
