"""The quarantine's errors."""

import pytest

from convrec.project.errors import InputError


def test_too_many_unusable_rows_are_an_error_with_an_example_of_each_reason(tmp_path, quarantine):
    quarantine.count("turns", 4)
    quarantine.add("turns", 3, "no text", "x" * 100)
    quarantine.add("turns", 4, "no text", "")
    quarantine.add("turns", 7, "no date", "soon")
    for number in range(9):
        quarantine.add("train", number, "held out", "same prompt")
    quarantine.check(0.75, tmp_path)  # leaks are no fault of the rows
    with pytest.raises(InputError) as raised:
        quarantine.check(0.5, tmp_path)
    assert f"(no text: 2, such as row 3: '{'x' * 60}'; no date: 1, such as row 7: 'soon')" in str(raised.value)
    assert "turns: 3 of 4 rows cannot be used, a share of 0.750, above data.max_quarantined = 0.5" in str(raised.value)
