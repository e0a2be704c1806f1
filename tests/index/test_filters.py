from datetime import date, timedelta
from functools import partial
from time import process_time

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ctx_embed import SearchIndex
from ctx_embed.errors import UnknownFieldsWarning, quoted
from ctx_embed.index.filters import parse_filter
from tests.helpers.errors import error
from tests.index.support.hash_model import HashModel

DOCUMENTS = {
    "a": {"year": 2020, "lang": "en", "tags": ["x", "y"], "stars": 4.5, "good": True, "by": {"name": "Ann", "age": 30}},
    "b": {"year": 2019, "lang": "fr", "tags": ["y"], "stars": 3, "good": False, "odd name!": 1},
    "c": {"year": "2021", "lang": "english", "tags": "xylophone", "ü": "é"},
    "d": {"year": None, "quote": 'say "hi"', "tags": [1, True, None]},
    "e": {},
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    with SearchIndex.create(tmp_path_factory.mktemp("filters") / "index", HashModel()) as index:
        index.add([f"text {name}" for name in DOCUMENTS], list(DOCUMENTS), list(DOCUMENTS.values()))
        yield index


FOUND = {
    "year >= 2020": "a",
    "year <> 2021 and (year = 2019 OR year == 2020)": "ab",
    "year != 2020": "bc",
    "not year = 2020": "bcde",
    "year is null": "de",
    "year is not null": "abc",
    'lang in ("en", "fr")': "ab",
    'lang not in ("en", "fr")': "c",
    'lang contains "en"': "ac",
    'tags contains "x"': "ac",
    "tags contains 1": "d",
    "tags contains true": "d",
    "stars >= 3.0 and stars < 4.5": "b",
    "good != true": "b",
    "good = 1": "",
    'by.name = "Ann" and by.age >= 30': "a",
    "`odd name!` = 1": "b",
    "ü = 'é'": "c",
    r'quote = "say \"hi\""': "d",
    '(year >= 2019 and (lang = "fr" or lang = "en")) and not good = false': "a",
    "YEAR >= 2020": "",
}


@pytest.mark.filterwarnings("ignore::ctx_embed.errors.UnknownFieldsWarning")
@pytest.mark.parametrize("mode", ["hybrid", "words"])
def test_a_filter_finds_the_documents_that_meet_it(kept, mode):
    found = {where: kept.search("text", k=10, where=where, mode=mode) for where in FOUND}
    assert {where: "".join(sorted(hit.id for hit in hits)) for where, hits in found.items()} == FOUND


EXAMPLE = '; an example: year >= 2020 and lang = "en"'
VALUE = 'a number, a "string", true or false'


def test_a_filter_that_cannot_be_understood_is_one_line(kept):
    for where, message in (
        ("", "expected the name of a field at the end"),
        ("year", "expected =, !=, <, <=, >, >=, in, contains or is at the end"),
        ("year >=", f"expected {VALUE} at the end"),
        ("year = en", f"expected {VALUE} at character 8, got 'en'"),
        ("year = 1 lang = 2", "expected 'and', 'or' or the end at character 10, got 'lang'"),
        ("(year = 1", "expected ')' at the end"),
        ("year in 3", "expected '(' at character 9, got '3'"),
        ("year in (3", "expected ',' or ')' at the end"),
        ("year not = 3", "expected 'in' at character 10, got '='"),
        ("year is 3", "expected 'null' at character 9, got '3'"),
        ("year = 'open", '"\'" at character 8 is not part of a filter'),
        ("year = 12ab", "'1' at character 8 is not part of a filter"),
        ("year = 99999999999999999999", "the number 99999999999999999999 does not fit into 64 bits"),
        ("year = 1e999", "the number 1e999 is too large"),
        ('`a"b` = 1', "'`a\"b`' cannot be the name of a field"),
        ("`` = 1", "'``' cannot be the name of a field"),
        ("a = '\0'", "the string at character 5 has a NUL or a lone surrogate"),
    ):
        assert error(kept.search, "text", where=where) == f"filter {where!r}: {message}{EXAMPLE}"


def test_the_largest_filters_are_read_and_larger_ones_refused_in_linear_time(kept):
    values = ", ".join(str(number) for number in range(10_000))
    assert kept.ids(f"year in ({values})") == ["a", "b"]
    assert kept.ids(" or ".join(f"year = {number}" for number in range(1900, 2100)))
    assert kept.ids(f"not year = 0.{'1' * 998}")
    for where, message in (
        (f"year in ({'1,' * 10_000}1)", "it has more than 10,000 values"),
        (f"year in ({'1,' * 500_000}1)", "it has 1,000,011 characters, more than 1,000,000"),
        (f"year = 0.{'1' * 999}", "the number at character 8 has 1,001 characters"),
        (f"year = {'1' * 900_000}x", "'1' at character 8 is not part of a filter"),
        (f"year = 1{' ' * 900_000}?", "'?' at character 900009 is not part of a filter"),
        (f"year = {'x' * 900_000}", f"expected {VALUE} at character 8, got {quoted('x' * 900_000)}"),
        (" or ".join(f"year in ({'1,' * 99}1)" for _ in range(101)), "it has more than 10,000 values"),
        (" or ".join(["year = 1"] * 201), "it has more than 200 comparisons; use 'in' with a list"),
        (f"{'z' * 1001} = 1", "it has the name of a field of more than 1,000 characters"),
        ("(" * 60 + "a = 1" + ")" * 60, "it is nested more than 50 levels deep"),
    ):
        began = process_time()
        said = error(parse_filter, where)
        assert process_time() - began < 1
        assert said.startswith(f"filter {quoted(where)}: {message}")
    assert error(parse_filter, 5) == "the filter must be a string, e.g. 'year >= 2020', got an int"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=6)
    | st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
)
def test_a_value_finds_itself_however_it_is_written(index, value):
    index.upsert(["with", "without"], ["with", "without"], [{"field": value}, {"field": "something else, longer"}])
    written = str(value).lower()
    if isinstance(value, str):
        written = '"{}"'.format(value.replace("\\", "\\\\").replace('"', '\\"'))
    assert index.ids(f"field = {written}") == ["with"]


