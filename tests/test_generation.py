"""`generate` on our models: every strategy against a loop of forward passes, with every cache and padding."""

import warnings

import pytest
import torch
from transformers import DynamicCache, GenerationMixin, StaticCache, set_seed

from contract import SAME, gap
from gnomon import GnomonForCausalLM
from samples import language_model, random_ids

VARIANTS = ("l2_norm_gelu", "softmax", "learned score scale", "token lists", "no positions", "gated")
PAD = 0
OPTIONS = {"max_new_tokens": 8, "pad_token_id": PAD, "eos_token_id": None, "do_sample": False}


def prompts(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    """Random ids without the padding id, which `generate` would take for padding."""
    return random_ids(rows, length, seed=seed).clamp(min=1)


@torch.no_grad()
def own_loop(model, ids: torch.Tensor, steps: int = 8) -> torch.Tensor:
    """Greedy decoding with nothing but full forward passes."""
    for _ in range(steps):
        ids = torch.cat((ids, model(input_ids=ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)), dim=1)
    return ids


@torch.no_grad()
def log_probability(model, ids: torch.Tensor, start: int) -> torch.Tensor:
    logs = model(input_ids=ids).logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    return logs[:, start - 1 :].sum(-1)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
def test_greedy_decoding_equals_the_own_loop(variant: str, cache: str) -> None:
    """With a growing cache, a fixed one and none at all, eight tokens are those of eight full passes."""
    model, prompt = language_model(variant), prompts(3, 5)
    options = {"use_cache": False} if cache == "none" else {"cache_implementation": cache}
    assert torch.equal(model.generate(prompt, **OPTIONS, **options), own_loop(model, prompt))


@pytest.mark.parametrize("variant", ["l2_norm_gelu", "token lists", "no positions", "gated"])
def test_a_left_padded_batch_continues_each_prompt_as_alone(variant: str) -> None:
    """Prompts of 7, 4 and 2 tokens in one batch get the continuations they get one by one; without the mask not."""
    model, ids, lengths = language_model(variant), prompts(3, 7, seed=3), (7, 4, 2)
    mask = torch.stack([torch.arange(7) >= 7 - length for length in lengths]).long()
    padded = ids.masked_fill(mask == 0, PAD)
    together = model.generate(padded, attention_mask=mask, **OPTIONS)[:, 7:]
    blind = model.generate(padded, attention_mask=torch.ones_like(mask), **OPTIONS)[:, 7:]
    alone = [own_loop(model, ids[row : row + 1, 7 - length :])[0, length:] for row, length in enumerate(lengths)]
    assert torch.equal(together, torch.stack(alone))
    assert not torch.equal(together, blind)


def test_sampling_is_decided_by_the_seed() -> None:
    """The same seed draws the same tokens, another seed others; near temperature zero sampling is greedy."""
    model, prompt = language_model(), prompts(2, 5)
    drawn = []
    for seed in (0, 0, 1):
        set_seed(seed)
        drawn.append(model.generate(prompt, **{**OPTIONS, "do_sample": True, "temperature": 2.0, "top_k": 0}))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    cold = model.generate(prompt, **{**OPTIONS, "do_sample": True, "temperature": 1e-4})
    assert torch.equal(cold, own_loop(model, prompt))


def test_sampled_tokens_follow_the_models_distribution() -> None:
    """Over 4000 draws of one token the frequencies are the model's probabilities within 3%."""
    model, prompt = language_model(), prompts(1, 5)
    set_seed(0)
    options = {**OPTIONS, "do_sample": True, "max_new_tokens": 1, "top_k": 0}
    drawn = model.generate(prompt.expand(4000, -1), **options)[:, -1]
    with torch.no_grad():
        expected = model(input_ids=prompt).logits[0, -1].softmax(-1)
    assert (torch.bincount(drawn, minlength=64) / 4000 - expected).abs().max() < 0.03


@pytest.mark.parametrize("variant", VARIANTS)
def test_beam_search_finds_no_less_likely_text_than_greedy(variant: str) -> None:
    """Four beams, which re-order the cache's rows, return the sequence whose score they claim."""
    model, prompt = language_model(variant), prompts(2, 5)
    options = {**OPTIONS, "num_beams": 4, "num_return_sequences": 1, "length_penalty": 0.0}
    found = model.generate(prompt, **options, return_dict_in_generate=True, output_scores=True)
    scores = log_probability(model, found.sequences, start=5)
    torch.testing.assert_close(found.sequences_scores, scores, rtol=1e-4, atol=1e-3)
    assert (scores >= log_probability(model, own_loop(model, prompt), start=5) - 1e-3).all()


@pytest.mark.parametrize("make_cache", [DynamicCache, StaticCache])
@torch.no_grad()
def test_reordered_caches_continue_the_reordered_rows(make_cache) -> None:
    """After `reorder_cache` each row goes on from the text that it was given; without it, from another."""
    model, ids, more = language_model(), prompts(3, 5), prompts(3, 1, seed=2)
    order = torch.tensor([2, 2, 0])
    expected = model(input_ids=torch.cat((ids[order], more), dim=1)).logits[:, -1]
    for reorder in (True, False):
        cache = make_cache(config=model.config, **({"max_cache_len": 8} if make_cache is StaticCache else {}))
        model(input_ids=ids, cache=cache)
        if reorder:
            cache.reorder_cache(order)
        found = model(input_ids=more, cache=cache).logits[:, -1]
        assert (gap(found, expected) < SAME) == reorder


def test_prompt_lookup_gives_the_greedy_text() -> None:
    """Assisted decoding, which crops the cache after rejected guesses, changes no token."""
    model, prompt = language_model(), prompts(1, 3).repeat(1, 4)
    found = model.generate(prompt, **OPTIONS, prompt_lookup_num_tokens=3)
    assert torch.equal(found, own_loop(model, prompt))


def test_generation_goes_on_from_a_returned_cache() -> None:
    """Four tokens, then four more from the cache that came with them, are eight tokens."""
    model, prompt = language_model(), prompts(2, 5)
    first = model.generate(prompt, **{**OPTIONS, "max_new_tokens": 4}, return_dict_in_generate=True)
    then = model.generate(first.sequences, **{**OPTIONS, "max_new_tokens": 4}, cache=first.cache)
    assert torch.equal(then, own_loop(model, prompt))


def test_generation_starts_from_embeddings_too() -> None:
    """Given embeddings in place of ids, generate returns the new tokens of the greedy text."""
    model, prompt = language_model(), prompts(2, 5)
    found = model.generate(inputs_embeds=model.get_input_embeddings()(prompt), **OPTIONS)
    assert torch.equal(found, own_loop(model, prompt)[:, 5:])


def test_generation_stops_at_the_end_token_and_pads_after_it() -> None:
    """A row that has ended holds padding while the others go on."""
    model, prompt = language_model(), prompts(3, 5)
    text = own_loop(model, prompt)
    end = text[0, 7].item()
    found = model.generate(prompt, **{**OPTIONS, "eos_token_id": end})
    for row, expected in zip(found, text, strict=True):
        ends = (expected[5:] == end).nonzero().flatten().tolist()
        stop = 5 + ends[0] + 1 if ends else len(expected)
        assert torch.equal(row[:stop], expected[:stop])
        assert (row[stop:] == PAD).all()


def test_only_the_asked_positions_get_logits() -> None:
    """logits_to_keep computes the last positions, or the listed ones, and no others."""
    model, ids = language_model(), prompts(2, 9)
    full = model(input_ids=ids).logits
    assert torch.allclose(model(input_ids=ids, logits_to_keep=2).logits, full[:, -2:], atol=1e-5)
    assert torch.allclose(model(input_ids=ids, logits_to_keep=torch.tensor([0, 4])).logits, full[:, [0, 4]], atol=1e-5)


def test_the_old_name_of_the_cache_still_works_and_says_so() -> None:
    """past_key_values is transformers' own deprecated name: accepted with its warning, and the same result."""
    model, ids = language_model(), prompts(2, 6)
    found = []
    for name in ("cache", "past_key_values"):
        cache = DynamicCache(config=model.config)
        model(input_ids=ids[:, :5], cache=cache)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found.append(model(input_ids=ids[:, 5:], **{name: cache}).logits)
        assert any("past_key_values" in str(w.message) for w in caught) == (name == "past_key_values")
    assert torch.equal(*found)


def test_language_models_can_generate() -> None:
    """The class inherits GenerationMixin after PreTrainedModel, as transformers asks since 4.50."""
    bases = GnomonForCausalLM.__mro__
    assert GnomonForCausalLM.can_generate()
    assert bases.index(GenerationMixin) > 1


@pytest.mark.parametrize("wrong", [64, -1])
def test_a_prompt_outside_the_vocabulary_is_refused(wrong: int) -> None:
    """The error names the id, the vocabulary and the remedy, instead of an index error from the table."""
    with pytest.raises(ValueError, match=rf"0 to 63; got {wrong}; use the tokenizer that was saved with the model"):
        language_model().generate(torch.tensor([[1, wrong]]), **OPTIONS)


def test_a_mask_that_leaves_out_cached_tokens_is_refused() -> None:
    """With five cached tokens and three new ones a mask of three columns names the eight that it needs."""
    model, ids = language_model(), prompts(2, 8)
    cache = DynamicCache(config=model.config)
    model(input_ids=ids[:, :5], cache=cache)
    with pytest.raises(ValueError, match="at least 8; got 3"):
        model(input_ids=ids[:, 5:], cache=cache, attention_mask=torch.ones(2, 3))
