import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.data.catalog import Catalog, Item
from convrec.data.conversations import messages_of, transcript
from convrec.data.mentions import Mentions
from convrec.data.sources.synthetic import embedded_catalog, simulate
from tests.rows import make_items

MENTIONS = Mentions(
    Catalog(
        make_items(
            "Heat (1995) | Her (2013) | Up (2009) | Alien (1979) | Alien 3 (1992) | The Matrix (1999) | "
            "The Dark Knight (2008) | Toy Story (1995) | 300 (2006) | Monsters, Inc. (2001) | "
            "Schindler's List (1993) | Lilo & Stitch (2002) | Pride and Prejudice (2005) | Amélie (2001) | A (1998) | "
            "Leon (1994) = The Professional"
        )
    )
)


UNSPACED = Mentions(
    Catalog(
        make_items(
            "英雄 (2002) | 花样年华 (2000) | 無間道 (2002) | 無間道II (2003) | 七人の侍 (1954) | もののけ姫 (1997) | "
            "アバター (2009) | ต้มยำกุ้ง (2005) | Heat (1995) | SPY×FAMILY CODE: White (2023) = 劇場版 SPY×FAMILY"
        )
    )
)


BY_SIGNS = Mentions(Catalog(make_items("C++ Primer | C# Primer | Help! | Help | दाल | दिल | ガラス | カラス")))


WITHOUT_TITLES = ["in the heat of summer, an alien", "Aliens", "the matrix of toy story", "Toy\nStory"]
WITHOUT_TITLES += ["User: Up there\nAssistant: Her?"]


@pytest.mark.parametrize(
    ("mentions", "text", "titles"),
    [
        *((MENTIONS, text, []) for text in WITHOUT_TITLES),
        (MENTIONS, "I loved Heat and Alien", ["Heat", "Alien"]),
        (MENTIONS, 'something like "heat", or *alien*', ["Heat", "Alien"]),
        (MENTIONS, "Alien 3 was worse", ["Alien 3"]),
        (MENTIONS, "the Matrix; the dark knight", ["The Matrix", "The Dark Knight"]),
        (MENTIONS, "Her job. Up to 300 people saw Up", ["Up"]),
        (MENTIONS, "Monsters, Inc., Up and Her", ["Monsters, Inc.", "Up", "Her"]),
        (MENTIONS, "I saw The Professional", ["The Professional"]),
        (MENTIONS, "up (2009–2011) and her (2013 - )", ["Up", "Her"]),
        (MENTIONS, "Alien's mood, Heat’s ending, Schindler's List's score", ["Alien", "Heat", "Schindler's List"]),
        (MENTIONS, "Lilo and Stitch, Pride & Prejudice", ["Lilo & Stitch", "Pride and Prejudice"]),
        (MENTIONS, "Amelie, or Ame\u0301lie", ["Amélie"]),
        (MENTIONS, "a good comedy, a (1998)", ["A"]),
        (UNSPACED, "我喜欢花样年华，请推荐类似的电影", ["花样年华"]),
        (UNSPACED, "他是我们的英雄", []),
        (UNSPACED, "我喜欢《英雄》和花样年华", ["英雄", "花样年华"]),
        (UNSPACED, "無間道II比無間道好看", ["無間道II", "無間道"]),
        (UNSPACED, "昨日は七人の侍を見ました。もののけ姫も好き", ["七人の侍", "もののけ姫"]),
        (UNSPACED, "アバター(2009)とアバターズ", ["アバター"]),
        (UNSPACED, "ผมชอบหนังต้มยำกุ้งมาก", ["ต้มยำกุ้ง"]),
        (UNSPACED, "推荐像Heat一样的电影", ["Heat"]),
        (UNSPACED, "我看了劇場版 spy×family很喜歡", ["劇場版 SPY×FAMILY"]),
        (BY_SIGNS, "read C++ Primer again", ["C++ Primer"]),
        (BY_SIGNS, "I liked Help! and", ["Help!"]),
        (BY_SIGNS, "I liked HELP? and", ["Help"]),
    ],
)
def test_titles_in_a_text_in_scripts_without_spaces_and_by_signs_and_marks(mentions, text, titles):
    assert mentions.titles([text]) == titles


def test_a_text_of_many_lines_takes_no_longer_than_it_is_long():
    text = "\n" * 100_000 + "Her"
    assert MENTIONS.titles([text * 3]) == []


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("the " * 60_000, [f"The {name} {number}" for number in range(400) for name in ("Big", "Best", "the")]),
        ("劇場版" * 40_000, [f"劇場版{chr(0x4E00 + number)}英雄" for number in range(1200)]),
    ],
)
def test_more_titles_that_begin_as_the_text_does_take_no_longer(text, titles):
    """A request of this size was compared with every title at every word: 480 titles took 7.5 s."""
    few, many = (Mentions(Catalog([Item(title, None) for title in own])) for own in (titles[:30], titles))
    seconds = []
    for mentions in (few, many):
        start = time.thread_time()
        assert mentions.titles([text]) == []
        seconds.append(time.thread_time() - start)
    assert seconds[1] < 3 * seconds[0] + 1


def test_what_the_embedded_world_s_users_name_is_found_unless_mistyped():
    catalog = embedded_catalog()
    rows, _ = simulate(catalog, 3, 300, ["2022-01"], 20)
    mentions, found, missed, invented = Mentions(catalog), 0, 0, 0
    for row in rows.drop_duplicates("prompt_id").to_dict("records"):
        named, seen = set(mentions.titles(m["content"] for m in row["messages"])), set(row["seen_titles"])
        found, missed, invented = found + len(named & seen), missed + len(seen - named), invented + len(named - seen)
    assert found > 400 and missed < 0.05 * found and invented < 0.01 * found


ROLES = st.sampled_from(["user", "assistant", "system"])


@given(st.lists(st.tuples(ROLES, st.text(st.characters(exclude_characters="\r\n"), min_size=1)), min_size=1))
def test_a_transcript_is_read_back(turns):
    messages = [{"role": role, "content": content} for role, content in turns]
    assert messages_of(transcript(messages)) == messages


def test_words_without_a_role_are_the_user_s():
    assert messages_of("a film\nwith Heat") == [{"role": "user", "content": "a film\nwith Heat"}]
    assert messages_of("hi\nAssistant: hello\nyou\nUser: ") == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello\nyou"},
        {"role": "user", "content": ""},
    ]
    assert messages_of("") == []
