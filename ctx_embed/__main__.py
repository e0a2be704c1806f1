"""`python -m ctx_embed`: the command line."""

from ctx_embed.cli.main import run

if __name__ == "__main__":
    run()
