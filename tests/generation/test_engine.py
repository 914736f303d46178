from convrec.generation.engine import TransformersEngine
from convrec.training.embedded import make_model, train_tokenizer

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 1, "num_heads": 2, "num_key_value_heads": 2}
PROMPTS = [[{"role": "user", "content": text}] for text in ("something with heists please", "a film")]


def _generate(repetition_penalty: float, batch_size: int = 2) -> list[str]:
    tokenizer = train_tokenizer(["a film", "something with heists please"], [], 300)
    model = make_model(tokenizer, **SIZES, seed=0)
    return TransformersEngine(model, tokenizer, batch_size, 24, repetition_penalty).generate(PROMPTS)


def test_the_repetition_penalty_keeps_a_model_from_repeating_itself():
    free, penalised = (_generate(penalty) for penalty in (1.0, 10.0))
    for before, after in zip(free, penalised, strict=True):
        assert len(set(after)) > len(set(before))


def test_answers_keep_the_order_of_the_prompts_whatever_the_batch():
    assert _generate(1.0, batch_size=1) == _generate(1.0, batch_size=2)
