"""How the files of a folder that an index follows become documents; ``sync.py`` reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ctx_embed.errors import InputError, quoted
from ctx_embed.options import documented, option, require_valid
from ctx_embed.reading.rows import Fields
from ctx_embed.texts import as_list


@documented
@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """How the files of a folder become documents. The index stores them, and options left out stay as they are.

    Raises:
        InputError: a value has the wrong type, or there is no such unit of documents.
    """

    include: Sequence[str] = option(
        (), "Globs such as '*.md', one of which a file of a folder must match.", metavar="GLOB"
    )
    exclude: Sequence[str] = option((), "Globs of files and folders to leave out, such as 'drafts/'.", metavar="GLOB")
    documents: Literal["files", "paragraphs", "lines", "records"] | None = option(
        None, "What becomes a document.", default_is="files, and records that have a text; of named text files lines"
    )
    text_field: Sequence[str] | str | None = option(
        None,
        "The field of records that holds the text, e.g. body or message.body, joined if several.",
        flag="--field",
        metavar="NAME",
        repeated=True,
        default_is="text; in folders the only column of prose",
    )
    id_field: str | None = option(None, "The field of records that holds the id.", metavar="NAME", default_is="id, _id")
    title_field: str | None = option(
        None, "The field of records that holds the title.", metavar="NAME", default_is="title"
    )
    follow_links: bool | None = option(
        None, "Read files outside the folder to which links in it point.", default_is="no"
    )

    @property
    def fields(self) -> Fields:
        """The fields of records."""
        return Fields(self.text_field, self.id_field, self.title_field)

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            globs = as_list(getattr(self, name), name, "a list of globs")
            if not all(isinstance(glob, str) for glob in globs):
                raise InputError(f"{name} must be a list of globs, got {quoted(globs)}")
            object.__setattr__(self, name, tuple(globs))
        object.__setattr__(self, "text_field", self.fields.text or None)
        require_valid(self)
