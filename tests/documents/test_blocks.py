from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_embed.documents.blocks import KINDS, NONE, PAGE, code, markdown, prose, rows
from ctx_embed.index.writing.chunking import Passages, words


def shown(text, blocks) -> list[tuple[str, int]]:
    return [(text[block.start : block.stop], block.depth) for block in blocks]


@given(st.text(alphabet="ab #`~=-|\n\f \t.}(:@", max_size=60), st.sampled_from(sorted(KINDS)))
def test_blocks_hold_all_text_in_order(text, kind):
    blocks = KINDS[kind](text)
    assert all(0 <= block.start < block.stop <= len(text) for block in blocks)
    assert all(left.stop <= right.start for left, right in pairwise(blocks))
    if not text.startswith("---\n"):
        ends = [0, *(end for block in blocks for end in block[:2]), len(text)]
        assert not any(text[left:right].strip() for left, right in zip(ends[::2], ends[1::2], strict=True))


def test_paragraphs_and_pages():
    text = "one\nline\n\n  two\n \nthree\fpage two\n\nfour"
    blocks = [("one\nline", NONE), ("  two", NONE), ("three", NONE), ("page two", PAGE), ("four", NONE)]
    assert shown(text, prose(text)) == blocks
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


# Source code, and the first lines of the parts that are cut before definitions and after them.
CODE = {
    "c": (
        "#ifndef SUM_H\n#include <stdio.h>\n/* Adds. */\nint add(int a, int b) {\n  return a + b;\n}\n"
        "struct pair { int a; };\n#endif\n",
        ["/* Adds. */", "struct pair { int a; };"],
    ),
    "cpp": (
        "namespace shop {\n// Holds.\ntemplate <class T>\nclass Cart {\n public:\n  // Adds.\n  void add(T t) {}\n"
        "  int size() { return 1; }\n};\nint f() { return 2; }\n}\n",
        ["namespace shop {", "// Holds.", "  // Adds.", "  int size() { return 1; }", "int f() { return 2; }"],
    ),
    "csharp": (
        "using System;\nnamespace Shop {\n  /// Holds.\n  [Serializable]\n  public class Cart {\n"
        "    public int Size { get; set; }\n    void Add() { }\n  }\n}\n",
        ["namespace Shop {", "  /// Holds.", "    public int Size { get; set; }", "    void Add() { }"],
    ),
    "go": (
        'package shop\nimport "fmt"\n// F does.\nfunc F() int {\n\treturn 1\n}\ntype Cart struct { n int }\n'
        "func (c Cart) Size() {}\n",
        ["// F does.", "type Cart struct { n int }", "func (c Cart) Size() {}"],
    ),
    "java": (
        "package shop;\n/** A cart. */\n@Deprecated\npublic class Cart {\n  int n;\n  @Override\n"
        "  public int size() { return 1; }\n  Cart() { }\n}\n",
        ["/** A cart. */", "  @Override", "  Cart() { }"],
    ),
    "javascript": (
        'import a from "a";\n/** Adds. */\nexport function add(a, b) {\n  return a + b;\n}\nconst twice = (a) => {\n'
        "  return a + a;\n};\nexport class Cart {\n  // The size.\n  size() { return 1; }\n  add() { }\n}\nadd(1);\n",
        ["/** Adds. */", "const twice = (a) => {", "export class Cart {", "  // The size.", "  add() { }", "add(1);"],
    ),
    "ruby": (
        "require 'a'\n# A shop.\nmodule Shop\n  class Cart\n    # The size.\n    def size\n      1\n    end\n"
        "    def self.add; end\n  end\nend\ndef top; end\n",
        ["# A shop.", "  class Cart", "    # The size.", "    def self.add; end", "def top; end"],
    ),
    "rust": (
        "use a;\n/// A cart.\n#[derive(Debug)]\npub struct Cart { n: i32 }\nimpl Cart {\n    /// New.\n"
        "    pub fn new() -> Cart { Cart { n: 1 } }\n    fn size(&self) {}\n}\nfn main() {}\n",
        ["/// A cart.", "impl Cart {", "    /// New.", "    fn size(&self) {}", "fn main() {}"],
    ),
    "typescript": (
        "interface A { a: string }\nexport abstract class B {\n  constructor(private a: A) {}\n  @log()\n"
        "  m(): void {}\n}\nexport default function g() {}\n",
        [
            "interface A { a: string }",
            "export abstract class B {",
            "  constructor(private a: A) {}",
            "  @log()",
            "export default function g() {}",
        ],
    ),
}


@pytest.mark.parametrize("language", CODE)
def test_code_is_cut_before_definitions_with_what_stands_above_them(language):
    text, expected = CODE[language]
    blocks = code(text)
    firsts = [text[block.start : block.stop].split("\n")[0] for block in blocks]
    assert firsts[firsts[0] not in expected :] == expected
    indents = [len(first) - len(first.lstrip()) for first in firsts]
    assert sorted(blocks, key=lambda block: block.depth) == [blocks[n] for n in np.argsort(indents, kind="stable")]
    # Nothing is lost or repeated but the ends of lines.
    assert "\n".join(text[block.start : block.stop] for block in blocks) == text.rstrip("\n")
