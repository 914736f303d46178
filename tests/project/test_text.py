from convrec.project.table import TextTable
from convrec.project.text import hung, listing, markdown, plain


def test_terminal_text_is_one_line_of_harmless_characters(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert plain(" a\n\tb\u2028c\x1b[0m\ud800") == "a b c\N{REPLACEMENT CHARACTER}[0m\N{REPLACEMENT CHARACTER}"
    assert markdown("- a | <b>\n## c") == "- a \\| &lt;b> ## c"
    assert hung("1  ", "abc " * 40) == [f"1  {'abc ' * 24}".rstrip(), f"   {'abc ' * 16}".rstrip()]
    assert listing("heading", [], 3) == []
    assert listing("heading", ["a", "b"], 0) == ["  heading", "    ... and 2 more"]


def test_a_narrow_table_keeps_names_and_numbers_whole(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    figures = ["0.498 ± 0.009", "0.564 ± 0.010", "+0.024 [+0.020, +0.028]"]
    TextTable(["system", "NDCG@20", "Recall@20", "paired"], [["rank_grpo:exp_inf", *figures]]).print()
    words = capsys.readouterr().out.split()
    assert {"rank_grpo:exp_inf", "0.498", "[+0.020,", "+0.028]"} <= set(words)
