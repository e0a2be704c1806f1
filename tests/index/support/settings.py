"""Change the settings of an index as nobody else does."""

import json
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any


def changed_settings(path: Path, **changes: Any) -> None:
    """Change some settings of an index, with a checksum that fits."""
    with closing(sqlite3.connect(path / "index.sqlite")) as connection:
        (content,) = connection.execute("SELECT content FROM settings WHERE name = 'present'").fetchone()
        content = json.dumps(json.loads(content) | changes)
        values = (content, zlib.crc32(content.encode()))
        connection.execute("UPDATE settings SET content = ?, checksum = ? WHERE name = 'present'", values)
        connection.commit()
