"""A teacher's embeddings, computed once and stored: a file per block, so that a killed run resumes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_file
from ctx_embed.fingerprint import fingerprint, identity
from ctx_embed.progress import Meter
from ctx_embed.text.tokenizer import tokenizer_of
from ctx_embed.texts import well_formed
from ctx_embed.training.distillation.texts import Block

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Texts per batch. On a CPU, batches that fit its caches are fastest: on one Zen 4 core, all-mpnet-base-v2 in bfloat16
# embeds 30 sentences per second in batches of 16, and 23 in batches of 64.
CPU_BATCH, DEVICE_BATCH = 16, 256
# Number of texts whose tokens are counted, to estimate how many texts the teacher truncates.
SAMPLED_TEXTS = 5000


class TeacherCache:
    """Teacher embeddings of blocks, in ``folder/<teacher>/<block key>.safetensors`` (float16).

    The folder's name depends on everything that changes the embeddings, such as the teacher's dtype.
    """

    def __init__(self, folder: str | Path, teacher: SentenceTransformer) -> None:
        self.teacher = teacher
        # Name length limit, prompt and truncation separately: the fingerprint does not include them.
        name = f"{fingerprint(teacher)[:16]}-{teacher.max_seq_length}"
        prompt = teacher.prompts.get(teacher.default_prompt_name or "")
        if prompt or teacher.truncate_dim:
            name += f"-{identity(prompt, teacher.truncate_dim)[:16]}"
        self.folder = Path(folder) / name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the cache folder {self.folder}: {error.strerror}") from None

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return the teacher's embeddings of ``texts`` as float32 (texts, d), l2-normalised, without the cache."""
        batch_size = CPU_BATCH if self.teacher.device.type == "cpu" else DEVICE_BATCH
        embeddings = self.teacher.encode(
            list(texts), batch_size=batch_size, convert_to_tensor=True, normalize_embeddings=True
        )
        return embeddings.float().cpu().numpy()

    def embeddings(self, blocks: Sequence[Block], *, progress: bool = True) -> np.ndarray:
        """Return the concatenated embeddings of all blocks, float16 (sentences, d), computing missing ones."""
        parts: list[np.ndarray] = []
        total = sum(len(block.texts) for block in blocks)
        with Meter("embedding with the teacher", total, "sentences", shown=progress) as meter:
            for block in blocks:
                file = self.folder / f"{block.key}.safetensors"
                part: np.ndarray | None = None
                # A file that is missing or damaged is written again.
                with suppress(OSError, SafetensorError, KeyError):
                    part = load_file(file)["embeddings"]
                is_new = part is None or len(part) != len(block.texts)
                if part is None or is_new:
                    # Count the texts of each batch: a block can take a minute.
                    counting = self.teacher[-1].register_forward_hook(
                        lambda _, __, features: meter.update(len(features["sentence_embedding"]))
                    )
                    with torch.inference_mode(), counting:
                        part = self.encode(block.texts).astype(np.float16)
                else:
                    meter.update(len(part))
                wrong = np.flatnonzero(~np.isfinite(part).all(axis=1))
                if len(wrong):
                    raise InputError(
                        f"the teacher's embeddings must be finite numbers, got NaN or infinity for {len(wrong):,} of "
                        f"{len(part):,} texts, such as {block.texts[wrong[0]]!r:.60}; choose another teacher, or "
                        "--teacher-dtype float32"
                    )
                if is_new:
                    with replaced_file(file) as beside:
                        save_file({"embeddings": part}, beside)
                parts.append(part)
        found = np.concatenate(parts)
        if len(found) and not found.any():
            raise InputError(
                f"the teacher's embeddings must not all be zeros, got zeros for all {len(found):,} texts; choose a "
                "teacher that knows their language"
            )
        return found


def seen_in_part(teacher: SentenceTransformer, texts: Sequence[str]) -> int:
    """Return how many texts the teacher truncates; an estimate if there may be thousands."""
    most, tokenizer = teacher.max_seq_length, tokenizer_of(teacher)
    if not most or tokenizer is None:
        return 0
    # A token has at least one character.
    candidates = [text for text in texts if len(text) > most]
    if not candidates:
        return 0
    # The model's own tokenizer may cut texts already.
    whole = Tokenizer.from_str(tokenizer.to_str())
    whole.no_truncation()
    step = -(-len(candidates) // SAMPLED_TEXTS)
    sample = [well_formed(text) for text in candidates[::step]]
    longer = sum(len(encoding.ids) > most for encoding in whole.encode_batch(sample))
    return round(longer * len(candidates) / len(sample))
