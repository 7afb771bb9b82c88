"""Tools of the Hugging Face world on our models: Trainer, PEFT, TRL, assistants, device maps, two-table resizing."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

from contract import SAME, gap
from gnomon import GnomonForCausalLM, GnomonForSeq2SeqLM
from gnomon.data.tokenizers import build_tokenizer
from samples import TINY, build, language_model, random_ids

pytestmark = [
    # what transformers has renamed and its neighbors still say
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

LINE = "to be or not to be, that is the question"
SITES = ("query", "key", "value", "output")


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer({"kind": "byte"})


def arguments(folder: Path, **options) -> dict:
    """Six quick steps on the CPU."""
    return {
        "output_dir": str(folder),
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "bf16": False,
        **options,
    }


def assert_learned(trainer) -> None:
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(losses) == 6
    assert losses[-1] < 0.95 * losses[0]


def frozen(model) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}


@pytest.mark.parametrize("bf16", [False, True])
def test_transformers_own_trainer_trains_and_saves(tokenizer, bf16: bool, tmp_path: Path) -> None:
    """In float32 and in bfloat16 autocast: the loss falls, and what it saved loads as it was trained."""
    model = language_model(vocab_size=len(tokenizer))
    data = Dataset.from_dict({"input_ids": [tokenizer(LINE)["input_ids"]] * 16})
    trainer = Trainer(
        model,
        TrainingArguments(**arguments(tmp_path, bf16=bf16)),
        train_dataset=data,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )
    trainer.train()
    assert_learned(trainer)
    trainer.save_model()
    loaded = GnomonForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())


@pytest.mark.parametrize(
    ("variant", "targets"),
    [
        ("linear", {"target_modules": list(SITES)}),
        (
            "l2_norm_gelu",
            {"target_parameters": [f"{site}.{kind}_tokens" for site in SITES for kind in ("key", "value")]},
        ),
    ],
)
def test_peft_adapts_projections_and_parameter_tokens(variant: str, targets: dict, tmp_path: Path) -> None:
    """LoRA on query, key, value and output: exact at the start, the rest frozen, saved alone, and merged."""
    peft = pytest.importorskip("peft")
    ids, plain = random_ids(2, 9), language_model(variant)
    model = peft.get_peft_model(language_model(variant), peft.LoraConfig(task_type="CAUSAL_LM", r=4, **targets))
    assert gap(model(input_ids=ids).logits, plain(input_ids=ids).logits) < SAME
    per_layer = len(SITES) * (2 if "target_parameters" in targets else 1)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(trained) == 2 * 2 * per_layer  # A and B, in two layers
    before, optimizer = frozen(model), torch.optim.SGD(trained, lr=0.5)
    losses = []
    for _ in range(4):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in frozen(model).items())
    adapted = model.eval()(input_ids=ids).logits
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("model*.safetensors"))
    again = peft.PeftModel.from_pretrained(language_model(variant), tmp_path)
    assert gap(again(input_ids=ids).logits, adapted) < SAME
    merged = again.merge_and_unload()
    assert type(merged) is GnomonForCausalLM
    assert gap(merged(input_ids=ids).logits, adapted) < SAME
    assert merged.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("adapted", [False, True])
def test_trl_fine_tunes_whole_models_and_adapters(tokenizer, adapted: bool, tmp_path: Path) -> None:
    """SFTTrainer lowers the loss, with every weight or with LoRA on parameter tokens under gradient checkpointing."""
    trl, peft = pytest.importorskip("trl"), pytest.importorskip("peft")
    tokens = ["feed_forward.key_tokens", "feed_forward.value_tokens"]
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_parameters=tokens) if adapted else None
    rate = 5e-2 if adapted else 1e-2
    trainer = trl.SFTTrainer(
        model=language_model(vocab_size=len(tokenizer)),
        args=trl.SFTConfig(**arguments(tmp_path, learning_rate=rate), max_length=32, activation_checkpointing=adapted),
        train_dataset=Dataset.from_dict({"text": [LINE] * 16}),
        processing_class=tokenizer,
        peft_config=config,
    )
    trainer.train()
    assert_learned(trainer)


@pytest.mark.parametrize("assistant", ["l2_norm_gelu", "linear"])
def test_an_assistant_model_changes_no_token(assistant: str) -> None:
    """Whether the assistant is the model itself or one that guesses otherwise, the text is the greedy one."""
    model, prompt = language_model(), random_ids(1, 5).clamp(min=1)
    options = {"max_new_tokens": 8, "pad_token_id": 0, "eos_token_id": None, "do_sample": False}
    found = model.generate(prompt, assistant_model=language_model(assistant), **options)
    assert torch.equal(found, model.generate(prompt, **options))


@pytest.mark.parametrize("device_map", ["cpu", "auto", {"": "cpu"}])
def test_device_maps_place_the_same_model(device_map, tmp_path: Path) -> None:
    """Loaded through accelerate, every tensor is the file's, ties are kept, and the outputs are equal."""
    model, ids = language_model(), random_ids(2, 9)
    model.save_pretrained(tmp_path)
    loaded = GnomonForCausalLM.from_pretrained(tmp_path, device_map=device_map)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    moved = {name: tensor.to("cpu") for name, tensor in loaded.state_dict().items()}
    assert all(torch.equal(moved[name], tensor) for name, tensor in model.state_dict().items())
    found = loaded(input_ids=ids.to(loaded.device)).logits
    assert gap(found.cpu(), model(input_ids=ids).logits) < SAME


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("rows", [70, 50])
def test_an_encoder_decoder_resizes_both_tables_and_the_head(tie: bool, rows: int) -> None:
    """Tied or apart, source and target know the new ids, the old rows are kept, and ties are what they were."""
    pair = {"num_hidden_layers": None, "encoder_layers": 2, "decoder_layers": 2, "decoder_start_token_id": 1}
    model = build(GnomonForSeq2SeqLM, {**TINY, **pair, "tie_word_embeddings": tie})
    ids, kept = random_ids(2, 7, vocab_size=50), min(rows, 64)
    before = model(input_ids=ids, decoder_input_ids=ids).logits
    model.resize_token_embeddings(rows, mean_resizing=False)
    encoder, decoder = model.model.encoder.embed_tokens, model.model.decoder.embed_tokens
    assert encoder.weight.shape[0] == decoder.weight.shape[0] == model.lm_head.weight.shape[0] == rows
    assert model.config.vocab_size == rows
    assert (encoder.weight is decoder.weight) == (encoder.weight is model.lm_head.weight) == tie
    after = model(input_ids=ids, decoder_input_ids=ids).logits
    assert gap(after[..., :kept], before[..., :kept]) < SAME
    last = torch.full((2, 3), rows - 1)
    assert model(input_ids=last, decoder_input_ids=last).logits.isfinite().all()


@pytest.mark.parametrize("variant", ["linear", "l2_norm_gelu"])
@torch.no_grad()
def test_eight_bit_weights_from_torchao_stay_near(variant: str) -> None:
    """Linear layers by their modules, key tokens by their names: outputs within 5%, and not the same."""
    quantization = pytest.importorskip("torchao.quantization")
    model, ids = language_model(variant), random_ids(2, 9)
    expected, rule = model(input_ids=ids).logits, quantization.Int8WeightOnlyConfig()
    if variant == "linear":
        quantization.quantize_(model.model.layers, rule)
    else:
        names = [name for name, _ in model.named_parameters() if name.endswith("key_tokens")]
        quantization.quantize_(model, quantization.FqnToConfig(dict.fromkeys(names, rule)), filter_fn=None)
    found = model(input_ids=ids).logits
    assert 0 < gap(found, expected) < 0.05
