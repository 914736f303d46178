"""Which prompts of a split are used where there are more than wanted."""

import pandas as pd
import pytest

from convrec.data.conversations import distinct_prompts, read_prompts, write_rows

_ROWS = [
    {"prompt_id": prompt, "user_id": user, "conversation_id": conversation}
    for prompt, user, conversation in [
        ("a1", "u1", "c1"),
        ("a1", "u1", "c1"),
        ("a2", "u1", "c2"),
        ("a3", "u1", "c3"),
        ("b1", "u2", "c4"),
        ("b2", "u2", "c5"),
        ("x1", "", "c6"),
        ("x2", "", "c6"),
        ("y1", "", "c7"),
    ]
]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0, []),
        (2, ["a1", "b1"]),
        (4, ["a1", "b1", "x1", "y1"]),
        (6, ["a1", "a2", "b1", "b2", "x1", "y1"]),
        (7, ["a1", "a2", "b1", "b2", "x1", "x2", "y1"]),
        (None, ["a1", "a2", "a3", "b1", "b2", "x1", "x2", "y1"]),
    ],
)
def test_each_persons_first_prompt_comes_before_anyones_second(limit, expected):
    assert [row["prompt_id"] for row in distinct_prompts(_ROWS, limit)] == expected


def test_all_rows_of_the_chosen_prompts_are_read(tmp_path):
    write_rows(pd.DataFrame(_ROWS), tmp_path / "rows.parquet")
    rows, prompts = read_prompts(tmp_path / "rows.parquet", 2)
    assert [row["prompt_id"] for row in rows] == ["a1", "a1", "b1"]
    assert [row["prompt_id"] for row in prompts] == ["a1", "b1"]
