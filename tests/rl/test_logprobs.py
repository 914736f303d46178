import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor
from trl.trainer.utils import add_fused_lm_head

from convrec.rl.logprobs import add_sampled_head, sampled_log_probs


@given(st.integers(0, 1000), st.sampled_from([1.0, 1.5, 0.8]), st.sampled_from([1.0, 0.7]), st.booleans())
@settings(max_examples=30)
def test_it_is_the_distribution_that_transformers_samples(seed, penalty, temperature, constrained):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 6, (3, 8), generator=generator)
    logits = torch.randn(3, 5, 6, generator=generator, dtype=torch.float32)
    allowed = None
    if constrained:
        allowed = torch.rand(logits.shape, generator=generator) < 0.3
        allowed.scatter_(2, ids[:, -5:, None], True)  # what was written was allowed
    found, entropy = sampled_log_probs(logits, ids, penalty, temperature, allowed)
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    for column in range(5):
        place = 3 + column
        scores = processor(ids[:, :place], logits[:, column].clone()) / temperature
        if allowed is not None:
            scores = scores.masked_fill(~allowed[:, column], -torch.inf)
        expected = scores.log_softmax(-1)
        torch.testing.assert_close(found[:, column], expected.gather(1, ids[:, place : place + 1])[:, 0])
        plain = torch.distributions.Categorical(logits=scores).entropy()
        torch.testing.assert_close(entropy[:, column], plain, rtol=1e-4, atol=1e-5)


def test_padding_is_not_held():
    """Rows of different padding are penalized as each row alone."""
    generator = torch.Generator().manual_seed(0)
    ids, logits = torch.randint(0, 6, (2, 8), generator=generator), torch.randn(2, 4, 6, generator=generator)
    ids[0, :3] = ids[1, :2] = ids[1, -2:] = 5
    mask = torch.ones_like(ids)
    mask[0, :3] = mask[1, :2] = mask[1, -2:] = 0
    found = torch.stack(sampled_log_probs(logits, ids, 1.7, attention_mask=mask))
    one = torch.stack(sampled_log_probs(logits[:1], ids[:1, 3:], 1.7))
    two = torch.stack(sampled_log_probs(logits[1:, :2], ids[1:, 2:-2], 1.7))
    torch.testing.assert_close(found[:, :1], one)
    torch.testing.assert_close(found[:, 1:, :2], two)


def _model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=9, num_key_value_heads=2, **sizes))


def test_without_a_penalty_it_equals_trl_s_head():
    ids = torch.randint(0, 9, (3, 7), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:, :3] = -100
    labels[0, 5:] = -100  # a shorter completion
    results = []
    for head in (lambda m: add_fused_lm_head(m, 0.9, outputs=("log_probs", "entropy")),
                 lambda m: add_sampled_head(m, 1.0, 0.9, None)):  # fmt: skip
        model = _model()
        head(model)
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, fused_lm_head=True)
        output.log_probs[:, -4:].sum().backward()
        results.append((output.log_probs[:, -4:], output.entropy[:, -4:], model.lm_head.weight.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_batch_without_labels_gives_zeros_that_can_be_trained_on():
    model, ids = _model(), torch.ones(2, 5, dtype=torch.long)
    add_sampled_head(model, 1.5, 1.0, None)
    output = model(input_ids=ids, labels=torch.full_like(ids, -100), fused_lm_head=True)
    output.log_probs[:, -2:].sum().backward()
    assert output.log_probs.abs().sum() == 0
