"""The permissive model of ctx-embed: `ctx_embed.load("permissive")`."""

from pathlib import Path


def get_model_path() -> Path:
    """Return the folder of the model."""
    return Path(__file__).parent / "permissive"
