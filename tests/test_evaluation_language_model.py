"""The score of a language model against sums written out by hand, on several kinds of models."""

import math

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from gnomon.data.packing import pack
from gnomon.data.tokenizers import build_tokenizer
from gnomon.evaluation.language_model import evaluate_language_model

DOCUMENTS = {"a": "Who's there? Größe!\n" * 3, "b": "Nay, answer me: stand, and unfold yourself.\n"}
TOKENIZER = build_tokenizer({"kind": "byte"})
VOCABULARY = len(TOKENIZER)
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def make(kind, seed=0):
    """A small model of that kind, far from uniform, with dropout."""
    torch.manual_seed(seed)
    if kind == "gpt2":
        config = GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=16)
        model = GPT2LMHeadModel(config)
    elif kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=48, attention_dropout=0.3))
    else:
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, intermediate_size=48, hidden_dropout=0.3))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


MODELS = ("gpt2", "llama", "neox")


def by_hand(model, ids, length):
    """Sum of -log P of every id but the first, one window and one position at a time, in float64; and how many."""
    model = model.double().eval()
    total, count = 0.0, 0
    for start in range(0, len(ids) - 1, length - 1):
        window = ids[start : start + length]
        for end in range(1, len(window)):
            logits = model(torch.tensor([window[:end]])).logits[0, -1]
            total -= torch.log_softmax(logits, -1)[window[end]].item()
            count += 1
    return total, count


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_loss_is_the_mean_of_every_token_by_hand(kind):
    """Loss, perplexity and bits per byte are those of a loop over single positions of the stream."""
    ids = [256, *DOCUMENTS["a"].encode(), 256, *DOCUMENTS["b"].encode(), 256]
    score = evaluate_language_model(make(kind), pack(DOCUMENTS, TOKENIZER, 16), batch_size=4)
    total, count = by_hand(make(kind), ids, 16)
    text = "".join(DOCUMENTS.values())
    assert score.tokens == count == len(ids) - 1
    assert score.loss == pytest.approx(total / count, rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(total / count), rel=1e-4)
    assert score.bits_per_byte == pytest.approx(total / math.log(2) / len(text.encode()), rel=1e-5)
    assert (score.bytes, score.characters, score.unknown) == (len(text.encode()), len(text), 0)
    assert score.bytes > score.characters


@pytest.mark.parametrize("kind", MODELS)
def test_batch_size_changes_nothing_but_rounding(kind):
    """One window at a time, several, and all at once give the same loss, the short last window included."""
    packed = pack(DOCUMENTS, TOKENIZER, 16)
    assert len(packed[-1]["input_ids"]) < 16
    scores = [evaluate_language_model(make(kind), packed, batch_size=size) for size in (1, 3, 100)]
    assert {score.tokens for score in scores} == {packed.num_predicted}
    for score in scores[1:]:
        assert score.loss == pytest.approx(scores[0].loss, rel=1e-6)


def test_window_as_long_as_the_position_table_is_scored():
    """A model with 16 learned positions scores windows of 16: a window's length is what the model reads."""
    assert evaluate_language_model(make("gpt2"), pack(DOCUMENTS, TOKENIZER, 16)).tokens > 0


def test_uniform_model_costs_the_logarithm_of_the_vocabulary():
    """A model whose logits are all equal has loss ln(258) and perplexity 258 on any text."""
    model = make("llama")
    torch.nn.init.zeros_(model.lm_head.weight)
    score = evaluate_language_model(model, pack(DOCUMENTS, TOKENIZER, 16))
    assert score.loss == pytest.approx(math.log(VOCABULARY), rel=1e-6)
    assert score.perplexity == pytest.approx(VOCABULARY, rel=1e-5)
    assert score.bits_per_byte == pytest.approx(score.tokens * math.log2(VOCABULARY) / score.bytes, rel=1e-6)


def test_bits_per_byte_does_not_depend_on_how_the_text_is_tokenized():
    """Two tokenizers whose models assign the same information to a text get the same bits per byte."""
    documents = {"a": "ab" * 40}
    characters = build_tokenizer({"kind": "char"}, documents)
    scores = []
    for tokenizer in (TOKENIZER, characters):
        model = make("llama")
        model.resize_token_embeddings(len(tokenizer))
        torch.nn.init.zeros_(model.lm_head.weight)
        scores.append((evaluate_language_model(model, pack(documents, tokenizer, 16)), len(tokenizer)))
    (first, rows), (second, other_rows) = scores
    assert first.bits_per_byte / second.bits_per_byte == pytest.approx(math.log(rows) / math.log(other_rows))


