"""Pre-training of a Contextualizer on masked words.

python -m papers.masked_words OUT FILE... [--sentences 1000000] [--seed 0]

writes a model to the folder OUT, which `python -m papers pretraining --option start=OUT` fine-tunes. FILE holds a
sentence on each line, plain or gzip. Repeat an interrupted command to continue it.
"""

import gzip
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.common import commit, processor
from ctx_embed.cli.main import errors_in_one_line
from ctx_embed.cli.options import SEED
from ctx_embed.errors import InputError
from ctx_embed.files import replaced_folder, require_replaceable
from ctx_embed.fingerprint import identity
from ctx_embed.progress import Meter
from ctx_embed.training.batches import PackedTexts, seeded_batches
from ctx_embed.training.run import Checkpoint
from ctx_embed.training.supervised.train import new_encoder
from papers.inputs import Workplace
from papers.pretraining import ARCHITECTURE, BATCH, HIDDEN, RATE, RECORD

SENTENCES = 1_000_000
MASK = "[MASK]"
STORED_EVERY = 200


def pretrain(
    out: Path, files: Sequence[Path], sentences: int = SENTENCES, seed: int = 0, tokenizer: Path | None = None
) -> None:
    """Train a Contextualizer from random weights to name the hidden words of sentences, and write it to a folder.

    Of each batch, 15 % of the tokens are hidden, see :func:`loss_of_hidden`. The learning rate falls to 0 in a straight
    line. The folder also gets ``pretraining.json``: sentences, tokens, losses, cost. The sentences are read once, an
    even sample of all lines; the vocabulary, by default BERT's, must have an entry [MASK].
    """
    require_replaceable(out, RECORD)
    encoder = new_encoder(
        None,
        [],
        str(Workplace(tokenizer=tokenizer).vocabulary),
        seed=seed,
        device="cpu",
        encoder="contextualizer",
        **ARCHITECTURE,
    )
    module: Any = encoder[0]
    mask = module.backend_tokenizer.token_to_id(MASK)
    if mask is None:
        raise InputError(f"the vocabulary must have an entry {MASK}")
    lines = [line for file in files for line in _lines(file)]
    if len(lines) < sentences:
        raise InputError(f"sentences must be at most the {len(lines):,} of the files, got {sentences:,}")
    rows = np.sort(np.random.default_rng(seed).permutation(len(lines))[:sentences])
    texts = PackedTexts.tokenize(module.text_tokenizer, [lines[row] for row in rows])
    del lines
    checkpoint = Checkpoint(
        out, identity(hashlib.sha256(texts.ids.tobytes()).hexdigest(), ARCHITECTURE, HIDDEN, BATCH, RATE, seed)
    )
    optimizer = torch.optim.Adam(module.parameters(), RATE, fused=True)
    losses: list[float] = []
    earlier = 0.0
    if state := checkpoint.load():
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
        losses, earlier = state["losses"], state["seconds"]
    module.train()
    batches = list(seeded_batches(sentences, BATCH, seed, 0))
    with Meter("pre-training", len(batches), "batches", done=len(losses)) as meter:
        for number in range(len(losses), len(batches)):
            optimizer.param_groups[0]["lr"] = RATE * (1 - number / len(batches))
            ids, lengths = texts.batch(batches[number])
            hidden = torch.from_numpy(np.random.default_rng([seed, number]).random(len(ids)) < HIDDEN)
            hidden[0] |= not hidden.any()
            loss = loss_of_hidden(module, ids, lengths, hidden, mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            meter.note(f"loss {loss.item():.2f}")
            meter.update()
            if len(losses) % STORED_EVERY == 0:
                checkpoint.save(
                    {
                        "module": module.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "losses": losses,
                        "seconds": earlier + time.process_time(),
                    }
                )
    tenths = [float(np.mean(part)) for part in np.array_split(losses, 10) if len(part)]
    record = {
        "sentences": sentences,
        "tokens": len(texts.ids),
        "losses": tenths,
        "processor_hours": (earlier + time.process_time()) / 3600,
        "seed": seed,
        "commit": commit(),
        "processor": processor(),
    }
    with replaced_folder(out) as folder:
        encoder.save(str(folder))
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    checkpoint.remove()


def loss_of_hidden(module: Any, ids: Tensor, lengths: list[int], hidden: Tensor, mask: int) -> Tensor:
    """Return the cross-entropy of the hidden tokens, which c^K of their sentences scores among the batch's entries.

    ``ids`` (N,) are the tokens of the sentences one after the other, ``hidden`` (N,) says which are hidden (at least
    one), and the id ``mask`` stands in their place.
    """
    contexts = module.embed(ids.masked_fill(hidden, mask), lengths)
    entries, targets = torch.unique(ids, return_inverse=True)
    owners = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    scores = contexts[owners[hidden]] @ module.embedding(entries).T
    return F.cross_entropy(scores, targets[hidden])


def _lines(file: Path) -> list[str]:
    content = file.read_bytes()
    try:
        text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode("utf-8")
    except (UnicodeDecodeError, EOFError) as error:
        raise InputError(f"{file}: cannot be read as UTF-8 text ({error})") from None
    return [line for line in text.split("\n") if line.strip()]


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILE...")
@click.option("--sentences", type=click.IntRange(1), default=SENTENCES, show_default=True, help="How many to read.")
@click.option("--seed", type=SEED, default=0, show_default=True)
@errors_in_one_line(lambda: "repeat the command to continue")
def main(out: Path, files: tuple[Path, ...], sentences: int, seed: int) -> None:
    """Pre-train a Contextualizer on masked words."""
    pretrain(out, files, sentences, seed)


if __name__ == "__main__":
    main()
