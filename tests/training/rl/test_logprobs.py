import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from convrec.training.rl import logprobs
from convrec.training.rl.logprobs import add_log_prob_head, sampled_log_probs
from tests.training.rl.ragged import WIDTH, ragged_groups, scores_and_gradients, small_model
from tests.training.rl.tiny import series, tiny_trainer


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


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_rows_are_scored_a_few_at_a_time_where_the_logits_would_be_many(penalty, monkeypatch):
    """The largest tensor that is made holds the logits of two rows, and nothing changes."""
    model, batch = small_model(vocab_size=9).double(), ragged_groups((2, 3), (6, 4), vocab=9)
    add_log_prob_head(model, penalty, 0.9, None)
    whole = scores_and_gradients(model, *batch)
    monkeypatch.setattr(logprobs, "MAX_LOGITS", 2 * WIDTH * 9 + 1)
    with LargestTensor(9) as largest:
        parts = scores_and_gradients(model, *batch)
    assert largest.rows == 2
    torch.testing.assert_close(whole, parts, rtol=1e-12, atol=1e-12)


def test_entropy_is_computed_in_the_loss_alone(tiny_model, tmp_path, monkeypatch):
    """Not for the reference; what is logged is what it is where all passes compute it."""
    asked, logged, head = [], [], logprobs.sampled_log_probs
    for always in (False, True):

        def scored(*args, always=always):
            asked.append(args[-1])
            return head(*args[:-1], always or args[-1])

        monkeypatch.setattr(logprobs, "sampled_log_probs", scored)
        trainer = tiny_trainer(tiny_model, tmp_path / str(always), 2, beta=0.1)
        trainer.train()
        logged.append(series(trainer, "entropy"))
    assert sorted(asked) == 4 * [False] + 4 * [True]
    assert logged[0] == logged[1] and len(logged[0]) == 2 and min(logged[0]) > 0.1


class LargestTensor(TorchDispatchMode):
    """The most rows of a tensor of three dimensions whose last is the vocabulary."""

    def __init__(self, vocab: int):
        super().__init__()
        self.rows, self._vocab = 0, vocab

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.ndim == 3 and result.shape[2] == self._vocab:
            self.rows = max(self.rows, result.shape[0])
        return result


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("gemma2", {"final_logit_softcapping": 2.0, "head_dim": 8}),
        ("cohere", {"logit_scale": 0.25}),
        ("granite", {"logits_scaling": 4.0}),
    ],
)
def test_logits_are_scaled_and_capped_as_the_model_does(kind, options):
    model = small_model(kind, vocab_size=9, **options).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(30)  # large logits, which a cap changes
        ids, mask = ragged_groups((1, 2), (4, 2), vocab=9)
        expected = model(input_ids=ids, attention_mask=mask).logits[:, -WIDTH - 1 : -1].log_softmax(2)
        add_log_prob_head(model, 1.0, 1.0, None)
        found = model(input_ids=ids, attention_mask=mask, completion_width=WIDTH).log_probs
    expected = expected.gather(2, ids[:, -WIDTH:, None]).squeeze(2).masked_fill(mask[:, -WIDTH:] == 0, 0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_rows_without_a_token_give_zeros_that_can_be_trained_on():
    model, ids = small_model(vocab_size=9), torch.ones(2, 5, dtype=torch.long)
    mask = torch.tensor([[1, 1, 1, 0, 0]] * 2)
    add_log_prob_head(model, 1.5, 1.0, None)
    output = model(input_ids=ids, attention_mask=mask, completion_width=2)
    output.log_probs.sum().backward()
    assert output.log_probs.abs().sum() == 0
