from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_embed.documents.blocks import KINDS, NONE, PAGE, code, markdown, prose, python, rows
from ctx_embed.documents.grammars import LANGUAGES


def shown(text, blocks) -> list[tuple[str, int]]:
    return [(text[block.start : block.stop], block.depth) for block in blocks]


@given(st.text(alphabet="ab #`~=-|\n\f \t.}(:@", max_size=60), st.sampled_from(sorted(KINDS)))
def test_blocks_hold_all_text_in_order(text, kind):
    blocks = KINDS[kind](text)
    assert all(0 <= block.start < block.stop <= len(text) for block in blocks)
    assert all(left.stop <= right.start for left, right in pairwise(blocks))
    if not text.startswith("---\n"):
        outside = [text[left:right] for left, right in pairwise([0, *(n for b in blocks for n in b[:2]), len(text)])][
            ::2
        ]
        assert not "".join(outside).strip()


def test_paragraphs_and_pages():
    text = "one\nline\n\n  two\n \nthree\fpage two\n\nfour"
    assert shown(text, prose(text)) == [
        ("one\nline", NONE),
        ("  two", NONE),
        ("three", NONE),
        ("page two", PAGE),
        ("four", NONE),
    ]
    assert [depth for _, depth in shown("a\nb\fc", rows("a\nb\fc"))] == [NONE, NONE, PAGE]


def test_markdown():
    text = (
        "---\ntitle: x\n---\n# One\ntext\nmore\n\n## Two ##\n```python\n# no heading\n\nx\n```\nafter\n\nUnder\n===\n"
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


def test_python_is_cut_at_functions_classes_and_methods():
    text = (
        '"""Doc."""\n\nimport os\n# of f\n@cache\ndef f():\n    a\n\n    b\nX = 1\n\n\nclass C:\n    """Doc."""\n\n'
        "    def m(self):\n        pass\n    def n(self):\n        pass\n"
    )
    assert shown(text, python(text)) == [
        ('"""Doc."""', NONE),
        ("import os", NONE),
        ("# of f\n@cache\ndef f():\n    a", 1),
        ("    b", NONE),
        ("X = 1", 1),
        ('class C:\n    """Doc."""', 1),
        ("    def m(self):\n        pass", 2),
        ("    def n(self):\n        pass", 2),
    ]
    broken = "def f(:\n\n  x"
    assert python(broken) == code(broken)


def test_other_code_is_cut_where_it_is_least_indented():
    text = "int f() {\n  a;\n\n  b;\n}\n\nint g() {\n\n}\n"
    assert shown(text, code(text)) == [
        ("int f() {\n  a;", 1),
        ("  b;\n}", 3),
        ("int g() {", 1),
        ("}", NONE),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_time_is_linear(kind):
    # Parsers of tree-sitter take a hundred times as long for each character.
    count = 20_000 if kind in LANGUAGES else 200_000
    for text in (" " * count, "a " * count, "\n" * count, "`" * count, "#" * count, " \n" * count + "a"):
        KINDS[kind](text)
