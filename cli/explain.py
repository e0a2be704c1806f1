"""`ctx-embed explain`: how much attention each token gets."""

import json
import sys
from pathlib import Path

import click

from ctx_embed.cli.main import command, counted
from ctx_embed.cli.options import field_option, output_option
from ctx_embed.cli.terminal import styled
from ctx_embed.errors import InputError


@command()
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option(
    "--input",
    "source",
    metavar="FILE",
    help="Read texts from a file: one per line, or a table. Here and as TEXT, - is standard input.",
)
@field_option
@click.option("--model", default="default", metavar="NAME|PATH", help="A model's name or folder, or a system's name.")
@output_option("Write a page, FILE.html, instead.", metavar="FILE")
@click.option("--passage", metavar="TEXT", help="Show what each token of TEXT, a query, finds in this passage.")
@click.option("--contexts", is_flag=True, help="Show the path of a Contextualizer's context, too: norms and cosines.")
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects: text, tokens, axes, weights, path.")
def explain(
    texts: tuple[str, ...],
    source: str | None,
    text_field: tuple[str, ...],
    model: str,
    output: Path | None,
    passage: str | None,
    contexts: bool,
    as_json: bool,
) -> None:
    """Show what the encoder looks at in each TEXT: the share of each step or head that falls on each token, in %.

    For a Contextualizer: the exact share of each token in each update z^k of the context, negative where it works
    against the others. --contexts adds the path of the context c^k: norms, and cosines with the previous and the last.
    With --passage: what each token of a query finds there, as searches with --late compare them: the token's weight in
    the query's embedding in %, its nearest token in the passage, and their cosine.
    For systems with heads: the attention of each head; for Transformers the mean over the attending tokens (--json has
    all of them).

    Example: ctx-embed explain "a dull film without one good idea" -o film.html
    """
    if as_json and output:
        raise click.UsageError("--json and -o cannot be combined")
    if texts == ("-",):
        texts, source = (), source or "-"
    if bool(texts) == (source is not None):
        raise click.UsageError("give either TEXT or --input FILE")
    if passage is not None and (output or contexts or len(texts) != 1):
        raise click.UsageError("--passage needs one TEXT, and neither -o nor --contexts")

    from ctx_embed.explanations import require_page
    from ctx_embed.reading.rows import read_documents
    from ctx_embed.texts import require_explainable, well_formed

    if output:
        require_page(output)
    if source is not None:
        texts = tuple(document.text for document in read_documents(source, text_field))
        if not texts:
            raise InputError(f"{'standard input' if source == '-' else source}: no texts to explain")
    for number, text in enumerate(texts, 1):
        require_explainable(text, f"text {number}" if len(texts) > 1 else "the text")

    from ctx_embed.explanations import explain as explained, nearest, printable, write
    from ctx_embed.model import Model

    encoder = Model.of(model)
    if passage is not None:
        found = nearest(encoder, well_formed(texts[0]), well_formed(passage))
        if as_json:
            click.echo(json.dumps([vars(each) for each in found], ensure_ascii=False, indent=2))
        for each in () if as_json else found:
            click.echo(f"{printable(each.token):<20} {each.weight:4.0%}  {each.cosine:5.2f}  {printable(each.found)}")
        return
    explanations = [explained(encoder, well_formed(text)) for text in texts]
    if output:
        write(explanations, output, well_formed(model), contexts=contexts)
        click.echo(f"{counted(len(texts), 'text')} explained in {output}")
    elif as_json:
        click.echo(json.dumps([explanation.to_dict() for explanation in explanations], ensure_ascii=False, indent=2))
    else:
        from rich.console import Console

        from ctx_embed.explanations import renderable

        console = Console(file=styled(sys.stdout))
        for number, explanation in enumerate(explanations):
            if number:
                console.print()
            console.print(renderable(explanation, contexts=contexts))
