"""Log-probabilities and entropies against torch's own functions: values, gradients, blocks, types."""

import pytest
import torch
from torch import Tensor

import learner.models.logprobs
from learner.models.logprobs import token_logprobs


def reference(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logs = torch.log_softmax(logits.float() / temperature, dim=-1)
    return logs.gather(1, targets[:, None])[:, 0], -(logs.exp() * logs).sum(-1)


def drawn(rows: int, vocabulary: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    logits = (5.0 * torch.randn(rows, vocabulary)).to(dtype).requires_grad_()
    return logits, torch.randint(vocabulary, (rows,))


def test_two_tokens_by_hand() -> None:
    """Logits (0, ln 3) at temperature 1: p = (1/4, 3/4); H = 1/4 ln 4 + 3/4 ln (4/3)."""
    logits = torch.tensor([[1.0, 3.0]]).log().requires_grad_()
    logprobs, entropies = token_logprobs(logits, torch.tensor([1]), 1.0)
    assert float(logprobs.detach().exp()) == pytest.approx(0.75)
    assert float(entropies.detach()) == pytest.approx(0.25 * 1.3862944 + 0.75 * 0.2876821)
    logprobs.sum().backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([-0.25, 0.25])  # 1[j = t] - p_j


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (1.0, 0.3)])
def test_values_and_gradients_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, temperature: float, weights: tuple[float, float]
) -> None:
    monkeypatch.setattr(learner.models.logprobs, "CPU_BLOCK", 3 * 50)  # blocks of 3, 3 and 1 rows
    outer = torch.randn(2, 7, generator=torch.Generator().manual_seed(1))
    results = []
    for function in (token_logprobs, reference):
        logits, targets = drawn(7, 50)
        logprobs, entropies = function(logits, targets, temperature)
        terms = zip(weights, outer, (logprobs, entropies), strict=True)
        sum(weight * (row * numbers).sum() for weight, row, numbers in terms if weight).backward()
        assert logits.grad is not None
        results.append((logprobs.detach(), entropies.detach(), logits.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_a_row_gives_the_same_bits_in_any_company() -> None:
    logits, targets = drawn(600, 1000)  # blocks of 262 rows
    whole = token_logprobs(logits.clone(), targets, 0.9)  # overwrites its logits
    for part in (slice(0, 1), slice(100, 500)):
        for numbers, own in zip(whole, token_logprobs(logits[part].clone(), targets[part], 0.9), strict=True):
            torch.testing.assert_close(own, numbers[part], atol=0, rtol=0)
    with torch.no_grad():
        scored, unread = token_logprobs(logits, targets, 0.9)
    torch.testing.assert_close(scored, whole[0], atol=0, rtol=0)
    assert unread.isnan().all()


def test_logits_in_bf16_are_read_in_fp32_and_get_their_gradient_in_bf16() -> None:
    """A row has a token of probability 1 - 2e-4, which is 1 in bf16: its gradient must not be 0."""
    logits, targets = drawn(5, 40, torch.bfloat16)
    with torch.no_grad():
        logits[0] = 0.0
        logits[0, 0], targets[0] = 12.25, 0  # 39 e^-12.25 = 1.9e-4
    own = logits.detach().clone().requires_grad_()
    logprobs, entropies = token_logprobs(own, targets, 1.0)
    expected = reference(logits, targets, 1.0)
    torch.testing.assert_close((logprobs, entropies), expected, atol=1e-6, rtol=1e-5)
    logprobs.sum().backward()
    expected[0].sum().backward()
    assert own.grad is not None
    assert logits.grad is not None
    assert own.grad.dtype is torch.bfloat16
    torch.testing.assert_close(own.grad, logits.grad, atol=0, rtol=2**-7)  # p and its product are rounded to 8 bits
    assert float(own.grad[0, 0]) == pytest.approx(1.9e-4, rel=0.05)


def test_a_second_backward_pass_is_refused() -> None:
    """The first one has overwritten the probabilities."""
    logits, targets = drawn(3, 10)
    logprobs = token_logprobs(logits, targets, 1.0)[0].sum()
    logprobs.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logprobs.backward()
