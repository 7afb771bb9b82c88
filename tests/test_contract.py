"""What every model class promises about caches, masks, positions and gradients; see contract.py.

Each promise about a mask, a position or a cache has its twin without it, which has to break the promise: at small
weights attention is nearly uniform, and a missing mask would go unseen.
"""

import inspect

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, StaticCache

import gnomon
from contract import (
    CASES,
    CAUSAL,
    DIFFERENT,
    ELSEWHERE,
    HEADS,
    LENGTH,
    SAME,
    Case,
    changed,
    chunks,
    gap,
    positions,
    rows,
)

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_causal_case = pytest.mark.parametrize("case", CAUSAL, ids=str)
CHUNKS = [(12,), (5,) + (1,) * 7, (1, 4, 7)]
IMPLEMENTATIONS = ("eager", "sdpa")


def static(model) -> StaticCache:
    return StaticCache(config=model.config, max_cache_len=LENGTH + 3)


def dynamic(model) -> DynamicCache:
    return DynamicCache(config=model.config)


def ragged(case: Case, side: str):
    """Rows of 12, 7 and 3 real positions, padded with other tokens, and the mask."""
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    for row, real in enumerate((12, 7, 3)):
        mask[row, : LENGTH - real] = 0
    return case.batch(), mask if side == "left" else mask.flip(-1)


def test_every_public_model_class_is_under_contract() -> None:
    """A head that is exported but neither registered in contract.py nor tested in a module of its own fails here."""
    public = {getattr(gnomon, name) for name in gnomon.__all__ if name.startswith("Gnomon")}
    models = {cls for cls in public if inspect.isclass(cls) and issubclass(cls, PreTrainedModel)}
    assert models - {gnomon.GnomonPreTrainedModel} == {head.cls for head in HEADS.values()} | set(ELSEWHERE)


@every_causal_case
@pytest.mark.parametrize("make_cache", [dynamic, static])
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass(case: Case, make_cache) -> None:
    """In one chunk, token by token after a prefill, and in uneven chunks; without the cache it does not."""
    model, batch = case.build(), case.batch()
    full = case.outputs(model, batch)
    for sizes in CHUNKS:
        cache, pieces = make_cache(model), chunks(LENGTH, sizes)
        parts = [case.outputs(model, positions(batch, piece), cache=cache) for piece in pieces]
        assert gap(torch.cat(parts, dim=1), full) < SAME, sizes
        if len(sizes) > 1:
            forgetful = torch.cat([case.outputs(model, positions(batch, piece)) for piece in pieces], dim=1)
            assert gap(forgetful, full) > DIFFERENT, sizes


@pytest.mark.parametrize("case", [case for case in CAUSAL if case.has_positions], ids=str)
@torch.no_grad()
def test_cached_tokens_take_the_positions_after_the_cache(case: Case) -> None:
    """Explicit positions 5, 6, ... are the default; positions that start again at 0 give other outputs."""
    model, batch = case.build(), case.batch()
    full = case.outputs(model, batch)[:, 5:]
    for start, agrees in ((5, True), (0, False)):
        cache = dynamic(model)
        case.outputs(model, positions(batch, slice(0, 5)), cache=cache)
        ids = torch.arange(start, start + 7).expand(3, -1)
        rest = case.outputs(model, positions(batch, slice(5, None)), cache=cache, position_ids=ids)
        assert gap(rest, full) < SAME if agrees else gap(rest, full) > DIFFERENT


@every_case
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@torch.no_grad()
def test_padded_rows_equal_the_row_alone(case: Case, side: str, implementation: str) -> None:
    """On real positions, whatever the padding holds; without the mask, rows that see their padding differ."""
    model, (batch, mask) = case.build(), ragged(case, side)
    model.set_attn_implementation(implementation)
    masked = case.outputs(model, batch, attention_mask=mask)
    blind = case.outputs(model, batch)
    for row in range(3):
        real = mask[row].bool()
        alone = case.outputs(model, positions(rows(batch, slice(row, row + 1)), real))[0]
        assert gap(masked[row, real], alone) < SAME
        if row and (side == "left" or not case.head.is_causal):
            assert gap(blind[row, real], alone) > DIFFERENT


@every_causal_case
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("make_cache", [dynamic, static])
@torch.no_grad()
def test_decoding_after_a_padded_prefill_equals_the_row_alone(case: Case, side: str, make_cache) -> None:
    """Two more tokens behind left or right padding, with the mask of all columns; with a mask of ones they differ."""
    model, (batch, mask) = case.build(), ragged(case, side)
    more, mask = case.batch(length=2, seed=2), torch.cat((mask, torch.ones(3, 2, dtype=torch.long)), dim=1)

    def decode(mask):
        cache = make_cache(model)
        case.outputs(model, batch, attention_mask=mask[:, :LENGTH], cache=cache)
        steps = [
            case.outputs(model, positions(more, [t]), attention_mask=mask[:, : LENGTH + 1 + t], cache=cache)
            for t in range(2)
        ]
        return torch.cat(steps, dim=1)

    masked, blind = decode(mask), decode(torch.ones_like(mask))
    for row in range(3):
        both = {name: torch.cat((batch[name], more[name]), dim=1)[row : row + 1, mask[row].bool()] for name in batch}
        alone = case.outputs(model, both)[0, -2:]
        assert gap(masked[row], alone) < SAME
        assert row == 0 or gap(blind[row], alone) > DIFFERENT


