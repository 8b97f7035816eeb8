"""Stop strings in a text that comes in pieces: the same as a search in the whole text, at a cost that does not grow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from orca_master.text.stop_strings import StopSearch, _borders

letters = st.text("ab", max_size=12)


@given(pieces=st.lists(letters, max_size=6), strings=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4))
def test_as_a_search_in_the_whole_text(pieces, strings):
    search, text = StopSearch(strings), ""
    for piece in pieces:
        hit = search.feed(piece)
        text += piece
        places = [(text.find(string), string) for string in strings if string in text]
        if places:
            place, string = min(places, key=lambda found: (found[0], -len(found[1])))
            assert hit == (len(text) - place, string)
            return
        assert hit is None
        beginnings = [string[:length] for string in strings for length in range(1, len(string))]
        assert search.longest_beginning == max((len(part) for part in beginnings if text.endswith(part)), default=0)


@given(before=letters, after=letters, strings=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4))
def test_strings_that_end_in_an_ignored_text_are_no_matches_and_those_that_begin_there_are(before, after, strings):
    search, text = StopSearch(strings), before + after
    assert search.feed(before, ignores=True) is None
    ends = {string: text.find(string, max(0, len(before) - len(string) + 1)) for string in strings}
    places = [(place, string) for string, place in ends.items() if place >= 0]
    hit = search.feed(after)
    if places:
        place, string = min(places, key=lambda found: (found[0], -len(found[1])))
        assert hit == (len(text) - place, string)
    else:
        assert hit is None


class Counted(str):
    """A string that counts how often one of its characters is read."""

    reads = 0

    def __getitem__(self, key):
        Counted.reads += 1
        return super().__getitem__(key)


def test_a_long_common_beginning_costs_no_more_than_a_short_one():
    """16 strings of 1,024 characters, of which 1,023 match, over and over."""
    strings = [Counted("a" * 1023 + last) for last in "bcdefghijklmnopq"]
    search = StopSearch(strings)
    search.feed("a")  # the tables
    Counted.reads = 0
    for _ in range(5000):
        assert search.feed("a") is None
    assert search.longest_beginning == 1023
    assert Counted.reads <= 4 * 5000 * len(strings)


def test_the_tables_of_more_strings_than_the_cache_holds_are_computed_once():
    """One client with many long stop strings must not slow the others."""
    searches = [StopSearch([f"{number}-{other}" for other in range(16)]) for number in range(40)]
    before = _borders.cache_info().misses
    for _ in range(3):
        for search in searches:
            assert search.feed("a") is None
    assert _borders.cache_info().misses == before
