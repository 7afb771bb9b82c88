"""`GnomonConfig`: strict where transformers' own configurations are not, and the same after every round trip."""

import copy
import json
import math
from dataclasses import fields as dataclass_fields

import pytest
import torch
from transformers import AutoConfig, PreTrainedConfig

from gnomon import GnomonConfig, GnomonForCausalLM, GnomonModel
from gnomon.models.audio_fields import AUDIO_FIELDS
from gnomon.models.checks import CHOICES
from gnomon.models.sizes import DEFAULTS, resolve
from samples import LINEAR, TINY, VARIANTS

EVERY_FIELD = {
    "vocab_size": 77,
    "hidden_size": 40,
    "num_hidden_layers": 3,
    "encoder_layers": None,
    "decoder_layers": None,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 90,
    "hidden_act": "relu",
    "projection": "pattention",
    "feed_forward": "glu",
    "num_attention_tokens": [3, {"query": 4, "key": 5, "value": 6}, 7],
    "num_output_tokens": [8, 9, 10],
    "num_feed_forward_tokens": None,
    "score": "softmax",
    "learn_score_scale": True,
    "norm_placement": "peri",
    "norm": "rms",
    "final_norm": "layer_plain",
    "norm_eps": 1e-3,
    "residual_scale": None,
    "use_parallel_residual": True,
    "initialization": "normal",
    "initialization_flavor": "paper",
    "initializer_range": 0.3,
    "positions": "rotary",
    "position_offset": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 77.0, "partial_rotary_factor": 0.4},
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 64,
    "relative_attention_bidirectional": None,
    "scale_embedding": True,
    "max_position_embeddings": 99,
    "use_bias": True,
    "tie_word_embeddings": False,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.2,
    "drop_path_rate": 0.3,
    "classifier_pooling": "mean",
    "image_size": None,
    "patch_size": None,
    "num_channels": None,
    "patch_projection": None,
    "num_patch_tokens": None,
    "stem_conv_channels": None,
    "use_class_token": None,
    "use_image_padding": None,
    "num_modalities": None,
    "multiway": None,
    "num_modality_tokens": None,
    **dict.fromkeys(AUDIO_FIELDS),
    "use_cache": False,
    "is_decoder": True,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "pad_token_id": 4,
    "decoder_start_token_id": 5,
}
"""A value for each field, not its default wherever the other fields leave a choice."""

PAIR = {
    "num_hidden_layers": 5,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "is_decoder": None,
    "num_attention_tokens": 3,
    "num_output_tokens": [8, 9, 10, 11, 12],
    "norm_placement": "deep",
    "residual_scale": [1.5, 2.5],
    "use_parallel_residual": False,
    "initialization": "deepnet",
    "initialization_flavor": "torchscale",
    "positions": "relative_bias",
    "rope_parameters": None,
    "relative_attention_bidirectional": True,
}
"""What else the fields of an encoder-decoder may be."""

LEARNED = {"positions": "learned", "position_offset": 2, "rope_parameters": None}

IMAGES = {
    "vocab_size": None,
    "image_size": [24, 16],
    "patch_size": 4,
    "num_channels": 2,
    "patch_projection": "pattention",
    "num_patch_tokens": 11,
    "stem_conv_channels": [6, 7],
    "use_class_token": False,
    "use_image_padding": True,
    "positions": "sinusoidal_2d",
    "rope_parameters": None,
    "scale_embedding": False,
    "is_decoder": False,
}
"""What a model of images changes."""

MULTIWAY = {"num_modalities": 3, "multiway": "tokens", "num_modality_tokens": 12}


