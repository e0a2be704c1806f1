from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ctx_embed.index.chunking import Passages, words
from ctx_embed.reading.blocks import KINDS, NONE, PAGE, code, markdown, prose, rows


def shown(text, blocks) -> list[tuple[str, int]]:
    return [(text[block.start : block.stop], block.depth) for block in blocks]


@given(st.text(alphabet="ab #`~=-|\n\f \t.}(:@", max_size=60), st.sampled_from(sorted(KINDS)))
def test_blocks_hold_all_text_in_order(text, kind):
    blocks = KINDS[kind](text)
    assert all(0 <= block.start < block.stop <= len(text) for block in blocks)
    assert all(left.stop <= right.start for left, right in pairwise(blocks))
    ends = [0, *(end for block in blocks for end in block[:2]), len(text)]
    assert not any(text[left:right].strip() for left, right in zip(ends[::2], ends[1::2], strict=True))


def test_paragraphs_pages_and_markdown():
    text = (
        "# One\ntext\nmore\n\n## Two ##\n```python\n# no heading\n\nx\n```\nafter\n\nUnder\n===\n"
        "| a | b |\n| - | - |\n\n#hash\n- item\n"
    )
    blocks = markdown(text)
    assert shown(text, blocks) == [
        ("# One", 1),
        ("text\nmore", NONE),
        ("## Two ##", 2),
        ("```python\n# no heading\n\nx\n```", NONE),
        ("after", NONE),
        ("Under\n===", 1),
        ("| a | b |\n| - | - |", NONE),
        ("#hash\n- item", NONE),
    ]
    assert [block.prose for block in blocks] == [True, True, True, False, True, True, False, True]
    assert shown("```\nopen", markdown("```\nopen")) == [("```\nopen", NONE)]
    text = "one\nline\n\n  two\n \nthree\fpage two\n\nfour"
    blocks = [("one\nline", NONE), ("  two", NONE), ("three", NONE), ("page two", PAGE), ("four", NONE)]
    assert shown(text, prose(text)) == blocks
    assert [depth for _, depth in shown("a\nb\fc", rows("a\nb\fc"))] == [NONE, NONE, PAGE]


def test_python_is_cut_at_functions_classes_and_methods():
    text = (
        '"""Doc."""\n\nimport os\n# of f\n@cache\ndef f():\n    a\n\n    b\nX = 1\n\n\nclass C:\n    """Doc."""\n\n'
        "    def m(self):\n        pass\n    def n(self):\n        pass\n"
    )
    assert shown(text, code(text)) == [
        ('"""Doc."""', 1),
        ("import os", 1),
        ("# of f\n@cache\ndef f():\n    a", 1),
        ("    b", 6),
        ("X = 1", 1),
        ('class C:\n    """Doc."""', 1),
        ("    def m(self):\n        pass", 5),
        ("    def n(self):\n        pass", 5),
    ]


def test_other_code_is_cut_where_it_is_least_indented():
    text = "int f() {\n  a;\n\n  b;\n}\n\nint g() {\n\n}\n"
    assert shown(text, code(text)) == [("int f() {\n  a;", 1), ("  b;\n}", 4), ("int g() {", 1), ("}", NONE)]
    # Control flow is no definition.
    text = (
        "int f(int a) {\n  if (a > 1) {\n    g(a);\n  } else if (a) {\n    h();\n  }\n  for (int i = 0; i < a; i++) {\n"
        "    call(i, {\n    });\n  }\n  switch (a) {\n    case 1: {\n    }\n  }\n  return a;\n}\n"
    )
    assert shown(text, code(text)) == [(text.rstrip("\n"), 1)]
    # Passages are whole functions.
    text = "".join(f"function f{n}(a) {{\n  let b = a + {n};\n  return b * {n};\n}}\n" for n in range(9))
    passages = Passages(60, lambda texts: [len(words(text)) for text in texts], words)
    (spans,) = passages.of_all([(text, code(text))])
    found = [text[start:stop] for start, stop in spans]
    assert len(found) > 3
    assert all(passage.startswith("function f") and passage.endswith("}") for passage in found)


SAMPLES = sorted((Path(__file__).parent / "code").iterdir())


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.suffix)
def test_code_is_cut_before_definitions_with_what_stands_above_them(path):
    """Samples have § where a part begins."""
    parts = path.read_text(encoding="utf-8").rstrip("\n").split("§")[1:]
    text = "".join(parts)
    blocks = code(text)
    assert [text[block.start : block.stop] for block in blocks] == [part.rstrip("\n") for part in parts]
    indents = [len(part) - len(part.lstrip()) for part in parts]
    assert sorted(blocks, key=lambda block: block.depth) == [blocks[n] for n in np.argsort(indents, kind="stable")]
