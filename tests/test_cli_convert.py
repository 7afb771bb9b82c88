"""Official TokenFormer files through `gnomon convert`, in every form that they come in, and back."""

import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, pipeline

import gnomon
from conversions import convert, gap, load, logits, write_tokenizer
from samples import golden, parameters_of, random_ids

SCORES = ("l2_norm_gelu", "gelu_l2_norm", "softmax")
TABLE = "sequential.0.word_embeddings.weight"


def official(score: str = "l2_norm_gelu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the settings of a golden checkpoint."""
    tensors, config = golden(f"tokenformer_lm_{score}")
    keys = ("seq_length", "vocab_size", "loss")
    return parameters_of(tensors), {key: value for key, value in config.items() if key not in keys}


def write_settings(path: Path, settings: dict[str, Any]) -> Path:
    """The settings in the official form: JSON with comments, hyphens in some keys."""
    lines = [f'  "{key.replace("num_", "num-")}": {json.dumps(value)},  # {key}' for key, value in settings.items()]
    path.write_text("# a model of two layers\n{\n" + "\n".join(lines) + "\n}\n")
    return path


def write_layer_files(folder: Path, tensors: dict[str, Tensor]) -> None:
    """What a pipeline run leaves behind: a file a layer, an empty one for the layer that has no parameters."""
    folder.mkdir()
    for layer in range(6):
        prefix = f"sequential.{layer}."
        inside = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        if inside:
            torch.save(inside, folder / f"layer_{layer:02d}-model_00-model_states.pt")


def write_source(folder: Path, form: str, tensors: dict[str, Tensor]) -> Path:
    """A checkpoint in one of the forms that are around."""
    if form == "safetensors":
        save_file(tensors, folder / "weights.safetensors")
        return folder / "weights.safetensors"
    if form == "layer files":
        write_layer_files(folder / "global_step100", tensors)
        return folder / "global_step100"
    if form == "shards":
        names, source = list(tensors), folder / "shards"
        source.mkdir()
        places = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(names)}
        for part in set(places.values()):
            save_file({name: tensors[name] for name in names if places[name] == part}, source / part)
        (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        return source
    if form == "pipeline names":
        tensors = {"tied_modules.embed.word_embeddings.weight" if n == TABLE else n: t for n, t in tensors.items()}
    if form == "module":
        tensors = {"module": tensors, "iteration": 5}
    (folder / "official").mkdir()
    torch.save(tensors, folder / "official/pytorch_model.bin")
    return folder / "official"


@pytest.mark.parametrize(
    ("score", "form"),
    [
        ("l2_norm_gelu", "folder"),
        ("gelu_l2_norm", "safetensors"),
        ("softmax", "layer files"),
        ("l2_norm_gelu", "pipeline names"),
        ("gelu_l2_norm", "module"),
        ("softmax", "shards"),
    ],
)
def test_files_in_every_form_give_the_reference_codes_logits_and_come_back_bit_for_bit(
    tmp_path: Path, score: str, form: str
) -> None:
    """Through files alone: logits within 1e-5 of the reference code's, and every tensor back to the last bit."""
    tensors, settings = official(score)
    source, config = write_source(tmp_path, form, tensors), write_settings(tmp_path / "tiny.yml", settings)
    convert("tokenformer", source, tmp_path / "ours", "--config", config)
    numbers = golden(f"tokenformer_lm_{score}")[0]
    torch.testing.assert_close(
        logits(load(tmp_path / "ours"), numbers["input_ids"]), numbers["logits"], rtol=1e-5, atol=1e-5
    )
    convert(tmp_path / "ours", tmp_path / "back", "--to", "tokenformer")
    back = torch.load(tmp_path / "back/pytorch_model.bin", weights_only=True)
    assert back.keys() == tensors.keys()
    assert all(back[name].dtype == tensors[name].dtype and torch.equal(back[name], tensors[name]) for name in tensors)
    convert("tokenformer", tmp_path / "back", tmp_path / "again")
    ours, again = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "again"))
    assert all(torch.equal(ours[name], again[name]) for name in ours.keys() | again.keys())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_stay_so_both_ways(tmp_path: Path, dtype: torch.dtype) -> None:
    """A half-precision file gives a checkpoint of its own size with float32 tau, and the same bytes back."""
    tensors, settings = official()
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    convert(
        *("tokenformer", write_source(tmp_path, "folder", tensors), tmp_path / "ours"),
        *("--config", write_settings(tmp_path / "tiny.yml", settings)),
    )
    ours = load_file(tmp_path / "ours/model.safetensors")
    assert {tensor.dtype for name, tensor in ours.items() if "score_scale" not in name} == {dtype}
    assert {float(t) for n, t in ours.items() if n.endswith("feed_forward.score_scale")} == {
        float(torch.tensor(math.sqrt(80)))
    }
    convert(tmp_path / "ours", tmp_path / "back", "--to", "tokenformer")
    back = torch.load(tmp_path / "back/pytorch_model.bin", weights_only=True)
    assert all(back[name].dtype == dtype and torch.equal(back[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("score", SCORES)
def test_a_grown_checkpoint_goes_back_where_tau_can_be_folded(tmp_path: Path, score: str) -> None:
    """After growth that holds tau, l2_norm_gelu is refused with both numbers; the others compute the same."""
    tensors, settings = official(score)
    convert(
        *("tokenformer", write_source(tmp_path, "folder", tensors), tmp_path / "ours"),
        *("--config", write_settings(tmp_path / "tiny.yml", settings)),
    )
    model, ids = load(tmp_path / "ours"), random_ids(2, 12)
    if score == "softmax":  # zero keys are never neutral under it; a model trained with a learned tau stands here
        for module in model.modules():
            if isinstance(module, gnomon.nn.Pattention):
                module.score_scale.mul_(1.3)
    else:
        gnomon.grow(model, num_feed_forward_tokens=125)
    model.save_pretrained(tmp_path / "grown")
    if score == "l2_norm_gelu":
        with pytest.raises(ValueError, match=rf"{math.sqrt(80):.6g}, .* sqrt\(125\) = {math.sqrt(125):.6g}.* train on"):
            convert(tmp_path / "grown", tmp_path / "back", "--to", "tokenformer")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["grown", "official", "ours", "tiny.yml"]
        return
    convert(tmp_path / "grown", tmp_path / "back", "--to", "tokenformer")
    convert("tokenformer", tmp_path / "back", tmp_path / "again")
    assert gap(logits(load(tmp_path / "again"), ids), logits(model, ids)) < 1e-6


@pytest.fixture(scope="module")
def with_padding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted checkpoint of 64 rows whose tokenizer has 40 ids, and whose padding rows are the likeliest."""
    folder = tmp_path_factory.mktemp("padding")
    tensors, settings = official()
    table, last = tensors[TABLE].clone(), "sequential.5.norm.bias"
    table[40:] = 3.0 * torch.ones(32)
    tensors = {**tensors, TABLE: table, last: tensors[last] + 1.0}
    source, config = write_source(folder, "folder", tensors), write_settings(folder / "tiny.yml", settings)
    convert(
        *("tokenformer", source, folder / "ours", "--config", config, "--tokenizer", write_tokenizer(folder)),
    )
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"do_sample": True, "temperature": 2.0},
        {"num_beams": 3},
        {"num_beams": 2, "do_sample": True},
        {"generation_config": GenerationConfig(do_sample=True)},
    ],
    ids=str,
)
def test_padding_rows_are_never_generated(with_padding: Path, options: dict[str, Any]) -> None:
    """Rows behind the tokenizer's ids, though the likeliest by far, are never emitted, saved and loaded twice."""
    torch.manual_seed(0)
    load(with_padding / "ours").save_pretrained(with_padding / "saved")
    model = load(with_padding / "saved")
    ids = random_ids(4, 5, vocab_size=40)
    assert logits(model, ids).argmax(-1).min() >= 40
    generated = model.generate(ids, max_new_tokens=12, min_new_tokens=12, pad_token_id=0, **options)[:, 5:]
    assert generated.shape == (4, 12)
    assert generated.max() < 40
    model.generation_config.suppress_tokens = None
    unbound = model.generate(ids, max_new_tokens=12, min_new_tokens=12, pad_token_id=0, **options)[:, 5:]
    assert unbound.max() >= 40


def test_a_bare_tokenizer_file_goes_along(with_padding: Path) -> None:
    """OUT loads as a tokenizer that knows what ends a document, and a pipeline writes with both."""
    tokenizer = AutoTokenizer.from_pretrained(with_padding / "ours")
    assert (len(tokenizer), tokenizer.eos_token_id, tokenizer.bos_token_id) == (40, 0, 0)
    model = load(with_padding / "ours")
    assert (model.config.eos_token_id, model.generation_config.eos_token_id) == (0, 0)
    write = pipeline("text-generation", model=str(with_padding / "ours"))
    written = write("\u0101\u0102", max_new_tokens=5, min_new_tokens=5, do_sample=False, return_tensors=True)
    ids = written[0]["generated_token_ids"]
    assert ids[:2] == [1, 2]
    assert len(ids) == 7
    assert max(ids) < 40


def test_the_released_table_leaves_out_its_last_27_rows_and_another_vocabulary_may_say_otherwise(
    tmp_path: Path,
) -> None:
    """Rows 50277 to 50303 without a word; --token-ids for other tables; ids beyond the rows are refused."""
    tensors, settings = official()
    tensors = {**tensors, TABLE: torch.zeros(50304, 32)}
    source, config = write_source(tmp_path, "folder", tensors), write_settings(tmp_path / "tiny.yml", settings)
    convert("tokenformer", source, tmp_path / "released", "--config", config)
    suppressed = GenerationConfig.from_pretrained(tmp_path / "released").suppress_tokens
    assert suppressed == list(range(50277, 50304))
    convert("tokenformer", source, tmp_path / "other", "--config", config, "--token-ids", 50300)
    assert GenerationConfig.from_pretrained(tmp_path / "other").suppress_tokens == list(range(50300, 50304))
    with pytest.raises(ValueError, match="between 1 and the 50304 rows of the model's table; got 50305"):
        convert("tokenformer", source, tmp_path / "more", "--config", config, "--token-ids", 50305)


class _Trap:
    """An object whose unpickling makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def spoil(folder: Path, kind: str) -> list[object]:
    """The arguments of a conversion that must be refused."""
    tensors, settings = official()
    tokenizer: list[object] = []
    if kind == "code in the file":
        tensors = {**tensors, "sequential.9.trap": _Trap(folder / "sprung")}
    elif kind == "misnamed":
        tensors["sequential.2.mlp.keys"] = tensors.pop("sequential.2.mlp.key_param_tokens")
    elif kind == "misshapen":
        tensors["sequential.3.attention.proj.value_param_tokens"] = torch.zeros(28, 31)
    elif kind == "quantized":
        tensors["sequential.5.norm.bias"] = torch.zeros(32, dtype=torch.int8)
    elif kind == "two tables":
        tensors["tied_modules.embed.word_embeddings.weight"] = tensors[TABLE] + 1
    elif kind.startswith("settings"):
        _, key, value = kind.split()
        settings[key] = int(value)
    elif kind == "large tokenizer":
        tokenizer = ["--tokenizer", write_tokenizer(folder, 65)]
    elif kind == "no tokenizer":
        (folder / "words.json").write_text("{}")
        tokenizer = ["--tokenizer", folder / "words.json"]
    source = write_source(folder, "folder", tensors)
    if kind == "cut off":
        whole = (source / "pytorch_model.bin").read_bytes()
        (source / "pytorch_model.bin").write_bytes(whole[: len(whole) // 2])
    elif kind == "old code in the file":
        (source / "pytorch_model.bin").write_bytes(pickle.dumps(_Trap(folder / "sprung"), protocol=2))
    elif kind == "split layers":
        torch.save({"norm.bias": torch.zeros(32)}, source / "layer_05-model_01-model_states.pt")
    elif kind == "index that leads away":
        places = {TABLE: "../official/pytorch_model.bin"}
        (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    elif kind == "empty folder":
        (source / "pytorch_model.bin").unlink()
    elif kind == "existing output":
        (folder / "ours").mkdir()
    config = write_settings(folder / "tiny.yml", settings)
    return ["tokenformer", source, folder / "ours", "--config", config, *tokenizer]


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("code in the file", ValueError, r"pytorch_model.bin holds more than tensors: it asks for posix.mkdir"),
        ("old code in the file", ValueError, r"holds more than tensors.* nothing in it was run"),
        ("misnamed", ValueError, "lacks 1 of 23 tensors, the first sequential.2.mlp.key_param_tokens"),
        ("misshapen", ValueError, r"proj.value_param_tokens has shape \(28, 31\), but the .* makes it \(28, 32\)"),
        ("quantized", ValueError, "sequential.5.norm.bias holds int8 numbers"),
        ("two tables", ValueError, "two different tensors for sequential.0.word_embeddings.weight"),
        ("settings num_layers 3", ValueError, "num_layers is 3 in the configuration, but the .* weights have 2 layers"),
        ("settings hidden_size 40", ValueError, "hidden_size is 40 in the configuration, but 32 in the"),
        ("settings qkv_slot_num 25", ValueError, "qkv_slot_num is 25 in the configuration, but 24 in the"),
        ("settings proj_slot_num 20", ValueError, "proj_slot_num is 20 in the configuration, but 28 in the"),
        ("settings ffn_slot_num 81", ValueError, "ffn_slot_num is 81 in the configuration, but 80 in the"),
        ("settings num_attention_heads 5", ValueError, "divisible by num_attention_heads .5"),
        ("large tokenizer", ValueError, "the tokenizer has 65 ids, but the weights have 64 rows"),
        ("no tokenizer", ValueError, "words.json is no tokenizer file"),
        ("cut off", ValueError, "is damaged or no file of weights"),
        ("split layers", ValueError, "layer_05-model_01-model_states.pt is one part of a layer"),
        ("index that leads away", ValueError, "a shard must lie in the index's own folder"),
        ("empty folder", FileNotFoundError, "holds no file of weights"),
        ("existing output", FileExistsError, "ours exists"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_nothing_is_written(
    tmp_path: Path, kind: str, error: type[Exception], message: str
) -> None:
    """One sentence names the tensor, the file or the two numbers; nothing runs, and the folder is as it was."""
    arguments = spoil(tmp_path, kind)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=message):
        convert(*arguments)
    assert sorted(tmp_path.rglob("*")) == before
    assert not (tmp_path / "sprung").exists()


def test_the_command_itself_ends_with_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    """A file with code in it, from a shell: one error line on stderr, no traceback, nothing run, nothing written."""
    command = [Path(sys.executable).parent / "gnomon", "convert", *spoil(tmp_path, "code in the file")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 2
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "It is refused, and nothing in it was run" in sentence
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "ours").exists()
    assert not (tmp_path / "sprung").exists()


def test_the_trap_of_these_tests_is_a_real_one(tmp_path: Path) -> None:
    """Plain unpickling of the refused file does make the folder."""
    pickle.loads(pickle.dumps(_Trap(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()
