"""The encoder-decoder: what it promises about source padding, caches, cross-attention, tables and its targets."""

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache, StaticCache

from contract import DIFFERENT, SAME, chunks, gap
from gnomon import GnomonConfig, GnomonEncoderDecoderModel, GnomonForCausalLM, GnomonForSeq2SeqLM, GnomonModel
from samples import PLACED, POSITIONED, VARIANTS, build, random_ids

PAIR = {
    "num_hidden_layers": None,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
NAMES = ("l2_norm_gelu", "grouped queries", "linear", "gated", *PLACED, *POSITIONED)
SOURCE, TARGET = 9, 8

every_variant = pytest.mark.parametrize("variant", NAMES)


def pair(variant: str, cls: type = GnomonForSeq2SeqLM, **changes):
    return build(cls, {**VARIANTS[variant], **PAIR, **changes})


def source(length: int = SOURCE, seed: int = 1):
    return random_ids(3, length, seed=seed) % 60 + 3


def target(length: int = TARGET, seed: int = 2):
    return random_ids(3, length, seed=seed) % 60 + 3


@every_variant
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_of_the_source_never_reaches_the_decoder(variant: str, side: str) -> None:
    """Whatever the padding holds; without the mask it does."""
    model, words, written = pair(variant), source(), target()
    expected = model(input_ids=words, decoder_input_ids=written).logits
    padding = random_ids(3, 4, seed=5)
    padded = torch.cat((padding, words) if side == "left" else (words, padding), dim=1)
    mask = torch.ones_like(padded)
    mask[:, :4] = 0
    mask = mask if side == "left" else mask.flip(-1)
    masked = model(input_ids=padded, attention_mask=mask, decoder_input_ids=written).logits
    assert gap(masked, expected) < SAME
    assert gap(model(input_ids=padded, decoder_input_ids=written).logits, expected) > DIFFERENT


@every_variant
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass(variant: str) -> None:
    """In one chunk, token by token and in uneven chunks, in dynamic and static caches; without a cache it does not."""
    model, words, written = pair(variant), source(), target()
    full = model(input_ids=words, decoder_input_ids=written).logits
    read = model.get_encoder()(words)
    for sizes in ((8,), (3, 1, 1, 1, 1, 1), (1, 2, 5)):
        pieces = chunks(TARGET, sizes)
        for kind in (DynamicCache, StaticCache):
            lengths = ({"max_cache_len": TARGET + 2}, {"max_cache_len": SOURCE}) if kind is StaticCache else ({}, {})
            cache = EncoderDecoderCache(*(kind(config=model.config, **length) for length in lengths))
            parts = [
                model(encoder_outputs=read, decoder_input_ids=written[:, piece], cache=cache, use_cache=True).logits
                for piece in pieces
            ]
            assert gap(torch.cat(parts, dim=1), full) < SAME, (sizes, kind)
        if len(sizes) > 1:
            forgetful = [model(encoder_outputs=read, decoder_input_ids=written[:, piece]).logits for piece in pieces]
            assert gap(torch.cat(forgetful, dim=1), full) > DIFFERENT


@torch.no_grad()
def test_keys_and_values_of_the_source_are_computed_once() -> None:
    """Four decoding steps project the encoder's output once in each layer, not four times."""
    model, calls = pair("linear"), []
    for layer in model.model.decoder.layers:
        layer.cross_attention.key.register_forward_pre_hook(lambda *_: calls.append(1))
    model.generate(source(), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert len(calls) == model.config.decoder_layers


@every_variant
@torch.no_grad()
def test_the_decoder_sees_the_source_and_never_its_own_future(variant: str) -> None:
    """A changed source changes every output; a changed target token leaves the outputs before it alone."""
    model, words, written = pair(variant), source(), target()
    expected = model(input_ids=words, decoder_input_ids=written).logits
    assert gap(model(input_ids=source(seed=7), decoder_input_ids=written).logits[:, :1], expected[:, :1]) > DIFFERENT
    other = written.clone()
    other[:, 5] = (other[:, 5] + 1) % 60 + 3
    changed = model(input_ids=words, decoder_input_ids=other).logits
    assert gap(changed[:, :5], expected[:, :5]) < SAME
    assert gap(changed[:, 5:], expected[:, 5:]) > DIFFERENT


@torch.no_grad()
@pytest.mark.parametrize("variant", ["l2_norm_gelu", "learned positions", "relative bias"])
def test_cross_attention_has_no_positions(variant: str) -> None:
    """With the encoder's output given, its order does not matter to the decoder."""
    model, written = pair(variant), target()
    memory = torch.randn(3, SOURCE, 32, generator=torch.Generator().manual_seed(0))
    straight = model(encoder_outputs=(memory,), decoder_input_ids=written).logits
    assert gap(model(encoder_outputs=(memory.flip(1),), decoder_input_ids=written).logits, straight) < SAME


@every_variant
def test_checkpointing_and_implementations_agree_and_every_parameter_learns(variant: str) -> None:
    """Eager, sdpa and recomputed gradients are equal, and no parameter goes without one."""
    model = pair(variant).train()
    batch = {"input_ids": source(), "labels": target()}
    found = []
    for implementation, recompute in (("sdpa", False), ("eager", False), ("sdpa", True)):
        model.set_attn_implementation(implementation)
        if recompute:
            model.activation_checkpointing_enable()
        model.zero_grad()
        model(**batch, use_cache=False).loss.backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert not [name for name, gradient in found[0].items() if not gradient.any()]
    for name, gradient in found[0].items():
        for other in found[1:]:
            torch.testing.assert_close(other[name], gradient, rtol=1e-4, atol=1e-5 * gradient.abs().max().item())


@torch.no_grad()
def test_greedy_generation_equals_ones_own_loop_and_beams_find_no_worse() -> None:
    """`generate` writes what the full pass would, padded source included; four beams reach at least its likelihood."""
    model, words = pair("sub, linear"), source()
    mask = torch.ones_like(words)
    mask[1, 5:] = 0
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    greedy = model.generate(words, attention_mask=mask, **options)
    written = torch.full((3, 1), 1)
    for _ in range(6):
        logits = model(input_ids=words, attention_mask=mask, decoder_input_ids=written).logits[:, -1]
        logits[:, 2] = -torch.inf
        written = torch.cat((written, logits.argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(greedy, written)

    def likelihood(ids):
        logits = model(input_ids=words, attention_mask=mask, decoder_input_ids=ids[:, :-1]).logits
        return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).sum((1, 2))

    beams = model.generate(words, attention_mask=mask, num_beams=4, **options)
    assert (likelihood(beams) >= likelihood(greedy) - 1e-4).all()


@torch.no_grad()
def test_a_shared_table_is_stored_once_and_comes_back_shared(tmp_path) -> None:
    """Encoder, decoder and head are one table, on disk too; untied ones are three, and stay so."""
    tied, untied = pair("linear"), pair("linear", tie_word_embeddings=False)
    for name, model, tables in (("tied", tied, 1), ("untied", untied, 3)):
        model.save_pretrained(tmp_path / name)
        with safe_open(tmp_path / name / "model.safetensors", "pt") as file:
            stored = [key for key in file.keys() if "embed_tokens" in key or "lm_head" in key]  # noqa: SIM118
        assert len(stored) == tables
        loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / name)
        assert isinstance(loaded, GnomonForSeq2SeqLM)
        storages = {
            table.weight.data_ptr()
            for table in (loaded.model.encoder.embed_tokens, loaded.model.decoder.embed_tokens, loaded.lm_head)
        }
        assert len(storages) == tables
        batch = {"input_ids": source(), "labels": target()}
        assert torch.equal(loaded(**batch).logits, model(**batch).logits)


def test_the_targets_are_the_inputs_one_place_later() -> None:
    """Labels give the inputs, -100 becomes padding, and the loss is the mean over the targets that count."""
    model, labels = pair("linear"), target()
    labels[1, 5:] = -100
    inputs = model.prepare_decoder_input_ids_from_labels(labels)
    assert inputs[:, 0].eq(1).all()
    assert torch.equal(inputs[0, 1:], labels[0, :-1])
    assert inputs[1].tolist() == [1, *labels[1, :5].tolist(), 0, 0]
    outputs = model(input_ids=source(), labels=labels)
    chosen = outputs.logits.log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    expected = -(chosen * labels.ne(-100)).sum() / labels.ne(-100).sum()
    torch.testing.assert_close(outputs.loss, expected)
    summed = model(input_ids=source(), labels=labels, num_items_in_batch=torch.tensor(10)).loss
    torch.testing.assert_close(summed, expected * labels.ne(-100).sum() / 10)


def test_outputs_name_both_sides() -> None:
    """Hidden states and attentions of encoder, decoder and between them, one a layer."""
    model = pair("linear")
    model.set_attn_implementation("eager")
    outputs = model(input_ids=source(), labels=target(), output_hidden_states=True, output_attentions=True)
    assert (len(outputs.encoder_hidden_states), len(outputs.decoder_hidden_states)) == (3, 4)
    assert (len(outputs.encoder_attentions), len(outputs.decoder_attentions)) == (2, 3)
    assert [tuple(each.shape) for each in outputs.cross_attentions] == [(3, 4, TARGET, SOURCE)] * 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model(labels=target()), "needs a source"),
        (lambda model: model(input_ids=source()), "needs decoder_input_ids, or labels"),
        (lambda model: model(input_ids=source(0), labels=target()), "at least one token; got length 0"),
        (
            lambda model: model(
                input_ids=source(), attention_mask=torch.tensor([[1] * 9, [0] * 9, [1] * 9]), labels=target()
            ),
            "row 1 has none",
        ),
        (lambda model: model(input_ids=source() + 90, labels=target()), "must lie in the vocabulary"),
        (lambda model: model(input_ids=source(), decoder_input_ids=target() + 90), "must lie in the vocabulary"),
    ],
)
def test_a_wrong_call_gets_one_sentence(call, message: str) -> None:
    """No source, no target, an empty source, ids outside the vocabulary: the rule and the value."""
    with pytest.raises(ValueError, match=message):
        call(pair("linear"))


def test_classes_and_configurations_that_do_not_fit_are_refused() -> None:
    """One stack for a pair, a pair for one stack, half a pair, and counts that contradict each other."""
    both, one = GnomonConfig(**{**VARIANTS["linear"], **PAIR}), GnomonConfig(**VARIANTS["linear"])
    for cls in (GnomonModel, GnomonForCausalLM):
        with pytest.raises(ValueError, match="use GnomonEncoderDecoderModel or GnomonForSeq2SeqLM"):
            cls(both)
    for cls in (GnomonEncoderDecoderModel, GnomonForSeq2SeqLM):
        with pytest.raises(ValueError, match="needs encoder_layers and decoder_layers"):
            cls(one)
    for fields, message in (
        ({"encoder_layers": 2}, "come together"),
        ({"encoder_layers": 2, "decoder_layers": 3, "num_hidden_layers": 4}, r"\(5\); got 4"),
        ({"encoder_layers": 2, "decoder_layers": 3, "is_decoder": True}, "is_decoder is for a single stack"),
    ):
        with pytest.raises(ValueError, match=message):
            GnomonConfig(**fields)
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        pair("linear", decoder_start_token_id=None)(input_ids=source(), labels=target())