@pytest.mark.parametrize(
    "expected", [EVERY_FIELD, *({**EVERY_FIELD, **other} for other in (PAIR, LEARNED, IMAGES, MULTIWAY))]
)
def test_every_field_survives_saving_and_loading(expected: dict, tmp_path) -> None:
    """Every value comes back as it was, through the file and through AutoConfig, and nothing is derived anew."""
    assert expected.keys() == DEFAULTS.keys()
    GnomonConfig(**expected).save_pretrained(tmp_path)
    for loaded in (GnomonConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is GnomonConfig
        assert {name: getattr(loaded, name) for name in expected} == expected
        assert resolve(loaded.to_dict()) == loaded.to_dict()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_config_file_names_every_field_and_is_stable(variant: str, tmp_path) -> None:
    """Derived fields are written too, so that a file means the same for ever; saving again writes the same bytes."""
    GnomonConfig(**VARIANTS[variant]).save_pretrained(tmp_path)
    first = (tmp_path / "config.json").read_text()
    assert set(json.loads(first)) >= set(DEFAULTS)
    GnomonConfig.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert (tmp_path / "config.json").read_text() == first


def test_the_fields_are_those_of_the_torch_free_table() -> None:
    """`sizes.DEFAULTS` and the dataclass agree in names and defaults."""
    inherited = {field.name for field in dataclass_fields(PreTrainedConfig)}
    own = {f.name: f.default for f in dataclass_fields(GnomonConfig) if f.name in DEFAULTS or f.name not in inherited}
    assert own == DEFAULTS


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("hiden_size", "hidden_size"),
        ("num_atention_tokens", "num_attention_tokens"),
        ("num_layers", "num_hidden_layers"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_nearest_one(key: str, near: str, tmp_path) -> None:
    """Keyword, dictionary and file: an unknown key never passes silently."""
    message = f"unknown configuration key '{key}'; did you mean '{near}'"
    GnomonConfig(**TINY).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: 3}))
    for build in (
        lambda: GnomonConfig(**TINY, **{key: 3}),
        lambda: GnomonConfig.from_dict({**TINY, key: 3}),
        lambda: GnomonConfig.from_pretrained(tmp_path),
        lambda: AutoConfig.from_pretrained(tmp_path),
    ):
        with pytest.raises(ValueError, match=message):
            build()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "32"),
        ("hidden_size", 32.0),
        ("num_hidden_layers", True),
        ("norm_eps", "1e-5"),
        ("tie_word_embeddings", "yes"),
        ("learn_score_scale", 1),
        ("num_attention_tokens", (16, 16)),
        ("num_attention_tokens", 1.5),
        ("num_output_tokens", {"query": 1, "key": 2, "value": 3}),
        ("rope_parameters", 0.25),
        ("is_decoder", "no"),
    ],
)
def test_a_wrong_type_is_refused_by_the_fields_name(field: str, value: object) -> None:
    """A TypeError names the field, and nothing is converted behind the user's back."""
    with pytest.raises(TypeError, match=f"'{field}'"):
        GnomonConfig(**{**TINY, field: value})


@pytest.mark.parametrize("field", CHOICES)
def test_a_choice_outside_its_values_is_refused_with_all_of_them(field: str) -> None:
    """Every field that is a choice lists what it can be."""
    with pytest.raises(ValueError, match=f"{field} must be one of {', '.join(CHOICES[field])}; got 'nonsense'"):
        GnomonConfig(**{**TINY, field: "nonsense"})


@pytest.mark.parametrize("field", CHOICES)
def test_every_choice_can_be_built_and_run(field: str) -> None:
    """There is no value on the list that does not work."""
    needed = {
        "magneto": {"norm_placement": "sub"},
        "deepnet": {"norm_placement": "deep"},
        "torchscale": {"norm_placement": "sub"},
    }
    for value in CHOICES[field]:
        if value == "sinusoidal_2d":
            continue  # for images, where test_vision.py runs it
        base = LINEAR if field in ("hidden_act", "feed_forward") else {k: TINY[k] for k in TINY if "tokens" not in k}
        fields = {k: v for k, v in {**base, field: value, **needed.get(value, {})}.items() if k != "intermediate_size"}
        output = GnomonModel(GnomonConfig(**fields))(input_ids=torch.zeros(1, 3, dtype=torch.long))
        assert output.last_hidden_state.isfinite().all()


