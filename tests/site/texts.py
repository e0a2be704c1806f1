"""Texts of every script, and hostile ones, on which Python and JavaScript are compared."""

import random
import sys
import unicodedata
from importlib.resources import files

HOSTILE = [
    *("", " ", "\0", "a\0b\0\0c"),
    "\x01\x7f\x85\xa0\u2028\u3000 wide  spaces\tand\r\nlines",
    *("[UNK]", "[PAD] is not [unk] but [UNK]s, a[UNK]b [PAD", "]][[ brackets[1] and [2]"),
    "caf\u00e9 cafe\u0301 CAFE\u0301 ca\u0301\u0301\u0301fe",
    *("co\u00adoperate soft\u00ad hyphen\u00ad\u00ad end\u00ad", "\u00ad" * 500 + "\u200b\u200c\u200d" * 100),
    "\u0627\u200c\u0628 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f3f4\U000e0067\U000e0062\U000e007f",
    "\u0e01\u200b\u0e02 \u1780\u200b\u1781",
    "10\u2076 2\u2153 \u2460 \u33a5 \ufb01sh \uff21\uff22 \u2126 \u212b \u00bd",
    "\u6771\u4eac\u90fd \u3053\u3093\u306b\u3061\u306f \ud55c\uad6d\uc5b4 \u1112\u1161\u11ab",
    "C++ C# F# .NET foo.bar_baz don't I\u2019m \u201cquoted\u201d \u2014 dash",
    "x" * 99 + " " + "y" * 100 + " " + "z" * 101 + " " + "w" * 5000,
    *("of the of the of the in the it's don't i'm", "a" + "\u0301\u0323" * 40 + "b"),
    "\u0130stanbul \u0131 \u03a3\u03a3 \u1e9e \u01c4 \ufb03",
    "<script>alert(1)</script> &amp; \"';-- \\ ../../ %00 ${x} {{y}}",
    "bi\u0142goraj \u0142odz e\u0142k 350\u00b0F \u00a35 \u00a9 \u00ae",
    "\U0010ffff \U000f0000 \U00040000 \ue000 \ue001 \ufffe \uffff \ufffd",
    "1.5e-10 3,000,000 2026-11-29 12:30 a1b2c3 \u0661\u0662\u0663 \u4e00\u4e8c",
    "\u0344\u0958\u2adc\ufb1d\u0fb5\u0f71\u0f72\u0f74\u0f80 \u1100\u1161\u11a8 \uac00\u11a8",
    "no " * 3000,
]


def texts(count: int = 3000, seed: int = 75) -> list[str]:
    """Return hostile texts, questions, and for each run of 64 characters of Unicode texts that mix some with words."""
    chance = random.Random(seed)
    questions = (files("ctx_embed.index") / "unanswered.txt").read_text(encoding="utf-8").splitlines()
    words = " ".join(questions).split()
    # Neither unassigned characters, those of private use, nor halves.
    runs = [[chr(code) for code in range(start, start + 64)] for start in range(0, sys.maxunicode, 64)]
    assigned = [[each for each in run if unicodedata.category(each) not in ("Cn", "Co", "Cs")] for run in runs]
    blocks, found = list(filter(None, assigned)), [*HOSTILE, *questions]
    while len(found) < count:
        # Each block in turn, alone or with another one.
        block = blocks[len(found) % len(blocks)] + chance.choice(blocks) * (len(found) % 3 == 0)
        parts = ["".join(chance.choices(block, k=chance.randint(1, 6))) for _ in range(chance.randint(1, 5))]
        parts += chance.choices(words, k=chance.randint(0, 12))
        chance.shuffle(parts)
        found.append(chance.choice([" ", "", " ", "-"]).join(parts) if len(parts) < 6 else " ".join(parts))
    return found
