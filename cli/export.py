"""`ctx-embed export`: models for other programs."""

from pathlib import Path

import click

from ctx_embed.cli.main import Group
from ctx_embed.cli.options import FOLDER, output_option


@click.group(cls=Group)
def export() -> None:
    """Write a model for other programs.

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
    click.echo(f"{output}: model.onnx, tokenizer.json and phrases.json; differs from the model by {difference:.1e}")


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