def test_dates_are_compared_as_times(index):
    dates = ["2024-01-30", "2024-01-31", "2024-01-31T10:00:00", "2024-01-31T23:59:59.999Z", "2024-02-01 00:30:00+01:00"]
    dates += ["2024-02-01", "2024", "no date", 20240131]
    index.add(["text"] * len(dates), list("abcdefghi"), [{"on": value} for value in dates])
    for where, found in (
        ('on = "2024-01-31"', "bcde"),
        ('on >= "2024-01-31"', "bcdefh"),
        ('on > "2024-01-31"', "fh"),
        ('on <= "2024-01-31"', "abcdeg"),
        ('on < "2024-01-31"', "ag"),
        ('on = "2024-01-31T11:00+01:00"', "c"),
        ('on > "2024-01-31T23:00Z" and on < "2024-02-01"', "de"),
        ('on in ("2024-01-30", "2024", 20240131)', "agi"),
        ('on not in ("2024-01-30", "2024-02-01")', "bcdeghi"),
        ('on <= "9999-12-31"', "abcdefg"),
    ):
        assert "".join(index.ids(where)) == found, where


def test_a_date_that_is_no_iso_date_is_an_error(index):
    index.add(["a", "b"], [1, 2], [{"on": "2024-06-03", "written": "03.06.2024"}, {"on": "2023-06-03T10:00Z"}])
    others = [
        "01.06.2024",
        "1.6.2024 10:00",
        "1/6/2024",
        "06/01/24",
        "01.06.24",
        "2024/06/01",
        "2024.6.1",
        "01-06-2024",
    ]
    others += ["2024-6-1", "2024-13-45", "2023-02-29", "2024-06-01 25:00", "2024-06-01T10", "1 June 2024"]
    others += ["1st Jun 2024", "June 1, 2024", "jun. 1st 2024", "1-Jan-2024", "Sat, 1 Jun 2024 10:00:00 +0200"]
    for written in others:
        for operator in ("<", ">="):
            # Whatever the index holds.
            said = error(index.ids, f'nosuch {operator} "{written}"')
            assert f"'{written}' is no ISO date; write dates as \"2024-01-31\"" in said
        for where in (f'on != "{written}"', f'not (on in ("x", "{written}"))'):
            said = error(index.ids, where)
            assert f"'on' has dates such as '2024-06-03', and the filter '{written}'; write both as ISO dates" in said
        assert index.ids(f'written = "{written}"') == []
    for operator in ("<", "<=", ">", ">=", "=", "!="):
        assert "the field 'written' has dates such as '03.06" in error(index.ids, f'written {operator} "2024-06-01"')
    assert index.ids('written = "03.06.2024"') == [1]
    assert index.ids('on contains "01.06.2024"') == []
    # Versions, addresses, numbers and parts of ISO dates are strings.
    for text in ("1.10.2", "10.0.0.1", "2024", "2024-06", "20240601", "555-12-12", "3/4", "May", "June 2024", ""):
        assert index.ids(f'on > "{text}" or on <= "{text}"') == [1, 2]