REFUSED = [
    ({"num_attention_heads": 5}, "hidden_size must be divisible by num_attention_heads"),
    ({"num_key_value_heads": 3}, r"num_key_value_heads must divide num_attention_heads \(4\); got 3"),
    ({"num_attention_heads": 0}, "num_attention_heads must be at least 1"),
    ({"hidden_size": -32}, "hidden_size must be at least 1; got -32"),
    ({"vocab_size": 0}, "vocab_size must be at least 1"),
    ({"max_position_embeddings": 0}, "max_position_embeddings must be at least 1"),
    ({"hidden_dropout": 1.0}, "hidden_dropout is a probability"),
    ({"attention_dropout": math.nan}, "attention_dropout is a probability"),
    ({"norm_eps": 0.0}, "norm_eps must be above 0"),
    ({"norm_eps": math.nan}, "norm_eps must be above 0"),
    ({"initializer_range": math.inf}, "initializer_range must be above 0 and finite"),
    ({"intermediate_size": 80}, "intermediate_size needs feed_forward: mlp or glu"),
    ({"use_bias": True}, "use_bias needs a linear layer"),
    ({"projection": "linear"}, "num_attention_tokens needs projection: pattention"),
    ({"feed_forward": "mlp"}, "num_feed_forward_tokens needs feed_forward: pattention"),
    ({"score": "gelu", "learn_score_scale": True}, "learn_score_scale needs a score that normalizes"),
    ({"num_attention_tokens": 0}, "num_attention_tokens takes whole numbers of at least 1; got 0"),
    ({"num_attention_tokens": [16]}, "one entry for each of the 2 layers; got 1"),
    ({"num_feed_forward_tokens": [16, 0]}, "num_feed_forward_tokens takes whole numbers of at least 1; got 0"),
    ({"num_attention_tokens": {"query": 1, "key": 2}}, "exactly the keys query, key and value"),
    ({"num_output_tokens": [{"query": 1}, 3]}, "num_output_tokens takes whole numbers"),
    ({"positions": "none", "rope_parameters": {"rope_theta": 5.0}}, "rope_parameters needs positions: rotary"),
    ({"rope_parameters": {"theta": 5.0}}, r"takes rope_theta and partial_rotary_factor; got \['theta'\]"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "supports rope_type default alone"),
    ({"rope_parameters": {"rope_theta": -1.0}}, "rope_theta of rope_parameters must be a number above 0; got -1.0"),
    ({"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta of rope_parameters must be a number above 0"),
    ({"rope_parameters": {"partial_rotary_factor": 1.5}}, "must give an even number of at least 2 dimensions"),
    ({"head_dim": 7}, "must give an even number of at least 2 dimensions; got 0.25, which gives 1"),
    ({"is_encoder_decoder": True}, "is_encoder_decoder follows from encoder_layers and decoder_layers"),
    ({"chunk_size_feed_forward": 8}, "chunk_size_feed_forward has no meaning for gnomon's models"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=[str(fields) for fields, _ in REFUSED])
def test_a_contradiction_is_refused_with_the_rule(fields: dict, message: str) -> None:
    """Sizes that do not fit, settings that would have no effect, and impossible numbers each raise a ValueError."""
    with pytest.raises(ValueError, match=message):
        GnomonConfig(**{**TINY, **fields})


def test_a_learned_score_scale_without_pattention_is_refused() -> None:
    """A linear model has no tau to learn."""
    with pytest.raises(ValueError, match="learn_score_scale needs Pattention"):
        GnomonConfig(**LINEAR, learn_score_scale=True)


def test_whole_numbers_are_good_rotary_settings() -> None:
    """rope_theta: 10000, as a YAML recipe writes it, works like 10000.0."""
    ids = torch.arange(6)[None]
    outputs = []
    for theta in (10000, 10000.0):
        torch.manual_seed(0)
        model = GnomonModel(GnomonConfig(**TINY, rope_parameters={"rope_theta": theta}))
        outputs.append(model(input_ids=ids).last_hidden_state)
    assert torch.equal(*outputs)


def test_transformers_own_keys_are_let_through() -> None:
    """What transformers itself writes into a config or passes to one is no misspelling."""
    config = GnomonConfig(**TINY, num_labels=3, torch_dtype="float32", architectures=["X"], problem_type=None)
    assert config.num_labels == 3
    assert config.dtype == torch.float32


def test_a_causal_head_makes_the_model_a_decoder_and_refuses_the_opposite() -> None:
    """is_decoder unset becomes true under a causal head; false contradicts it."""
    config = GnomonConfig(**TINY)
    assert config.is_decoder is None
    assert GnomonForCausalLM(config).config.is_decoder is True
    with pytest.raises(ValueError, match="needs is_decoder: true; got false"):
        GnomonForCausalLM(GnomonConfig(**TINY, is_decoder=False))


def test_configs_are_values() -> None:
    """Equal fields make equal configs; a deep copy shares nothing that can change."""
    config = GnomonConfig(**VARIANTS["token lists"])
    other = copy.deepcopy(config)
    assert other == config == GnomonConfig(**VARIANTS["token lists"])
    other.num_attention_tokens[1]["query"] = 99
    assert other != config
    assert GnomonConfig().rope_parameters is not GnomonConfig().rope_parameters
