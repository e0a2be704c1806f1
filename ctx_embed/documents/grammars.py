"""Find where functions and classes begin in source code, with tree-sitter's grammars (extra ``documents``)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Tree

# The package of each language's grammar, and the function in the package that returns the grammar.
LANGUAGES = {
    "c": ("tree_sitter_c", "language"),
    "cpp": ("tree_sitter_cpp", "language"),
    "csharp": ("tree_sitter_c_sharp", "language"),
    "go": ("tree_sitter_go", "language"),
    "java": ("tree_sitter_java", "language"),
    "javascript": ("tree_sitter_javascript", "language"),
    "php": ("tree_sitter_php", "language_php"),
    "ruby": ("tree_sitter_ruby", "language"),
    "rust": ("tree_sitter_rust", "language"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
}
LANGUAGE_OF = {
    **dict.fromkeys([".c", ".h"], "c"),
    **dict.fromkeys([".cc", ".cpp", ".cxx", ".hh", ".hpp"], "cpp"),
    ".cs": "csharp",
    ".go": "go",
    ".java": "java",
    **dict.fromkeys([".js", ".jsx", ".mjs", ".cjs"], "javascript"),
    ".php": "php",
    ".rb": "ruby",
    ".rs": "rust",
    ".tsx": "tsx",
    ".ts": "typescript",
}

# Parsing broken code can take forever.
PARSING_SECONDS = 5.0
_READ_BYTES = 1 << 16

_DEFINITION = re.compile(
    r"(?:abstract_class|annotation_type|class|constructor|destructor|enum|function|generator_function|impl|interface|macro"
    r"|method|mod|namespace|property|record|struct|trait|type|union)_(?:declaration|definition|item|specifier)"
    r"|class|internal_module|method|module|singleton_method"
)
# Definitions that may contain further definitions.
_CONTAINER = re.compile(r".*(?:class|enum|impl|interface|mod|module|namespace|record|struct|trait).*")
# Nodes that wrap a definition together with a keyword before it, such as ``export``.
_PREFIX = {"export_statement", "ambient_declaration", "template_declaration"}
# Nodes that do not count as a level: bodies, and the #if around a whole C header.
_WRAPPER = re.compile(
    r".*(?:_body|_list|_block|_declarations|body_statement)|linkage_specification|preproc_(?:if|ifdef|else|elif)"
    r"|expression_statement"
)
_FUNCTION_VALUES = {"arrow_function", "function_expression", "generator_function"}
# Nodes that belong to the definition right below them.
_ABOVE = re.compile(r".*comment|attribute_item|attribute_list|decorator|annotation")


@cache
def _parser(language: str) -> Parser | None:
    package, function = LANGUAGES[language]
    try:
        from tree_sitter import Language, Parser

        return Parser(Language(getattr(import_module(package), function)()))
    except ImportError:
        return None


def definitions(text: str, language: str, deepest: int, seconds: float = PARSING_SECONDS) -> dict[int, int] | None:
    """Return the lines, from 0, at which definitions begin, with their depths: 1 for those at the top.

    Args:
        text: source code; broken code has the definitions that are still recognised.
        language: one of :data:`LANGUAGES`.
        deepest: the maximum depth; deeper definitions are left out.
        seconds: the maximum time for parsing.

    Returns:
        None if the grammar is not installed, or parsing takes too long.
    """
    parser = _parser(language)
    if parser is None:
        return None
    tree = _parsed(parser, text.encode(), seconds)
    if tree is None:
        return None
    found: dict[int, int] = {}
    # Nodes still to search, each with its depth and the first line of the comments right above it.
    waiting: list[tuple[Node, int, int | None]] = [(tree.root_node, 1, None)]
    while waiting:
        node, depth, above = waiting.pop()
        after = False
        for child, first in _with_first_lines(node.children, above):
            definition = _definition(child)
            if definition is not None or (after and child.is_named):
                found.setdefault(first, depth)
            if definition is not None and depth < deepest and _CONTAINER.fullmatch(definition.type):
                inside = _with_first_lines(definition.children, None)
                waiting += [(body, depth + 1, line) for body, line in inside if _WRAPPER.fullmatch(body.type)]
            elif definition is None and _WRAPPER.fullmatch(child.type):
                waiting.append((child, depth, first))
            after = definition is not None
    return found


def _parsed(parser: Parser, content: bytes, seconds: float) -> Tree | None:
    """Return the tree of source code; None if parsing takes longer than ``seconds``, as some broken code does."""
    end = time.monotonic() + seconds
    try:
        return parser.parse(
            lambda at, _: content[at : at + _READ_BYTES], progress_callback=lambda *_: time.monotonic() > end
        )
    except ValueError:
        parser.reset()
        return None


def _with_first_lines(nodes: Iterable[Node], above: int | None) -> Iterator[tuple[Node, int]]:
    """Yield nodes with the first line of the comments and attributes right above them, or their own.

    Args:
        nodes: siblings in order.
        above: the first line of comments that end right above the first node; None: there are none.
    """
    last = None
    for node in nodes:
        start = int(node.start_point.row)
        if last is not None and last + 1 < start:
            above = None
        first = start if above is None else min(above, start)
        yield node, first
        above = first if _ABOVE.fullmatch(node.type) else None
        last = int(node.end_point.row)


def _definition(node: Node) -> Node | None:
    """Return the definition that a node is or wraps; in JavaScript a variable that holds a function counts too."""
    if _DEFINITION.fullmatch(node.type):
        return node if node.is_named else None
    if node.type in _PREFIX:
        return next(filter(None, map(_definition, node.children)), None)
    values = (child.child_by_field_name("value") for child in node.children if child.type == "variable_declarator")
    return node if any(value is not None and value.type in _FUNCTION_VALUES for value in values) else None
