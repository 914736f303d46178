"""bfloat16 autocast against float32, and in bfloat16 the faster passes against the plain ones."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from convrec.training.padding_free import drop_padding
from convrec.training.rl import rollouts
from convrec.training.rl.logprobs import add_log_prob_head
from convrec.training.rl.loss import Objective, Rollouts, rank_grpo_loss
from convrec.training.rl.rollouts import generate_groups
from convrec.training.rl.shared_prompts import share_prompts
from tests.training.collated import batch_loss, labelled_rows
from tests.training.rl.ragged import ragged_groups, small_model

VOCAB, WIDTH, RANKS, PENALTY = 320, 24, 4, 1.2
GROUPS, LENGTHS = (4, 2, 4), (40, 9, 23)
BANDS = {"cpu": 0.02, "cuda": 0.03}  # mean difference of log-probabilities; on a GPU, the model has more layers
KINDS = pytest.mark.parametrize("kind", ["qwen2", "llama"])


def _model(kind, device):
    """Return a model whose logits have a standard deviation of about 1."""
    hidden, layers = (512, 12) if device == "cuda" else (64, 4)
    sizes = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": 8, "initializer_range": hidden**-0.5, "vocab_size": VOCAB}
    return small_model(kind, **sizes).to(device)


def _mixed(device, enabled=True):
    return torch.autocast(device, torch.bfloat16, enabled=enabled)


def _gradient(model):
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def _error(found, exact):
    return float((found - exact).norm() / exact.norm())


def _rank_grpo(model, ids, mask, old_logps, device, mixed):
    """Return log-probabilities, loss and gradient of lists of ranks of six tokens, with given advantages."""
    model.zero_grad()
    with _mixed(device, mixed):
        output = model(input_ids=ids, attention_mask=mask, completion_width=WIDTH)
    kept = mask[:, -WIDTH:]
    old_logps = output.log_probs.detach() if old_logps is None else old_logps
    draw = torch.Generator().manual_seed(1)
    advantages = torch.randn(len(ids), RANKS, generator=draw).to(device)
    ranks = (torch.arange(WIDTH, device=device) // (WIDTH // RANKS)).expand(len(ids), -1)
    objective = Objective(num_ranks=RANKS, epsilon_low=0.2, epsilon_high=0.2)  # rounding alone clips no rank
    loss = rank_grpo_loss(output.log_probs, Rollouts(old_logps, advantages, ranks, kept), objective).loss
    loss.backward()
    log_probs = output.log_probs.detach()
    return log_probs[kept.bool()], float(loss.detach()), _gradient(model), log_probs


@KINDS
def test_log_probabilities_loss_and_gradient_are_near_those_in_float32(kind, device, figure):
    ids, mask = (value.to(device) for value in ragged_groups(GROUPS, LENGTHS, WIDTH, VOCAB))
    model = _model(kind, device)
    add_log_prob_head(model, PENALTY, 1.0, None)
    exact, loss, gradient, old_logps = _rank_grpo(model, ids, mask, None, device, False)
    found, own_loss, own_gradient, _ = _rank_grpo(model, ids, mask, old_logps, device, True)
    difference = (found - exact).abs()
    figure(f"bf16, {kind}: log-probabilities differ by {difference.mean():.4f} on average, {difference.max():.3f}")
    assert exact.std() > 0.5, "the tokens have different probabilities"
    assert 0 < difference.mean() < BANDS[device] and difference.max() < 0.15
    assert own_loss == pytest.approx(loss, abs=0.02)
    assert _error(own_gradient, gradient) < 0.1


@KINDS
def test_shared_prompts_are_as_near_to_float32_as_the_plain_pass(kind, device, figure):
    """Without a repetition penalty, whose gradient jumps where rounding changes the sign of a logit."""
    ids, mask = (value.to(device) for value in ragged_groups(GROUPS, LENGTHS, WIDTH, VOCAB))
    plain = _model(kind, device)
    shared = copy.deepcopy(plain)
    for model in (plain, shared):
        add_log_prob_head(model, 1.0, 1.0, None)
    assert share_prompts(shared) is None
    exact, _, gradient, old_logps = _rank_grpo(plain, ids, mask, None, device, False)
    passes = [_rank_grpo(model, ids, mask, old_logps, device, True) for model in (plain, shared)]
    (one, two), (first, second) = zip(*((values[0], values[2]) for values in passes), strict=True)
    errors = _error(one, exact), _error(two, exact), _error(first, gradient), _error(second, gradient)
    figure(
        f"bf16, {kind}: relative errors of log-probabilities and gradient, plain {errors[0]:.4f} {errors[2]:.3f}, "
        f"shared prompts {errors[1]:.4f} {errors[3]:.3f}"
    )
    assert _error(two, exact) < 1.5 * _error(one, exact)
    assert _error(second, gradient) < 1.5 * _error(first, gradient)


@KINDS
def test_sft_without_padding_is_as_near_to_float32_as_with_it(kind, device):
    model, rows, found = _model(kind, device), labelled_rows([40, 7, 23, 12]), []
    for mixed, padding_free in ((False, False), (True, False), (True, True)):
        assert not padding_free or drop_padding(model) is None
        model.zero_grad()
        with _mixed(device, mixed):
            loss = batch_loss(model, rows, padding_free=padding_free)
        loss.backward()
        found.append((float(loss.detach()), _gradient(model)))
    (exact, gradient), (padded, first), (packed, second) = found
    assert padded == pytest.approx(exact, rel=0.01) and packed == pytest.approx(exact, rel=0.01)
    assert 0 < _error(first, gradient) < 0.1
    assert _error(second, gradient) < 1.5 * _error(first, gradient)


class _Recorder:
    """Stands in for a constraint; it keeps the log-probabilities that tokens are sampled from."""

    trie = None

    def __init__(self):
        self.log_probs = []

    def request(self, prompt):
        """None is asked for."""

    def __call__(self, input_ids, scores):
        self.log_probs.append(scores.float().log_softmax(-1))
        return scores


@KINDS
def test_rollouts_with_a_cached_prompt_have_the_log_probabilities_of_the_plain_pass(kind, device, figure, monkeypatch):
    """In bfloat16, the mismatch between sampling and training is no larger than the rounding itself."""
    monkeypatch.setattr(rollouts, "can_jump", lambda _: False)  # the recorder is no constraint
    monkeypatch.setattr(rollouts, "CatalogConstraint", lambda *_: recorder)
    model = _model(kind, device).eval()
    prompts = [prompt for length in LENGTHS for prompt in [list(range(5, 5 + length))] * 4]
    sampling = {"do_sample": True, "top_k": 0, "max_new_tokens": WIDTH, "repetition_penalty": PENALTY}
    config, recorder = GenerationConfig(**sampling, pad_token_id=0, eos_token_id=[VOCAB]), _Recorder()  # no end
    with _mixed(device):
        completions = generate_groups(model, prompts, config, recorder)
    written = torch.tensor(completions, device=device)
    sampled = torch.stack(recorder.log_probs, dim=1).gather(2, written[..., None]).squeeze(2)
    longest = max(LENGTHS)
    ids = torch.tensor([[0] * (longest - len(p)) + p + c for p, c in zip(prompts, completions, strict=True)])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * (len(p) + WIDTH) for p in prompts])
    add_log_prob_head(model, PENALTY, 1.0, None)
    scored = []
    for mixed in (False, True):
        with torch.no_grad(), _mixed(device, mixed):
            output = model(input_ids=ids.to(device), attention_mask=mask.to(device), completion_width=WIDTH)
        scored.append(output.log_probs)
    exact, trained = scored
    mismatch, rounding = (sampled - trained).abs().mean(), (trained - exact).abs().mean()
    figure(f"bf16, {kind}: sampling differs from training by {mismatch:.4f}, training from float32 by {rounding:.4f}")
    assert mismatch < 1.5 * rounding and rounding < BANDS[device]
