"""`rank_grpo_public` beside the public code's objective, one number at a time (see docs/training.md)."""

import pytest
import torch

from convrec.training.embedded import END
from convrec.training.rl.trainer import RankGRPOTrainer
from tests.training.rl.tiny import LINES, NUM_RANKS, answers, same_rows, tiny_trainer

HEAT, UP, DUNE, HER = LINES
TEXTS = {
    "exact": f"{UP}\n{DUNE}{END}",
    "early": f"{UP}{END}",
    "overflow": f"{HER}\n{DUNE}\n{HEAT}{END}",
    "newline at N": f"{UP}\n{HER}\n{END}",  # the EOS overflows
    "newline before N": f"{UP}\n{END}",  # counts as exact
    "truncated": f"{HEAT}\n{DUNE}",
    "truncated overflow": f"{HER}\n{HEAT}\n{UP}",
    "empty": END,
}


def _rollouts(prompts, trainer):
    return answers(prompts, [list(TEXTS.values())[i % len(TEXTS)] for i in range(len(prompts))], trainer)


def _oracle(
    tokenizer, ids, mask, logps, old_logps, ref_logps, relevance, beta, low=0.06, high=0.08, N=NUM_RANKS
) -> torch.Tensor:
    """The public code's loss of one micro-batch, in which all lists answer one prompt."""
    total, count = torch.zeros(()), 0
    for i in range(len(ids)):
        tokens = [t for t in range(ids.shape[1]) if mask[i, t]]
        item, items = 0, {}
        for t in tokens:
            items[t] = item
            item += tokenizer.decode([int(ids[i, t])]).count("\n")
        ends = [t for t in tokens if int(ids[i, t]) == tokenizer.eos_token_id]
        emitted, overflows = max(items.values()) + 1, any(item >= N for item in items.values())
        for t in tokens:
            if items[t] >= N:
                advantage = -0.1
            elif t in ends:
                advantage = 0.1 if emitted >= N and not overflows else -0.1 if emitted < N else 0.0
            else:
                column = relevance[:, items[t]]
                advantage = float((column[i] - column.mean()) / (column.std() + 1e-4))
            same = [u for u in tokens if min(items[u], N) == min(items[t], N)]
            ratio = torch.stack([logps[i, u] - old_logps[i, u] for u in same]).mean().exp()
            term = -torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
            gap = ref_logps[i, t] - logps[i, t]
            total, count = total + term + beta * (gap.exp() - gap - 1), count + 1
    return total / count


def _gradient(trainer: RankGRPOTrainer, loss: torch.Tensor) -> torch.Tensor:
    trainer.model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


@pytest.fixture
def batch_and_trainer(tiny_model, tmp_path):
    def make(**options):
        options |= {"per_device_train_batch_size": 8, "num_iterations": 2, "beta": 0.1}
        trainer = tiny_trainer(tiny_model, tmp_path, 2, trl={"rollout_func": _rollouts}, **options)
        trainer.current_gradient_accumulation_steps = 1
        batch = trainer._generate_and_score_completions([same_rows()[0]] * 8)
        noise = torch.Generator().manual_seed(0)
        for name in ("old_per_token_logps", "ref_per_token_logps"):  # some ratios leave the clip range
            batch[name] = batch[name] + 0.15 * torch.randn(batch[name].shape, generator=noise)
        return trainer, batch

    return make


def test_loss_and_gradient_are_the_public_code_s(batch_and_trainer):
    trainer, batch = batch_and_trainer(algorithm="rank_grpo_public")
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask, kept = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1), batch["completion_ids"].shape[1]
    logps, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, kept)
    relevance = trainer.reward_funcs[0].last_relevance
    assert relevance.std(dim=0).all()
    old, reference = batch["old_per_token_logps"], batch["ref_per_token_logps"]
    tokens = (batch["completion_ids"], batch["completion_mask"])
    expected = _oracle(trainer._tokenizer, *tokens, logps, old, reference, relevance, trainer.beta)
    expected_gradient = _gradient(trainer, expected)
    loss = trainer._compute_loss(trainer.model, batch)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(_gradient(trainer, loss), expected_gradient, rtol=1e-4, atol=1e-6)


def test_the_paper_s_objective_differs_in_average_and_eos(batch_and_trainer):
    """EOS belongs to the last item, also after a newline. Alone are an early one and, on request, an exact list's."""
    ranks, own = {}, {}
    for reward in (None, 0.1):
        trainer, batch = batch_and_trainer(exact_eos_reward=reward)
        assert trainer.args.exact_eos_reward == (reward or 0.0)
        last = batch["completion_mask"].sum(1) - 1
        own[reward] = batch["eos"].any(1).tolist()
        ranks[reward] = batch["ranks"].gather(1, last[:, None])[:, 0].tolist()
        ends = [reward or 0.0, -0.1, 0.0, reward or 0.0, -0.1, 0.0, 0.0, -0.1]
        torch.testing.assert_close(batch["eos_advantages"], torch.tensor(ends))
    assert ranks[None] == ranks[0.1] == [1, 0, 2, 1, 0, 1, 2, 0]
    assert own[None] == [False, True, False, False, True, False, False, True]
    assert own[0.1] == [True, True, False, True, True, False, False, True]
    _, batch = batch_and_trainer(algorithm="rank_grpo_public")
    ends = [0.1, -0.1, 0.0, 0.0, 0.1, 0.0, 0.0, -0.1]
    torch.testing.assert_close(batch["eos_advantages"], torch.tensor(ends))
