"""Rules of .gitignore files: those of git itself, in bounded time."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest

from ctx_embed.documents.walking import Rules

NAMES = "a b.log a.log/x src/a.log src/deep/a.log src/deep/b doc/a/b x[1] #c !d é/a"
PATHS = [*NAMES.split(), "e "]
RULES = (
    """
*.log,/*.log,src/,src,/deep,deep/,src/*,src/**,**/deep,src/**/a.log,* !*.log,* !src/ !*.log,src/* !src/deep,!a,# a,\\#c
\\!d,x[[]1],x\\[1\\],[ab]*,[!a]*,[^a]*,?,**,a/,doc/*/b,doc/**/b,[a,/src/deep/b,**/**/b,?.txt,*.l[a-o]g,e\\_,e_,é
""".replace("\n", ",")
    .strip(",")
    .split(",")
)


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_rules_are_those_of_git(rules, tmp_path):
    rules = rules.replace(" ", "\n").replace("_", " ").split("\n")
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("\n".join(rules) + "\n")
    command = ["git", "-C", tmp_path, "-c", "core.quotePath=false", "check-ignore", "--no-index", "--stdin"]
    said = subprocess.run(command, input="\n".join(PATHS), capture_output=True, text=True).stdout.split("\n")
    found = Rules.of(rules)

    def ignored(path: str) -> bool:
        names = path.split("/")
        steps = ["/".join(names[:count]) + "/" * (count < len(names)) for count in range(1, len(names) + 1)]
        return any(found.check(step) for step in steps)

    assert [path for path in PATHS if ignored(path)] == [path for path in PATHS if path in said]


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ("*a" * 12 + "c", "a" * 60),
        ("*a" * 400 + "c", "a" * 250),
        ("**/a/" * 100 + "b", "a/" * 1000 + "c"),
        ("[" * 900, "[" * 200),
        ("?*" * 400 + "b", "a" * 250),
    ],
)
def test_no_rule_takes_long(rule, path):
    start = time.process_time()
    assert Rules.of([rule]).check(path) is None
    assert time.process_time() - start < 1
