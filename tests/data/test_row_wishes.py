from convrec.data import wish_reader as reading
from convrec.data.catalog import Catalog, Item
from convrec.data.wish_reader import wish_reader, wishes_of

CATALOG = Catalog([Item("Heat", 1995), Item("Up", 2009), Item("Dune", 2021)])
SAID = [[{"role": "user", "content": words}] for words in ("made after 2010", "made before 2000", "anything")]


def _shown(wishes):
    return [(wish.text, wish.state, wish.fits.tolist()) for wish in wishes]


def test_each_conversation_is_read_once_for_a_catalog(monkeypatch):
    reader, asked = wish_reader(CATALOG), []
    read = reader.read
    monkeypatch.setattr(reader, "read", lambda messages: asked.append(messages) or read(messages))
    for _ in range(2):
        for messages in SAID:
            found = wishes_of({"messages": messages}, CATALOG)
            assert _shown(found) == _shown(read(messages))
            found.clear()  # the caller's own list
    assert asked == SAID


def test_only_the_last_conversations_are_kept(monkeypatch):
    monkeypatch.setattr(reading, "_CELLS", 24)
    catalog = Catalog([Item("Heat", 1995), Item("Up", 2009), Item("Big", 1988)])
    for messages in SAID:
        wishes_of({"messages": messages}, catalog)
    kept = catalog.once(reading._kept_reader).cache_info()
    assert (kept.maxsize, kept.currsize) == (2, 2)
