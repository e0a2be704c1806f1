"""The messages of errors."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

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
