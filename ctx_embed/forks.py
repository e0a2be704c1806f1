"""Let a forked child compute: OpenMP's threads do not survive a fork, and whoever asks for them would wait for ever."""

from __future__ import annotations

import os
import sys


def _use_one_thread() -> None:
    """Let torch, if models of this package run on it, and FAISS ask for no further thread."""
    if "ctx_embed.modules" in sys.modules and (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    if (faiss := sys.modules.get("faiss")) is not None:
        faiss.omp_set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_use_one_thread)