@every_case
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_row_of_nothing_but_padding_is_finite(case: Case, implementation: str) -> None:
    """Outputs and every gradient stay finite, and the other rows are what they were."""
    model, batch = case.build(), case.batch()
    model.set_attn_implementation(implementation)
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    mask[1] = 0
    outputs = case.outputs(model, batch, attention_mask=mask)
    assert outputs.isfinite().all()
    assert gap(outputs[[0, 2]], case.outputs(model, rows(batch, [0, 2]))) < SAME
    outputs.square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@every_case
@torch.no_grad()
def test_rows_of_a_batch_are_independent(case: Case) -> None:
    """Permuting rows permutes outputs, and changing one row leaves the others alone."""
    model, batch = case.build(), case.batch()
    outputs = case.outputs(model, batch)
    assert gap(case.outputs(model, rows(batch, [2, 0, 1])), outputs[[2, 0, 1]]) < SAME
    other = case.outputs(model, changed(batch, 0, slice(None)))
    assert gap(other[1:], outputs[1:]) < SAME
    assert gap(other[0], outputs[0]) > DIFFERENT


@every_case
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@torch.no_grad()
def test_a_later_token_never_changes_an_earlier_output(case: Case, implementation: str) -> None:
    """In a causal model, at every position, while it does change later ones; a model that looks both ways sees it."""
    model, batch = case.build(), case.batch()
    model.set_attn_implementation(implementation)
    outputs = case.outputs(model, batch)
    for position in (1, 6, 11):
        other = case.outputs(model, changed(batch, slice(None), position))
        before = gap(other[:, :position], outputs[:, :position])
        assert before < SAME if case.head.is_causal else before > DIFFERENT
        assert gap(other[:, position:], outputs[:, position:]) > DIFFERENT
    first = case.outputs(model, changed(batch, slice(None), 0))
    assert gap(first[:, 1:], outputs[:, 1:]) > DIFFERENT, "positions never mix"


@every_case
@torch.no_grad()
def test_the_order_of_tokens_matters_where_there_are_positions(case: Case) -> None:
    """Shuffled position ids change the outputs; in the variant without positions they do not."""
    model, batch = case.build(), case.batch()
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    shuffled = (5 * torch.arange(LENGTH) % LENGTH).expand(3, -1)
    found = case.outputs(model, batch, attention_mask=mask, position_ids=shuffled)
    difference = gap(found, case.outputs(model, batch))
    assert difference > DIFFERENT if case.has_positions else difference < SAME


@every_case
def test_gradient_checkpointing_gives_the_same_gradients(case: Case) -> None:
    """Every block runs a second time in the backward pass, and no gradient changes."""
    model, batch, found, runs = case.build().train(), case.batch(), [], []
    blocks = [module for name, module in model.named_modules() if name.endswith(".feed_forward")]
    for block in blocks:
        block.register_forward_pre_hook(lambda *_: runs.append(1))
    for times in (1, 2):
        if times == 2:
            model.activation_checkpointing_enable()
        runs.clear()
        model.zero_grad()
        case.loss(model, batch, use_cache=False).backward()
        assert len(runs) == times * len(blocks) > 0
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    for plain, recomputed in zip(*found, strict=True):
        torch.testing.assert_close(recomputed, plain, rtol=1e-5, atol=1e-6)


@every_case
def test_the_backward_pass_reaches_every_parameter(case: Case) -> None:
    """No parameter is without a gradient, and none has a gradient of zeros."""
    model = case.build()
    case.loss(model, case.batch()).backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not idle


@every_case
def test_a_fresh_model_learns_a_repeated_batch(case: Case) -> None:
    """From its construction 30 AdamW steps stay finite and lower the loss by more than 20%."""
    model, batch = case.build(factor=1.0).train(), case.batch()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1), []
    for _ in range(30):
        loss = case.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert torch.tensor(losses).isfinite().all()
    assert losses[-1] < 0.8 * losses[0]


@every_case
@torch.no_grad()
def test_embeddings_may_stand_for_ids(case: Case) -> None:
    """Looking the ids up before the call changes nothing; giving both or neither is refused."""
    model, batch = case.build(), case.batch()
    embeds = model.get_input_embeddings()(batch["input_ids"])
    given = {"inputs_embeds": embeds, **{k: v for k, v in batch.items() if k != "input_ids"}}
    assert gap(case.outputs(model, given), case.outputs(model, batch)) < SAME
    for wrong in ({**batch, "inputs_embeds": embeds}, {}):
        with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
            model(**wrong)
