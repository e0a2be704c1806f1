"""Documents for the search page: written for this project, on the subjects of a housing co-operative's notebook."""

import re
from datetime import date, timedelta
from typing import Any

# A kind and a text for each line; long ones have several sentences, and lines.
SUBJECTS: dict[str, str] = {
    "repairs": """
        report: Since the storm, water drips through the ceiling of the attic flat, and two buckets fill every night.
        report: The radiator in the hall stays cold although all the others are hot; it probably needs bleeding.
        letter: The front door no longer closes by itself. I have oiled the hinges twice, but the spring at the top
          is worn out. Please have somebody replace it before winter, because the stairwell is freezing already.
        report: Mould has come back behind the wardrobe on the north wall of the second bedroom.
        minutes: The roofer offers to replace the broken tiles and the gutter for four thousand, work to begin in
          May.
        report: The boiler switched itself off three times this week. The technician found a blocked filter and low
          pressure. He cleaned the filter, refilled the system and asked us to watch the gauge. If it falls below one
          bar again within a month, there is a leak somewhere in the heating pipes, and the floor of the laundry would
          be the first place to look. Until then we should keep the bathroom radiators open so that water keeps moving,
          and write the pressure into the list beside the boiler every Sunday evening. The bill will come by post; it
          goes to the maintenance account and not to the tenants.
        letter: The kitchen tap has been dripping for weeks and keeps me awake at night.
        report: A pane of the cellar window is cracked and rain runs down onto the bicycles.
    """,
    "garden": """
        note: Plant the garlic in October, a hand's width apart, and cover the bed with straw.
        note: The tomatoes under the glass roof had blight again; next year we should leave more room between plants.
        minutes: The apple tree by the gate will be pruned in February by the two of us who took the course.
        note: Slugs ate every lettuce in one night, so the seedlings go into the cold frame from now on.
        letter: Could the children have a corner of the garden for sunflowers and a sandpit?
        note: Collect rain in the three barrels and water the beans early in the morning, never at noon.
        note: The compost is too wet: mix in dry leaves and torn cardboard.
    """,
    "travel": """
        note: The night train to the coast leaves at ten and is cheaper than flying if you book a month ahead.
        note: For the walk over the pass take the early bus; the last one back goes at half past six.
        letter: Our flight was cancelled because of fog, and the airline paid for the hotel after one phone call.
        note: The ferry takes bicycles free of charge from Monday to Friday.
        note: In the old harbour town you can rent a room above the bakery and wake up to the smell of bread.
    """,
    "cooking": """
        note: Soak the chickpeas overnight, cook them with a bay leaf and salt them at the end.
        note: The secret of the soup is to roast the pumpkin first, with ginger and a little cinnamon.
        note: Bread dough rises better in the refrigerator over a whole night than in two warm hours.
        letter: The plum cake at the summer party was wonderful; would you share the recipe?
        note: Fry the onions slowly until they are brown and sweet before anything else goes into the pan.
    """,
    "money": """
        minutes: The rent rises by two per cent in January to pay for the insulation of the north wall.
        minutes: Heating costs fell by a fifth since the windows were replaced, less than the engineer had promised.
        report: The reserve fund stands at thirty-one thousand, enough for the roof but not for the lift.
        letter: I lost my job and cannot pay the full rent this month; may I pay in two parts?
        minutes: The bank offers a loan at three per cent over ten years if all members sign.
    """,
    "computers": """
        report: The wireless network is slow on the top floor; a second access point in the stairwell would help.
        note: To print from a telephone, join the guest network and choose the printer in the office.
        report: The calendar showed bookings twice after the update; clearing the cache on the tablet fixed it.
        letter: Somebody sent an e-mail in the name of the board that asks for passwords. Do not answer it.
        note: Backups of the accounts run every night, and a copy goes to the safe at the bank each month.
    """,
    "neighbours": """
        letter: Please do not practise the trumpet after nine; my daughter gets up at five for the early shift.
        minutes: The music school may use the common room on Tuesdays until eight in the evening.
        letter: Thank you for looking after the cat while I was in hospital. She has put on weight.
        note: Found in the laundry: one child's glove, red, and a key with a wooden fish on it.
        minutes: The summer party is on the second Saturday of July; everybody brings a dish and a chair.
        letter: A dog has been barking in the yard all night for a week. Could we talk about it, please?
    """,
}

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
    rows = [
        (kind, subject, " ".join(text.split()))
        for subject, lines in SUBJECTS.items()
        for kind, text in re.findall(r"^ {8}(\w+): (.*(?:\n {10}.*)*)", lines, re.MULTILINE)
    ]
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
