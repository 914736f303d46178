from convrec.project.text import cut, listing, markdown, plain


def test_terminal_text_is_one_line_of_harmless_characters():
    assert plain(" a\n\tb\u2028c\x1b[0m\ud800") == "a b c\N{REPLACEMENT CHARACTER}[0m\N{REPLACEMENT CHARACTER}"
    assert markdown("- a | <b>\n## c") == "- a \\| &lt;b> ## c"
    assert cut("abcd", 4) == "abcd" and cut("abcde", 4) == "abc…"
    assert listing("heading", [], 3) == []
    assert listing("heading", ["a", "b"], 0) == ["  heading", "    ... and 2 more"]
