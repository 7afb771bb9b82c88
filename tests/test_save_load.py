"""Saving and loading: the same tensors, nothing drawn anew, ties kept, and tau in float32 whatever the rest is."""

import copy
import json
import logging
import math
import pickle
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM

from contract import CASES, SAME, Case, gap
from gnomon import GnomonConfig, GnomonForCausalLM, GnomonModel
from gnomon.nn import Pattention
from samples import TINY, language_model, random_ids

every_case = pytest.mark.parametrize("case", CASES, ids=str)
EXACT = math.sqrt(2140)
"""A tau that bfloat16 would round from 46.2601 to 46.25."""


def load(cls, folder: Path, **options):
    """A model and what transformers says about its keys."""
    model, info = cls.from_pretrained(folder, output_loading_info=True, **options)
    return model, {name: keys for name, keys in info.items() if keys}


def scales(model) -> list[torch.Tensor]:
    return [m.score_scale for m in model.modules() if isinstance(m, Pattention) and m.score_scale is not None]


def edit(folder: Path, change) -> None:
    """Rewrite the weights of a checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@every_case
@torch.no_grad()
def test_a_saved_model_comes_back_bit_for_bit(case: Case, tmp_path: Path) -> None:
    """Every tensor is equal, every output the same, no key is missing or left over, and the model is ready to use."""
    model, batch = case.build(), case.batch()
    for scale in scales(model):
        scale.mul_(1.3)
    model.save_pretrained(tmp_path)
    loaded, trouble = load(case.head.cls, tmp_path)
    assert not trouble
    assert not loaded.training
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())
    assert gap(case.outputs(loaded, batch), case.outputs(model, batch)) < SAME
    assert {path.name for path in tmp_path.iterdir()} <= {
        "config.json", "model.safetensors", "generation_config.json",
    }  # fmt: skip


@every_case
@torch.no_grad()
def test_copies_and_pickles_are_models_of_their_own(case: Case) -> None:
    """A deep copy and a pickle give the same outputs, and changing them leaves the original alone."""
    model, batch = case.build(), case.batch()
    expected = case.outputs(model, batch)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(case.outputs(other, batch), expected)
        for parameter in other.parameters():
            parameter.zero_()
        assert torch.equal(case.outputs(model, batch), expected)


@every_case
def test_a_missing_tensor_is_reported_and_no_other_is_drawn_anew(case: Case, tmp_path: Path) -> None:
    """With one tensor of each kind taken from the file, all others are still the file's own bits."""
    model = case.build()
    model.save_pretrained(tmp_path)
    taken = next(name for name in model.state_dict() if "layers.1.attention.query." in name)

    def change(tensors) -> None:
        del tensors[taken]
        tensors["surplus"] = torch.zeros(1)

    edit(tmp_path, change)
    loaded, trouble = load(case.head.cls, tmp_path)
    assert trouble == {"missing_keys": {taken}, "unexpected_keys": {"surplus"}}
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor) == (name != taken), name
    ratio = loaded.state_dict()[taken].std() / model.state_dict()[taken].std()
    factor = 1.0 if model.config.initialization in ("magneto", "deepnet") else 4.0  # as `samples.build` has it
    assert 0.6 < ratio * factor < 1.6, "the fresh tensor has the usual size"


@pytest.mark.parametrize("case", [case for case in CASES if case.has_score_scale], ids=str)
def test_a_missing_score_scale_takes_the_value_of_its_count(case: Case, tmp_path: Path) -> None:
    """A file without one tau gives that tau its default, says so, and touches no other tensor."""
    model = case.build()
    names = [name for name in model.state_dict() if name.endswith("score_scale")]
    with torch.no_grad():
        for scale in scales(model):
            scale.mul_(2)
    model.save_pretrained(tmp_path)
    edit(tmp_path, lambda tensors: tensors.pop(names[-1]))
    loaded, trouble = load(case.head.cls, tmp_path)
    assert trouble == {"missing_keys": {names[-1]}}
    for name, tensor in model.state_dict().items():
        expected = tensor / 2 if name == names[-1] else tensor
        assert torch.equal(loaded.state_dict()[name], expected), name


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@torch.no_grad()
def test_the_score_scale_stays_float32_in_files_and_in_loaded_models(dtype, learn: bool, tmp_path: Path) -> None:
    """Saved from a narrow model or loaded into one, tau is float32 and keeps its last bit."""
    model, expected = language_model(learn_score_scale=learn), torch.tensor([EXACT])
    for scale in scales(model):
        scale.fill_(EXACT)
    wide, narrow = tmp_path / "wide", tmp_path / "narrow"
    model.save_pretrained(wide)
    model.to(dtype).save_pretrained(narrow)
    with safe_open(narrow / "model.safetensors", framework="pt") as file:
        stored = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    assert {t for name, t in stored.items() if name.endswith("score_scale")} == {torch.float32}
    assert {t for name, t in stored.items() if not name.endswith("score_scale")} == {dtype}
    for folder, options in ((wide, {"dtype": dtype}), (narrow, {}), (narrow, {"dtype": "auto"})):
        loaded = GnomonForCausalLM.from_pretrained(folder, **options)
        assert loaded.model.embed_tokens.weight.dtype == dtype
        assert all(torch.equal(scale.detach(), expected) and scale.dtype == torch.float32 for scale in scales(loaded))
        assert loaded(input_ids=random_ids(2, 5)).logits.dtype == dtype


