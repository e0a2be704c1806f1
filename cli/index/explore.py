"""`ctx-embed index duplicates` and `topics`: near-duplicates and clusters, found from the stored vectors."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from ctx_embed.cli.index import opened
from ctx_embed.cli.main import command, one_line
from ctx_embed.cli.options import SEED, output_option

SHOWN_CHARACTERS = 100


@command()
@click.argument("path", metavar="INDEX")
@click.option("--threshold", default=0.9, type=click.FloatRange(-1, 1), help="The lowest cosine of a pair.")
@click.option("-k", "most", default=100, type=click.IntRange(min=1), help="Maximum number of pairs to print.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of pairs.")
@click.option("--jsonl", "as_jsonl", is_flag=True, help="Print each pair as a line of JSON.")
def duplicates(path: str, threshold: float, most: int, as_json: bool, as_jsonl: bool) -> None:
    """Find documents that say nearly the same, most similar pairs first.

    Example: ctx-embed index duplicates reviews.index --threshold 0.95
    """
    with opened(path) as index:
        pairs = index.duplicates(threshold, most, progress=True)
    if as_json:
        click.echo(json.dumps([asdict(pair) for pair in pairs], ensure_ascii=False))
        return
    if not pairs:
        click.echo("no documents are that similar", err=True)
    for pair in pairs:
        if as_jsonl:
            click.echo(json.dumps(asdict(pair), ensure_ascii=False))
        else:
            click.echo(
                f"{pair.score:7.4f}  {one_line(str(pair.left), 40)}  {one_line(pair.left_text, SHOWN_CHARACTERS)}"
            )
            click.echo(f"         {one_line(str(pair.right), 40)}  {one_line(pair.right_text, SHOWN_CHARACTERS)}")


@command()
@click.argument("path", metavar="INDEX")
@click.option(
    "-k", "count", type=click.IntRange(min=1), help="Number of topics.  [default: 2 to 50, by the number of documents]"
)
@click.option("--seed", default=0, type=SEED, help="Seed of the clustering.")
@output_option("Write the id and topic of each document, as JSONL.", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of objects: label, size, words, examples.")
def topics(path: str, count: int | None, seed: int, output: Path | None, as_json: bool) -> None:
    """Cluster the documents and print the typical words of each cluster, largest first.

    The first three words are a topic's label.

    \b
    Example: ctx-embed index topics reviews.index -k 10
    Example: ctx-embed index topics reviews.index -o topics.jsonl
    """
    from ctx_embed.files import replaced_file, require_file

    if output is not None:
        require_file(output)
    with opened(path) as index:
        found = index.topics(count, seed)
    if output is not None:
        with replaced_file(output) as beside, beside.open("w", encoding="utf-8") as file:
            for topic in found:
                for identifier in topic.documents:
                    file.write(json.dumps({"id": identifier, "topic": topic.label}, ensure_ascii=False) + "\n")
    if as_json:
        facts = [
            {"label": topic.label, "size": topic.size, "words": topic.words, "examples": topic.examples}
            for topic in found
        ]
        click.echo(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    for topic in found:
        click.echo(f"{topic.size:8d}  {', '.join(topic.words)}")
        for identifier, text in topic.examples[:1]:
            click.echo(f"          {one_line(str(identifier), 40)}: {one_line(text, SHOWN_CHARACTERS)}")
