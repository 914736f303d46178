import pytest

from convrec.demonstrations.prompts import choose_prompts
from convrec.project.errors import InputError

PROMPTS = [{"prompt_id": str(n), "date": f"2022-{n:02d}-15"} for n in range(1, 11)]


def test_prompts_are_chosen_up_to_a_month_and_by_share_in_their_order():
    assert [row["prompt_id"] for row in choose_prompts(PROMPTS, "2022-03", 1.0, seed=0)] == ["1", "2", "3"]
    assert choose_prompts(PROMPTS, None, 1.0, seed=0) == PROMPTS
    half = choose_prompts(PROMPTS, None, 0.5, seed=0)
    assert len(half) == 5 and half == sorted(half, key=lambda row: row["date"])
    assert half == choose_prompts(PROMPTS, None, 0.5, seed=0) != choose_prompts(PROMPTS, None, 0.5, seed=1)


@pytest.mark.parametrize(
    ("dates", "message"), [(["2022-04-01"], "'2022-03': no training prompt is as early"), ([""], "has no date")]
)
def test_a_month_that_leaves_nothing_is_told(dates, message):
    with pytest.raises(InputError, match=message):
        choose_prompts([{"date": date} for date in dates], "2022-03", 1.0, seed=0)
