"""The language model's loss, what it returns, and that its configuration reaches the layers."""

import pytest
import torch
from torch import nn

import reference
from contract import SAME, gap
from gnomon.nn import Pattention
from samples import language_model, random_ids


def test_labels_are_shifted_inside_and_the_loss_is_the_mean_over_targets() -> None:
    """Given the ids themselves as labels, the loss is -log p(next token), averaged over all but the last position."""
    model, ids = language_model(), random_ids(3, 7)
    output = model(input_ids=ids, labels=ids)
    torch.testing.assert_close(output.loss, reference.next_token_loss(output.logits, ids), rtol=1e-5, atol=1e-5)


def test_ignored_labels_count_neither_above_nor_below_the_line() -> None:
    """With -100 in some places the loss is the mean over the other targets."""
    model, ids = language_model(), random_ids(2, 7)
    labels = ids.clone()
    labels[0, 3:] = -100
    output = model(input_ids=ids, labels=labels)
    first = reference.next_token_loss(output.logits[:1, :3], ids[:1, :3])
    second = reference.next_token_loss(output.logits[1:], ids[1:])
    torch.testing.assert_close(output.loss, (first * 2 + second * 6) / 8, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", ["l2_norm_gelu", "learned score scale", "gated"])
def test_accumulated_micro_batches_have_the_gradient_of_the_whole_batch(variant: str) -> None:
    """Rows of 3, 9, 5 and 12 targets: one batch of 4, two of 2 and four of 1 agree when all targets divide the sum."""
    model, ids = language_model(variant), random_ids(4, 13)
    labels = ids.clone()
    for row, count in enumerate((3, 9, 5, 12)):
        labels[row, count + 1 :] = -100
    found = []
    for size in (4, 2, 1):
        model.zero_grad()
        for start in range(0, 4, size):
            part = slice(start, start + size)
            model(input_ids=ids[part], labels=labels[part], num_items_in_batch=29).loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert gap(found[1], found[0]) < 1e-6
    assert gap(found[2], found[0]) < 1e-6
    model.zero_grad()
    model(input_ids=ids, labels=labels).loss.backward()
    assert gap(torch.cat([p.grad.flatten() for p in model.parameters()]), found[0]) < 1e-6


def test_documents_packed_by_position_ids_do_not_see_each_other() -> None:
    """Where position ids start again at 0, and there is no cache, a new text begins; counted through, it does not."""
    model, ids = language_model(), random_ids(2, 12)
    alone = model(input_ids=ids[:, 5:]).logits
    packed = torch.cat((torch.arange(5), torch.arange(7))).expand(2, -1)
    for positions, same in ((packed, True), (torch.arange(12).expand(2, -1), False)):
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[:, 5:]
        assert (gap(logits, alone) < SAME) == same


def test_outputs_come_as_transformers_has_them() -> None:
    """Hidden states before and after every block, attention weights that sum to 1, tuples when asked for."""
    model, ids = language_model(), random_ids(2, 7)
    model.set_attn_implementation("eager")
    output = model(input_ids=ids, labels=ids, output_hidden_states=True, output_attentions=True)
    assert len(output.hidden_states) == 3
    assert torch.equal(output.hidden_states[0], model.get_input_embeddings()(ids))
    assert torch.equal(model.lm_head(output.hidden_states[-1]), output.logits)
    assert [tuple(weights.shape) for weights in output.attentions] == [(2, 4, 7, 7)] * 2
    torch.testing.assert_close(output.attentions[1].sum(-1), torch.ones(2, 4, 7))
    assert output.attentions[0].triu(1).abs().max() == 0
    loss, logits, *_ = model(input_ids=ids, labels=ids, return_dict=False)
    assert torch.equal(loss, output.loss)
    assert torch.equal(logits, output.logits)


@pytest.mark.parametrize("name", ["hidden_dropout", "attention_dropout"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_dropout_acts_while_training_alone(name: str, implementation: str) -> None:
    """Two passes differ in training mode and not in evaluation mode; without dropout they never differ."""
    ids = random_ids(2, 7)
    for probability in (0.0, 0.5):
        model = language_model(**{name: probability})
        model.set_attn_implementation(implementation)
        for training in (True, False):
            model.train(training)
            same = torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)
            assert same == (probability == 0.0 or not training)


def test_the_configuration_reaches_every_layer() -> None:
    """Norm eps, dropout, score, rotary share and activation are those of the config in each place that has them."""
    model = language_model(score="softmax", norm_eps=0.03, hidden_dropout=0.4, attention_dropout=0.2)
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    dropouts = [m for m in model.modules() if isinstance(m, nn.Dropout)]
    layers = [m for m in model.modules() if isinstance(m, Pattention)]
    assert (len(norms), len(dropouts), len(layers)) == (5, 5, 10)
    assert {m.eps for m in norms} == {0.03}
    assert {m.p for m in dropouts} == {0.4}
    assert {m.score for m in layers} == {"softmax"}
    assert {block.attention.dropout for block in model.model.layers} == {0.2}
    relu, silu = (
        language_model("linear", hidden_act=name)(input_ids=random_ids(1, 5)).logits for name in ("relu", "silu")
    )
    assert gap(relu, silu) > 1e-3


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.03), (torch.float16, 0.004)])
@pytest.mark.parametrize("variant", ["l2_norm_gelu", "gelu_l2_norm", "softmax", "gelu", "gated"])
def test_narrow_models_stay_near_float32_and_finite(variant: str, dtype, bound: float) -> None:
    """Cast to 8 or 11 bits of precision, logits differ by a few roundings, and all gradients are finite."""
    model, ids = language_model(variant), random_ids(3, 12)
    wide = model(input_ids=ids).logits
    output = model.to(dtype)(input_ids=ids, labels=ids)
    output.loss.backward()
    assert output.logits.dtype == dtype
    assert (output.logits.float() - wide).norm() < bound * wide.norm()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("variant", ["l2_norm_gelu", "softmax", "learned score scale", "gated"])
def test_autocast_trains_float32_parameters(variant: str) -> None:
    """Under bfloat16 autocast logits stay within 3% of float32, and gradients are float32 and point the same way."""
    model, ids, gradients = language_model(variant), random_ids(3, 12), []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            output = model(input_ids=ids, labels=ids)
        output.loss.backward()
        assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
        gradients.append((output.logits.float(), torch.cat([p.grad.flatten() for p in model.parameters()])))
    (wide, exact), (narrow, rounded) = gradients
    assert (narrow - wide).norm() < 0.03 * wide.norm()
    assert torch.cosine_similarity(rounded, exact, dim=0) > 0.995


def test_a_float64_model_agrees_with_float32_to_its_rounding() -> None:
    """`.double()` computes the same function: float32 is within 1e-5 of it."""
    model, ids = language_model(), random_ids(2, 9)
    narrow = model(input_ids=ids).logits
    wide = model.double()(input_ids=ids).logits
    assert wide.dtype == torch.float64
    assert gap(narrow.double(), wide) < 1e-5