def test_tied_weights_are_stored_once_and_tied_again_after_loading(tmp_path: Path) -> None:
    """One table in the file; in the loaded model the head is the embedding: editing the one changes the other."""
    model = language_model()
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in stored
    assert sum(tensor.shape == (64, 32) for tensor in stored.values()) == 1
    loaded = GnomonForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    before = loaded(input_ids=random_ids(1, 5)).logits
    with torch.no_grad():
        loaded.model.embed_tokens.weight[63] = 0.0
    after = loaded(input_ids=random_ids(1, 5, vocab_size=63)).logits
    assert after[..., 63].abs().max() == 0
    assert before[..., 63].abs().max() > 0


def test_an_untied_head_is_stored_beside_the_table(tmp_path: Path) -> None:
    """Two tables in the file, and they stay two."""
    language_model("untied head").save_pretrained(tmp_path)
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= load_file(tmp_path / "model.safetensors").keys()
    loaded = GnomonForCausalLM.from_pretrained(tmp_path)
    assert not torch.equal(loaded.lm_head.weight, loaded.model.embed_tokens.weight)


@pytest.mark.parametrize("variant", ["l2_norm_gelu", "untied head"])
@pytest.mark.parametrize("rows", [70, 50])
@torch.no_grad()
def test_resizing_the_vocabulary_keeps_the_old_rows(variant: str, rows: int, tmp_path: Path) -> None:
    """More or fewer rows: old logits stay, config and ties follow, and the result can be saved and loaded."""
    model, ids, kept = language_model(variant), random_ids(2, 9, vocab_size=50), min(rows, 64)
    before = model(input_ids=ids).logits
    model.resize_token_embeddings(rows, mean_resizing=False)
    after = model(input_ids=ids).logits
    assert after.shape[-1] == model.config.vocab_size == rows
    assert gap(after[..., :kept], before[..., :kept]) < SAME
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == (variant != "untied head")
    model.save_pretrained(tmp_path)
    loaded, trouble = load(GnomonForCausalLM, tmp_path)
    assert not trouble
    assert gap(loaded(input_ids=ids).logits, after) < SAME


def test_a_checkpoint_of_another_width_is_refused_with_both_widths(tmp_path: Path, caplog) -> None:
    """A d=32 file in a d=48 model: loading fails, and the report names the shapes of both."""
    language_model().save_pretrained(tmp_path)
    wider = GnomonConfig(**{**TINY, "hidden_size": 48, "head_dim": 8})
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    level = logger.level
    logger.setLevel(logging.WARNING)  # a command run in this process has silenced it
    with pytest.raises(RuntimeError, match="mismatched"):
        GnomonForCausalLM.from_pretrained(tmp_path, config=wider)
    logger.removeHandler(caplog.handler)
    logger.setLevel(level)
    assert "torch.Size([16, 32])" in caplog.text
    assert "torch.Size([16, 48])" in caplog.text


@torch.no_grad()
def test_sharded_files_and_every_auto_class_load_the_same_model(tmp_path: Path) -> None:
    """Several files are one model; AutoModelForCausalLM finds the head, AutoModel the stack without it."""
    model, ids = language_model(), random_ids(2, 9)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is GnomonForCausalLM
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    stack = AutoModel.from_pretrained(tmp_path)
    assert type(stack) is GnomonModel
    assert torch.equal(stack(input_ids=ids).last_hidden_state, model.model(input_ids=ids).last_hidden_state)


@torch.no_grad()
def test_a_stack_without_a_head_becomes_a_language_model(tmp_path: Path) -> None:
    """The head of a tied model needs nothing from the file, so loading the stack is enough."""
    model, ids = language_model(), random_ids(2, 9)
    model.model.save_pretrained(tmp_path)
    loaded, trouble = load(GnomonForCausalLM, tmp_path)
    assert not trouble
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


def test_parameter_names_are_the_published_ones(tmp_path: Path) -> None:
    """The names in a file are a promise: other tools and the conversion tables read them."""
    language_model("learned score scale").save_pretrained(tmp_path)
    sites = [f"attention.{site}" for site in ("query", "key", "value", "output")] + ["feed_forward"]
    kinds = ("key_tokens", "value_tokens", "score_scale")
    layers = {f"model.layers.{layer}.{site}.{kind}" for layer in range(2) for site in sites for kind in kinds}
    expected = layers | {"model.embed_tokens.weight", "model.norm.weight", "model.norm.bias"}
    assert load_file(tmp_path / "model.safetensors").keys() == expected
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("gnomon", ["GnomonForCausalLM"])
