"""Documents for the search page: written for this project, on the subjects of a housing co-operative's notebook."""

from datetime import date, timedelta
from pathlib import Path
from typing import Any

# Headings are subjects; each line below has a kind and a text.
SUBJECTS = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")

# Nearly the same as documents above.
TWINS = [
    ("letter", "repairs", "The kitchen tap has been dripping for weeks now and it keeps me awake at night."),
    ("note", "cooking", "Bread dough rises better in the fridge over a whole night than in two warm hours."),
    ("minutes", "neighbours", "The summer party is on the third Saturday of July; everybody brings a dish, a chair."),
]

MARKUP = (
    "<script>document.title = 'taken over'</script> <img src=x onerror=\"document.title='taken over'\"> "
    "Typing &lt;b&gt; makes letters <b>bold</b> on the notice board's web form; \u202eplease\u202c use plain text 🙂."
)


def documents() -> tuple[list[str], list[dict[str, Any]]]:
    """Return the texts and their metadata: kind, year, written, tags, urgent, and where each comes from."""
    rows = []
    for line in filter(None, SUBJECTS.splitlines()):
        if line.startswith("# "):
            subject = line[2:]
        else:
            kind, text = line.split(": ", 1)
            rows.append((kind, subject, text))
    rows += [*TWINS, ("note", "computers", MARKUP)]
    texts, metadata = [], []
    for number, (kind, subject, text) in enumerate(rows):
        written = date(2019, 1, 14) + timedelta(days=53 * ((number * 7) % len(rows)))
        fields: dict[str, Any] = {"kind": kind, "year": written.year, "written": written.isoformat()}
        fields["tags"] = [subject, "winter" if written.month in (11, 12, 1, 2) else "other seasons"]
        fields["urgent"] = kind == "report" and number % 2 == 0
        if kind == "minutes":
            fields |= {"title": f"House meeting, {written:%B %Y}", "source": f"minutes/{written:%Y-%m}.pdf"}
            fields["page"] = 1 + number % 4
        elif kind == "note":
            fields |= {"source": f"notes/{subject}.md", "line": 3 + 4 * (number % 9)}
        texts.append(text)
        metadata.append(fields)
    return texts, metadata
