"""Threads that share a pool of processes take turns, since its queue does not say whose results it holds."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sentence_transformers

import ctx_embed


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_threads_that_share_a_pool_take_turns(monkeypatch, precision):
    inside, most = threading.Semaphore(0), []

    def encode(self, inputs, **options):
        inside.release()
        time.sleep(0.05)
        most.append(inside._value)
        inside.acquire()
        return np.ones((len(inputs), 320), np.float32)

    model = ctx_embed.load()
    monkeypatch.setattr(sentence_transformers.SentenceTransformer, "encode", encode)
    pool = {"input": None, "output": None, "processes": []}
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda text: model.encode([text], pool=pool, precision=precision), "abcd"))
    assert most == [1, 1, 1, 1]
