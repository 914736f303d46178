import torch
from hypothesis import given
from hypothesis import strategies as st

from convrec.data.catalog import Item
from convrec.training.embedded import END, train_tokenizer
from convrec.training.rl.segmentation import newline_counts, segment_ranks

ITEMS = [Item("The Matrix", 1999), Item("Dune", 2021), Item("Up", 2009), Item("Heat", 1995)]
LINES = [str(item) for item in ITEMS]


def _loop(ids: list[list[int]], mask: list[list[int]], counts: list[int]) -> list[list[int]]:
    ranks = []
    for row, kept in zip(ids, mask, strict=True):
        rank, out = 0, []
        for token, real in zip(row, kept, strict=True):
            out.append(rank if real else -1)
            if real:
                rank += counts[token]
        ranks.append(out)
    return ranks


@given(st.data())
def test_ranks_equal_a_loop_over_tokens(data):
    vocab, length, rows = 7, data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    counts = data.draw(st.lists(st.integers(0, 2), min_size=vocab, max_size=vocab))
    row = st.lists(st.integers(0, vocab - 1), min_size=length, max_size=length)
    ids = data.draw(st.lists(row, min_size=rows, max_size=rows))
    lengths = data.draw(st.lists(st.integers(0, length), min_size=rows, max_size=rows))
    mask = [[1] * n + [0] * (length - n) for n in lengths]
    found = segment_ranks(torch.tensor(ids), torch.tensor(mask), torch.tensor(counts))
    assert found.tolist() == _loop(ids, mask, counts)


def test_a_real_tokenizer_puts_every_title_at_its_line():
    tokenizer = train_tokenizer(["\n".join(LINES)] * 5, ITEMS, vocab_size=400)
    counts = newline_counts(tokenizer)
    ids = tokenizer("\n".join(LINES) + END, add_special_tokens=False).input_ids
    ranks = segment_ranks(torch.tensor([ids]), torch.ones(1, len(ids)), counts)[0].tolist()
    for rank, line in enumerate(LINES):
        text = tokenizer.decode([i for i, r in zip(ids, ranks, strict=True) if r == rank], skip_special_tokens=True)
        assert text.strip("\n") == line
    assert ranks[-1] == len(LINES) - 1, "EOS belongs to the last item"
