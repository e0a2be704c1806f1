"""`ctx-embed export`: models and indexes for other programs."""

from pathlib import Path

import click

from ctx_embed.cli.main import Group, counted
from ctx_embed.cli.options import FOLDER, output_option


@click.group(cls=Group)
def export() -> None:
    """Write a model or an index for other programs.

    Example: ctx-embed export onnx default -o onnx-model
    """


_output_option = output_option("Folder to write.", metavar=FOLDER, required=True)


@export.command()
@click.argument("model")
@_output_option
def onnx(model: str, output: Path) -> None:
    """Write a Contextualizer as an ONNX graph, with its tokenizer and phrases.

    MODEL is a folder or 'default'. DIR/model.onnx takes token ids and offsets and returns embeddings. Before DIR is
    written, onnxruntime runs the graph, and its embeddings are compared with the model's.

    Example: ctx-embed export onnx default -o onnx-model
    """
    from ctx_embed.export import export_onnx
    from ctx_embed.model import Model

    difference = export_onnx(Model.of(model, "numpy").backend, output)
    click.echo(
        f"{output}: model.onnx, tokenizer.json, phrases.json and characters.json; "
        f"differs from the model by {difference:.1e}"
    )


@export.command()
@click.argument("model")
@_output_option
def static(model: str, output: Path) -> None:
    """Write a model of the system `mean` for model2vec and sentence-transformers' StaticEmbedding.

    Example: ctx-embed export static my-mean-model -o static-model
    """
    from ctx_embed.export import export_static
    from ctx_embed.loading import load

    export_static(load(model, "cpu"), output)
    click.echo(f"{output}: for StaticModel.from_pretrained and SentenceTransformer")


@export.command()
@click.argument("index")
@output_option("Folder of the site to write, such as public/search.", metavar=FOLDER, required=True)
def site(index: str, output: Path) -> None:
    """Write the search of an index as files of a static site, for browsers.

    INDEX is one of a folder of HTML. Pages then search it, without a server, with two lines:

    \b
    <script type="module" src="/search/ctx-search.js"></script>
    <ctx-search src="/search/"></ctx-search>

    Example: ctx-embed export site site.index -o public/search
    """
    from ctx_embed.index import SearchIndex
    from ctx_embed.site import export_site

    with SearchIndex.open(index) as opened:
        written = export_site(opened, output)
    size = f"{written.files:,} files of {written.bytes / 1e6:.1f} MB"
    click.echo(f"{output}: {counted(written.passages, 'passage')}, {size}")
