"""The report of a synchronisation of an index with a folder."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice

from ctx_embed.documents.formats import EXTRA
from ctx_embed.documents.walking import PLURALS
from ctx_embed.errors import missing_extra

# At most this number of files that could not be read are named.
NAMED = 10
# Maximum characters of a file's path in a message; a longer path is shortened in the middle.
SHOWN = 160


@dataclass
class Synced:
    """The report of a synchronisation.

    Args:
        added: the number of files that are new in the index.
        changed: the number of files whose documents were replaced.
        removed: the number of files whose documents were removed, as the files are gone or now left out.
        unchanged: the number of files that have not changed.
        documents: the number of documents added or replaced.
        passages: the number of their passages.
        skipped: how many files and folders were left out, by reason.
        lacking: the number of files that need the extra ``documents``, by suffix.
        failed: the reasons why files could not be read, by their path within the folder.
        tables: of a dry run, how the records of new and changed files would be read, by their path within the folder.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    documents: int = 0
    passages: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    lacking: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> int:
        """The number of files whose documents are in the index now."""
        return self.added + self.changed + self.unchanged

    def __iadd__(self, other: Synced) -> Synced:
        """Add the report of another synchronisation."""
        for name in ("added", "changed", "removed", "unchanged", "documents", "passages"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.skipped += other.skipped
        self.lacking += other.lacking
        self.failed |= other.failed
        return self

    @property
    def left_out(self) -> str:
        """A message that says which files were not read, and why; empty if all were read."""
        counts = self.skipped.most_common()
        said = [f"{count} {PLURALS.get(reason, reason) if count > 1 else reason}" for reason, count in counts]
        named = []
        for source, reason in islice(self.failed.items(), NAMED):
            shown = source if len(source) <= SHOWN else f"{source[: SHOWN // 2]}…{source[-(SHOWN // 2) :]}"
            named.append(f"{shown} ({reason})")
        if len(self.failed) > NAMED:
            named.append(f"{len(self.failed) - NAMED} more")
        parts = [f"skipped {', '.join(said)}"] if said else []
        if named:
            parts.append(f"could not read {', '.join(named)}")
        if self.lacking:
            lacking = ", ".join(f"{count} {suffix}" for suffix, count in self.lacking.most_common())
            parts.append(str(missing_extra(f"left out {lacking}, which", EXTRA)))
        # Names of files may contain line ends, escape sequences and bytes that are not UTF-8.
        return "".join(character if character.isprintable() else "?" for character in "; ".join(parts))

    def leave_out(self, source: str, reason: str, *, named: bool) -> None:
        """Record that a file was left out: by its name, or only in the count of files left out for the same reason."""
        if named:
            self.failed[source] = reason
        else:
            self.skipped[reason] += 1
