"""Source code is cut before functions, classes and methods, with what stands right above them."""

from __future__ import annotations

import pytest

from ctx_embed.documents import grammars
from ctx_embed.documents.blocks import KINDS, Block
from ctx_embed.documents.formats import plain
from ctx_embed.index.writing.chunking import Passages, words

pytest.importorskip("tree_sitter", reason="the extra documents is not installed")

# The code, and the first lines of the parts before which a cut is best, with their depths.
CODE = {
    "c": (
        "#ifndef SUM_H\n#include <stdio.h>\n/* Adds. */\nint add(int a, int b) {\n  return a + b;\n}\n"
        "struct pair { int a; };\n#endif\n",
        [(1, "/* Adds. */"), (1, "struct pair { int a; };")],
    ),
    "cpp": (
        "namespace shop {\n// Holds.\ntemplate <class T>\nclass Cart {\n public:\n  // Adds.\n  void add(T t) {}\n"
        "  int size() { return 1; }\n};\nint f() { return 2; }\n}\n",
        [
            (1, "namespace shop {"),
            (2, "// Holds."),
            (3, "  // Adds."),
            (3, "  int size() { return 1; }"),
            (2, "int f() { return 2; }"),
        ],
    ),
    "csharp": (
        "using System;\nnamespace Shop {\n  /// Holds.\n  [Serializable]\n  public class Cart {\n"
        "    public int Size { get; set; }\n    void Add() { }\n  }\n}\n",
        [
            (1, "namespace Shop {"),
            (2, "  /// Holds."),
            (3, "    public int Size { get; set; }"),
            (3, "    void Add() { }"),
        ],
    ),
    "go": (
        'package shop\nimport "fmt"\n// F does.\nfunc F() int {\n\treturn 1\n}\ntype Cart struct { n int }\n'
        "func (c Cart) Size() {}\n",
        [(1, "// F does."), (1, "type Cart struct { n int }"), (1, "func (c Cart) Size() {}")],
    ),
    "java": (
        "package shop;\n/** A cart. */\n@Deprecated\npublic class Cart {\n  int n;\n  @Override\n"
        "  public int size() { return 1; }\n  Cart() { }\n}\n",
        [(1, "/** A cart. */"), (2, "  @Override"), (2, "  Cart() { }")],
    ),
    "javascript": (
        'import a from "a";\n/** Adds. */\nexport function add(a, b) {\n  return a + b;\n}\nconst twice = (a) => {\n'
        "  return a + a;\n};\nexport class Cart {\n  // The size.\n  size() { return 1; }\n  add() { }\n}\nadd(1);\n",
        [
            (1, "/** Adds. */"),
            (1, "const twice = (a) => {"),
            (1, "export class Cart {"),
            (2, "  // The size."),
            (2, "  add() { }"),
            (1, "add(1);"),
        ],
    ),
    "php": (
        "<?php\n/** Adds. */\nfunction add() { return 1; }\nclass Cart {\n  public function size() { return 2; }\n"
        "  // Adds.\n  private function add() {}\n}\n",
        [
            (1, "/** Adds. */"),
            (1, "class Cart {"),
            (2, "  public function size() { return 2; }"),
            (2, "  // Adds."),
        ],
    ),
    "ruby": (
        "require 'a'\n# A shop.\nmodule Shop\n  class Cart\n    # The size.\n    def size\n      1\n    end\n"
        "    def self.add; end\n  end\nend\ndef top; end\n",
        [
            (1, "# A shop."),
            (2, "  class Cart"),
            (3, "    # The size."),
            (3, "    def self.add; end"),
            (1, "def top; end"),
        ],
    ),
    "rust": (
        "use a;\n/// A cart.\n#[derive(Debug)]\npub struct Cart { n: i32 }\nimpl Cart {\n    /// New.\n"
        "    pub fn new() -> Cart { Cart { n: 1 } }\n    fn size(&self) {}\n}\nfn main() {}\n",
        [
            (1, "/// A cart."),
            (1, "impl Cart {"),
            (2, "    /// New."),
            (2, "    fn size(&self) {}"),
            (1, "fn main() {}"),
        ],
    ),
    "tsx": (
        "export const App = () => <div/>;\nfunction Part() { return <p/>; }\n",
        [(1, "export const App = () => <div/>;"), (1, "function Part() { return <p/>; }")],
    ),
    "typescript": (
        "interface A { a: string }\nexport abstract class B {\n  constructor(private a: A) {}\n  @log()\n"
        "  m(): void {}\n}\nexport default function g() {}\n",
        [
            (1, "interface A { a: string }"),
            (1, "export abstract class B {"),
            (2, "  constructor(private a: A) {}"),
            (2, "  @log()"),
            (1, "export default function g() {}"),
        ],
    ),
}


def starts(text: str, blocks: list[Block]) -> list[tuple[int, str]]:
    return [(block.depth, text[block.start : block.stop].split("\n")[0]) for block in blocks if block.depth < 9]


@pytest.mark.parametrize("language", CODE)
def test_cuts_before_definitions(language):
    pytest.importorskip(grammars.LANGUAGES[language][0], reason="the grammar is not installed")
    text, expected = CODE[language]
    blocks = KINDS[language](text)
    assert starts(text, blocks) == expected
    # Nothing is lost or repeated but the ends of lines.
    assert "\n".join(text[block.start : block.stop] for block in blocks) == text.rstrip("\n")
    # With non-ASCII characters before them, the same.
    assert starts(f"// é 日本\n{text}", KINDS[language](f"// é 日本\n{text}"))[-1:] == expected[-1:]


def test_every_language_is_tested_and_has_a_suffix(tmp_path):
    assert set(CODE) == set(grammars.LANGUAGES) == set(grammars.LANGUAGE_OF.values())
    for suffix, language in grammars.LANGUAGE_OF.items():
        path = tmp_path / f"a{suffix.upper()}"
        path.write_text(CODE[language][0])
        (extracted,) = plain.code(str(path))
        assert extracted.kind == language


def test_passages_are_whole_functions():
    text = "".join(f"function f{n}(a) {{\n  let b = a + {n};\n  return b * {n};\n}}\n" for n in range(9))
    passages = Passages(60, lambda texts: [len(words(text)) for text in texts], words)
    found = [text[start:stop] for start, stop in passages(text, KINDS["javascript"](text))]
    assert len(found) > 3
    assert all(passage.startswith("function f") and passage.endswith("}") for passage in found)


@pytest.mark.parametrize("text", ["", "(" * 10_000, "class A {" * 2000, "function f(){" * 2000, "\0\ud800", '"' * 2000])
def test_broken_code_is_cut_somehow(text):
    for language in CODE:
        blocks = KINDS[language](text.encode("utf-8", "replace").decode())
        assert all(block.start < block.stop for block in blocks)


def test_without_the_grammar_blank_lines_separate_the_parts(monkeypatch):
    monkeypatch.setattr(grammars, "_parser", lambda _: None)
    text = "void f() {}\n\nvoid g() {}\n"
    assert KINDS["c"](text) == KINDS["code"](text)
