"""The prompts of conversations that are too long: what stays, what goes, and that it is never too much."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.data.conversations import build_prompt, messages_of, transcript
from convrec.generation.line_tokens import add_tokens
from convrec.generation.prompt_tokens import token_ids
from convrec.generation.prompts import ELLIPSIS, PromptBuilder
from convrec.pipeline.stages.sft import with_prompts
from convrec.project.errors import InputError
from convrec.training.embedded import train_tokenizer

INSTRUCTION = "Recommend {list_length} movies."
FRONT = "Recommend 20 movies.\n"
WORDS = "something with heists please, a film from the nineties"
TOKENIZER = train_tokenizer([f"{FRONT}User: {WORDS}\nAssistant: sure, which {WORDS}?"] * 20, [], 400)
# One user first, then by turns, system messages in front: what many chat templates insist on.
STRICT = TOKENIZER.chat_template.replace(
    "{% for message in messages %}",
    "{% set talk = messages | rejectattr('role', 'equalto', 'system') | list %}"
    "{% if talk[0]['role'] != 'user' %}{{ raise_exception('the first message must be of the user') }}{% endif %}"
    "{% for message in messages %}",
)


def _turns(*texts: str) -> list[dict[str, str]]:
    """Return messages of user and assistant in turn, the user last."""
    roles = ["user" if (len(texts) - i) % 2 else "assistant" for i in range(len(texts))]
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]


def _length(prompt, tokenizer=TOKENIZER) -> int:
    return len(token_ids(tokenizer, [prompt])[0])


def _builder(max_length: int, instruction: str | None = INSTRUCTION) -> PromptBuilder:
    return PromptBuilder(TOKENIZER, instruction, 20, max_length)


def _content(prompt) -> str:
    assert len(prompt) == 1 and prompt[0]["role"] == "user"
    return prompt[0]["content"]


def test_a_prompt_that_fits_is_left_alone():
    messages = _turns(WORDS, "sure", f"{WORDS} {WORDS}")
    whole = build_prompt(messages, INSTRUCTION, 20)
    builder = _builder(_length(whole))
    assert builder(messages) == builder(messages_of(transcript(messages))) == whole
    assert (builder.built, builder.cut, builder.report("a test")) == (2, 0, 0.0)


def test_one_token_too_many_drops_the_oldest_turn_whole():
    messages = _turns(WORDS, f"sure, {WORDS}?\nor not?", f"{WORDS} {WORDS}")
    builder = _builder(_length(build_prompt(messages, INSTRUCTION, 20)) - 1)
    kept = f"{FRONT}Assistant: sure, {WORDS}?\nor not?\nUser: {WORDS} {WORDS}"
    assert _content(builder(messages)) == _content(builder(messages_of(transcript(messages)))) == kept
    assert (builder.cut, builder.report("a test")) == (2, 1.0)


def test_a_source_s_own_prompt_keeps_its_first_line_and_its_last_lines():
    lines = [f"User: {i} {WORDS}" for i in range(40)]
    first = "Pretend to recommend films."
    prompt = [{"role": "user", "content": "\n".join([first, *lines, "", ""])}]
    content = _content(_builder(128, None)(prompt))
    kept = content.split("\n")
    assert kept[0] == first and kept[-2:] == ["", ""]
    assert kept[1:-2] == lines[-len(kept[1:-2]) :] and 2 <= len(kept[1:-2]) < 40


def test_a_source_s_own_prompt_of_one_line_or_with_a_long_first_one_keeps_its_end():
    one_line = f"{WORDS} " * 100 + "the end"
    content = _content(_builder(64, None)([{"role": "user", "content": one_line}]))
    assert content.startswith(ELLIPSIS) and content.endswith("the end")
    long_first = [{"role": "user", "content": f"{one_line}\nUser: short"}]
    assert _content(_builder(64, None)(long_first)) == "User: short"


def test_of_several_messages_the_oldest_go_and_a_user_s_comes_first():
    rules = {"role": "system", "content": "Recommend films."}
    messages = [rules, *_turns(*[f"{i} {WORDS}" for i in range(9)])]
    tokenizer = train_tokenizer([WORDS], [], 300)
    tokenizer.chat_template = STRICT
    two_users = [rules, *messages[-3:]]
    for spare in (0, 3, _length(_turns(messages[-4]["content"]), tokenizer)):  # enough for the assistant's before, too
        builder = PromptBuilder(tokenizer, None, 20, _length(two_users, tokenizer) + spare)
        assert builder(messages) == two_users
    long = [*messages[:-1], {"role": "user", "content": f"{WORDS} " * 99 + "the end"}]
    prompt = PromptBuilder(tokenizer, None, 20, 128)(long)
    assert prompt[0] == rules and len(prompt) == 2
    assert prompt[1]["content"].startswith(ELLIPSIS) and prompt[1]["content"].endswith("the end")


def test_system_messages_longer_than_half_of_the_room_go():
    messages = [{"role": "system", "content": WORDS * 50}, *_turns(WORDS, "sure", "and now?")]
    assert _builder(64, None)(messages)[-1]["content"] == "and now?"
    assert all(message["role"] != "system" for message in _builder(64, None)(messages))


TEXT = st.text(st.sampled_from("ab é😀.…:\n\r\t<|>") | st.characters(codec="utf-8"), max_size=60)
LONG = st.builds(lambda text, times: text * times, TEXT, st.sampled_from([1, 1, 1, 9, 300]))
CONVERSATION = st.lists(LONG, min_size=1, max_size=12).map(lambda texts: _turns(*texts))


@settings(max_examples=150)
@given(CONVERSATION, st.integers(64, 400))
def test_a_prompt_ends_with_the_last_turns_and_never_exceeds_its_length(messages, max_length):
    builder = _builder(max_length)
    prompt = builder(messages)
    assert _length(prompt) <= max_length
    text = _content(prompt).removeprefix(FRONT)
    whole, last = transcript(messages), transcript(messages[-1:])
    assert builder(messages_of(whole)) == builder(messages_of(text)) == prompt
    if builder.cut == 0 or text in [transcript(messages[i:]) for i in range(len(messages))]:
        assert whole.endswith(text) and text.endswith(last)
    else:  # not even the last turn fits
        assert text.startswith(f"User: {ELLIPSIS}") and last.endswith(text.removeprefix(f"User: {ELLIPSIS}"))
        assert _length(build_prompt(messages[-1:], INSTRUCTION, 20)) > max_length


@settings(max_examples=150)
@given(CONVERSATION, st.none() | LONG, st.integers(64, 400))
def test_a_source_s_own_prompt_never_exceeds_its_length(messages, system, max_length):
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    builder = _builder(max_length, None)
    prompt = builder(messages)
    assert _length(prompt) <= max_length
    assert builder(prompt) == prompt
    last, kept = messages[-1]["content"], prompt[-1]["content"]
    assert (prompt == messages) == (builder.cut == 0)
    if len(messages) > 1:
        assert kept == last or kept.startswith(ELLIPSIS) and last.endswith(kept.removeprefix(ELLIPSIS))


class CountingTokenizer:
    """A tokenizer, and its own backend, that keeps the texts it is given."""

    def __init__(self):
        self.texts: list[str] = []
        self.backend_tokenizer = self

    def __getattr__(self, name):
        return getattr(TOKENIZER if hasattr(TOKENIZER, name) else TOKENIZER.backend_tokenizer, name)

    def encode_batch(self, texts, **options):
        self.texts += texts
        return TOKENIZER.backend_tokenizer.encode_batch(texts, **options)


def test_a_cut_turn_has_room_for_titles_that_are_tokens():
    tokenizer = copy.deepcopy(TOKENIZER)
    add_tokens(tokenizer, [f"Film {n} ({1950 + n})" for n in range(60)])
    builder = PromptBuilder(tokenizer, INSTRUCTION, 20, PromptBuilder(tokenizer, INSTRUCTION, 20, 2048).least)
    content = _content(builder(_turns("".join(f"Film {n} ({1950 + n})\n" for n in range(60)))))
    assert content.endswith("Film 59 (2009)\n") and 15 < content.count("Film") < 40


@pytest.mark.parametrize("instruction", [INSTRUCTION, None])
@pytest.mark.parametrize("unit", ["a", "hello film ", "hi\n", "\nUser: x"])
def test_a_message_of_a_megabyte(instruction, unit):
    tokenizer = CountingTokenizer()
    builder = PromptBuilder(tokenizer, instruction, 20, 256)
    prompt = builder([{"role": "user", "content": unit * (1_000_000 // len(unit))}])
    assert 256 - 8 < _length(prompt) <= 256
    longest = max(map(len, TOKENIZER.get_vocab()))
    assert max(map(len, tokenizer.texts)) <= 256 * longest


def test_a_length_without_room_is_refused():
    with pytest.raises(InputError, match=r"common\.max_prompt_length = 20: .* set it to \d+ or more"):
        _builder(20)
    _builder(_builder(2048).least)


def test_sft_leaves_room_for_every_list():
    talks = [_turns("a film"), _turns(*[WORDS] * 40), _turns(WORDS * 90), _turns(*[WORDS] * 5)]
    numbers = (1, 4, 9, 3)
    rows = [
        {"messages": talk, "liked": [*range(n)][:2], "others": [*range(n)][2:]}
        for talk, n in zip(talks, numbers, strict=True)
    ]
    found = with_prompts(rows, _builder(160), [7] * 9, 9, 192)
    assert found["row"][:] == [0, 1, 2, 3] and found["others"][:] == [row["others"] for row in rows]
    sizes = [len(prompt) + 7 * n + 1 for prompt, n in zip(found["prompt"], numbers, strict=True)]
    assert max(sizes) <= 192 and min(sizes[1:3]) > 150
    assert max(map(len, found["prompt"])) <= 160
    whole = token_ids(TOKENIZER, [build_prompt(talks[0], INSTRUCTION, 20), _builder(160)(talks[2])])
    assert found["prompt"][0] == whole[0]
    assert len(found["prompt"][2]) < len(whole[1]), "beside a long list, less room"
    assert len(with_prompts(rows, _builder(160), [7] * 9, 1, 192)["prompt"][2]) == len(whole[1]), "one item a list"


def test_a_list_that_leaves_no_room_for_its_prompt_is_refused():
    rows = [{"messages": _turns("a film"), "liked": [0], "others": [1]}]
    with pytest.raises(InputError, match=r"sft\.max_length = 100: a list of 81 tokens leaves 19 .* or more"):
        with_prompts(rows, _builder(64), [40] * 2, 20, 100)