def test_a_string_compared_with_numbers_is_an_error(index):
    fields = [{"n": 5, "mixed": 5, "flag": True, "list": [4], "by": {"n": 5}}, {"n": 7.5, "mixed": "400"}, {"n": None}]
    index.add(["a", "b", "c"], [1, 2, 3], fields)
    forms = ['{} = "400"', '{} != "400"', '{} > "400"', '{} in ("4", "400")', '{} contains "4"']
    for form in (*forms, 'not {} <= "2024-01-31"', 'n = 5 and not {} = "400"', '{} is null or {} < "400"'):
        for field in ("flag", "by.n"):
            where = form.replace("{}", field)
            for call in (index.ids, index.count, index.ids, partial(index.search, "a"), index.delete):
                said = f"the field '{field}' has no text, but numbers, true or false; compare it with these, without"
                assert error(call, where=where) == f"{said} quotation marks"
        assert index.ids(form.replace("{}", "mixed")) is not None
    # What else the field is compared with decides.
    assert index.ids('n = "unknown" or n > 5') == [2]
    assert index.ids('list contains "4"') == []
    index.add(["d"], [4], [{"n": "400"}])
    assert index.ids('n = "400"') == [4]
    index.delete(4)
    assert "has no text" in error(index.ids, 'n = "400"')


# Times as people and programs write them, with their nanoseconds since 2024-05-01T17:00Z.
TIMES = {
    "2024-05-01T17:00": 0,
    "2024-05-01T12:00:00-0500": 0,
    "2024-05-01T12:00:00-05": 0,
    "2024-05-01T22:30:00+05:30": 0,
    "2024-05-01T17:00:00.000001Z": 1_000,
    "2024-05-01T17:00:00.000001500+00:00": 1_500,
    "2024-05-01T12:00:00.0000015-0500": 1_500,
    "2024-05-01T16:59:59.9999999995Z": -1,
    "2024-05-01": -61_200_000_000_000,
    "2024-04-30T23:59:59.9999999-01:00": -57_600_000_000_100,
    "0001-01-01T00:00:00Z": -(10**20),
    "9999-12-31T23:59:59.999999Z": 10**21,
}


def test_times_are_compared_to_the_nanosecond_whatever_their_offset(index):
    texts = [*TIMES, "no time", "2024-05-01T17:00:00 or so", "2024-13-01"]
    index.add(["text"] * len(texts), ids=texts, metadata=[{"on": text} for text in texts])
    for text, value in TIMES.items():
        if len(text) == len("2024-05-01"):
            continue
        at = {other for other, its in TIMES.items() if its == value}
        for where in (f"on = '{text}'", f"on in ('{text}', 'x')"):
            assert set(index.ids(where)) == at
        before = {other for other, its in TIMES.items() if its < value}
        assert TIMES.keys() & {*index.ids(f"on < '{text}'")} == before
        assert TIMES.keys() & {*index.ids(f"on >= '{text}'")} == TIMES.keys() - before
    # Ten thousand can be listed.
    days = [str(date(2024, 5, 1) + timedelta(days=number)) for number in range(5_000)]
    listed = [repr(value) for value in (*days[1:], *(f"{day}T18:00:00+01:00" for day in days))]
    assert index.ids(f"on in ({', '.join(listed)})") == [text for text, value in TIMES.items() if value == 0]
    assert index.ids("on = '2024-05-01T17:00:00 or so'") == ["2024-05-01T17:00:00 or so"]


def test_a_field_that_no_document_has_is_warned_of_once(index):
    assert index.count("nowhere = 1") == 0
    index.add([f"text {name}" for name in DOCUMENTS], list(DOCUMENTS), list(DOCUMENTS.values()))
    for name, where, call in (
        ("yeer", "yeer = 2020", partial(index.search, "text")),
        ("lang2", "not (lang2 = 'en' or year > 1)", index.count),
        ("by.nam", "by.nam = 'Ann'", index.documents),
        ("languages", "languages in ('en', 'fr')", partial(index.facets, "year")),
        ("deleted", "deleted = 1 and yeer = 2020", index.delete),
    ):
        said = rf"^no document has a field '{name}' \(fields: by, .*ü\)$"
        with pytest.warns(UnknownFieldsWarning, match=said) as found:
            call(where=where)
        assert [warning.filename for warning in found] == [__file__]
        call(where=where)
    with pytest.warns(UnknownFieldsWarning, match="'autor'"):
        assert index.facets("autor") == []
    with pytest.warns(UnknownFieldsWarning, match="^no document has a number in the field 'by.name'"):
        assert index.count("by.name in (1, 2)") == 0
    assert (index.count("year > 2020 or good = 1"), index.count("lang = 'en'")) == (0, 1)
    # These ask for documents without the field, or name it as optional.
    assert index.count("archived is null and (hidden is null or hidden = false)") == len(index)
    assert index.count("year = 2020 or by.age > 20") == 1