def test_single_losses_are_summed_in_float64():
    """A large loss does not swallow the small ones: 1e8 nats and a hundred of 1 give exactly 1e8 + 100 in sum."""

    class Fixed(torch.nn.Module):
        """A model with two ids whose loss is 1e8 at the first predicted place of the text and 1 after it."""

        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(2, 1)

        def get_input_embeddings(self):
            return self.table

        def forward(self, input_ids, use_cache):
            logits = torch.zeros(*input_ids.shape, 2)
            logits[..., 0] = torch.log(torch.tensor(math.e - 1))
            logits[0, 0, 0] = 1e8
            return type("Output", (), {"logits": logits})

    class OneWindow(list):
        num_bytes, num_characters, num_unknown = 101, 101, 0

    ids = torch.ones(102, dtype=torch.int64)
    windows = OneWindow([{"input_ids": ids, "labels": ids}])
    score = evaluate_language_model(Fixed(), windows, batch_size=1)
    assert score.loss * score.tokens == pytest.approx(1e8 + 100, abs=1e-2)
    assert score.perplexity == math.inf


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_leaves_the_model_as_it_was(training):
    """Dropout is off during the evaluation; afterwards every module has its own mode, and no gradient exists."""
    model = make("neox").train(training)
    model.gpt_neox.layers[0].eval()
    modes = [module.training for module in model.modules()]
    packed = pack(DOCUMENTS, TOKENIZER, 16)
    assert evaluate_language_model(model, packed) == evaluate_language_model(model, packed)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_failed_evaluation_restores_the_mode_too():
    """An error in the middle of the evaluation does not leave the model in evaluation mode."""
    model = make("llama").train()
    model.resize_token_embeddings(100)
    with pytest.raises(ValueError, match="outside the model's vocabulary of 100"):
        evaluate_language_model(model, pack(DOCUMENTS, TOKENIZER, 16))
    assert all(module.training for module in model.modules())


def test_padding_rows_that_a_caller_adds_are_not_counted():
    """Labels of -100 are left out of the sum and of the count, wherever they stand."""

    class Rows(list):
        num_bytes, num_characters, num_unknown = 20, 20, 0

    packed = pack({"a": "Who's there?\nNay, yes."}, TOKENIZER, 16)
    rows = [packed[index] for index in range(len(packed))]
    padded = [
        {
            "input_ids": torch.nn.functional.pad(row["input_ids"], (0, 5), value=257),
            "labels": torch.nn.functional.pad(row["labels"], (0, 5), value=-100),
        }
        for row in rows
    ]
    plain, filled = (evaluate_language_model(make("llama"), Rows(some)) for some in (rows, padded))
    assert filled.tokens == plain.tokens
    assert filled.loss == pytest.approx(plain.loss, rel=1e-6)


def test_progress_counts_windows_and_ends_at_all():
    """The callback sees the windows done, rising to their number, and their number."""
    packed = pack(DOCUMENTS, TOKENIZER, 16)
    calls = []
    evaluate_language_model(make("llama"), packed, batch_size=3, progress=lambda *call: calls.append(call))
    assert calls[-1] == (len(packed), len(packed))
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_impossible_batch_size_is_refused():
    """A batch of no windows is an error, not an endless loop."""
    with pytest.raises(ValueError, match="at least 1, not 0"):
        evaluate_language_model(make("llama"), pack(DOCUMENTS, TOKENIZER, 16), batch_size=0)


def test_score_is_a_plain_mapping_for_json():
    """to_dict holds every field under its own name."""
    score = evaluate_language_model(make("llama"), pack(DOCUMENTS, TOKENIZER, 16))
    assert score.to_dict() == {
        "loss": score.loss,
        "perplexity": score.perplexity,
        "bits_per_byte": score.bits_per_byte,
        "tokens": score.tokens,
        "bytes": score.bytes,
        "characters": score.characters,
        "unknown": 0,
    }
