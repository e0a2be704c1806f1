"""The messages of errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ctx_embed.errors import InputError


def error(function: Callable[..., object], *arguments: object, **options: object) -> str:
    """Return the message of the InputError that a call must raise."""
    with pytest.raises(InputError) as caught:
        function(*arguments, **options)
    return str(caught.value)
