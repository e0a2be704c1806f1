"""The messages of errors, and a disk that is full, without one."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from ctx_embed.errors import InputError


def error(function: Callable[..., object], *arguments: object, **options: object) -> str:
    """Return the message of the InputError that a call, its iterator or its ``with`` block must raise."""
    with pytest.raises(InputError) as caught:
        _run_through(function(*arguments, **options))
    return str(caught.value)


def _run_through(result: object) -> None:
    if isinstance(result, Iterator):
        deque(result, maxlen=0)
    elif isinstance(result, AbstractContextManager):
        with result:
            pass


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let this process write no file beyond a size inside the block: the system answers as a full disk does."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
