"""Which prompts of a split are used where there are more than wanted."""

import pandas as pd

from convrec.data.conversations import distinct_prompts, read_prompts, write_rows

_IDS = [("a1", "u1", "c1"), ("a1", "u1", "c1"), ("a2", "u1", "c2"), ("a3", "u1", "c3")]
_IDS += [("b1", "u2", "c4"), ("b2", "u2", "c5"), ("x1", "", "c6"), ("x2", "", "c6"), ("y1", "", "c7")]
_ROWS = [dict(zip(("prompt_id", "user_id", "conversation_id"), ids, strict=True)) for ids in _IDS]


def test_nobodys_second_prompt_is_drawn_before_all_peoples_first():
    every = ["a1", "a2", "a3", "b1", "b2", "x1", "x2", "y1"]
    for limit in (None, *range(9)):
        chosen = [row["prompt_id"] for row in distinct_prompts(_ROWS, limit)]
        assert chosen == [name for name in every if name in chosen] and len(chosen) == (8 if limit is None else limit)
        of_person = [sum(name[0] == person for name in chosen) for person in "abxy"]
        of_all = [3, 2, 2, 1]
        assert all(max(of_person) - 1 <= of_person[place] or of_person[place] == of_all[place] for place in range(4))
    moved = {row["prompt_id"] for row in distinct_prompts(_ROWS[::-1], 5)}
    assert moved == {row["prompt_id"] for row in distinct_prompts(_ROWS, 5)} != {"a1", "b1", "x1", "y1", "a2"}


def test_all_rows_of_the_chosen_prompts_are_read(tmp_path):
    write_rows(pd.DataFrame(_ROWS), tmp_path / "rows.parquet")
    rows, prompts = read_prompts(tmp_path / "rows.parquet", 7)
    chosen = [row["prompt_id"] for row in prompts]
    assert chosen.count("a1") == 1 and [row["prompt_id"] for row in rows].count("a1") == 2
    assert [row["prompt_id"] for row in rows] == [row["prompt_id"] for row in _ROWS if row["prompt_id"] in chosen]
