"""Seconds until the package answers: import, the command's help, and load with a first embedding, in fresh processes.

python benchmarks/startup.py [--json FILE]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
from common import alternate, report, summary

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import ctx_embed": ["-c", "import ctx_embed"],
    "ctx-embed --help": ["-c", "from ctx_embed.cli.main import main; main()", "--help"],
    "import sentence_transformers": ["-c", "import sentence_transformers"],
    "load() and encode": ["-c", "import ctx_embed; ctx_embed.load().encode(['a text'])"],
}


@click.command()
@click.option("--runs", default=5, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(runs: int, json_path: Path | None) -> None:
    def process(arguments: list[str]) -> None:
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)

    seconds = alternate({name: lambda a=arguments: process(a) for name, arguments in COMMANDS.items()}, runs)
    report([{"what": name, "seconds": summary(times)["median"]} for name, times in seconds.items()], json_path)


if __name__ == "__main__":
    main()
