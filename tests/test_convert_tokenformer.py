"""The official TokenFormer layout: the reference code's numbers through our whole model, and the way back."""

import math

import pytest
import torch

import reference
from gnomon import GnomonForCausalLM
from gnomon.convert import from_tokenformer, to_tokenformer
from gnomon.convert.tokenformer import config_from_tokenformer, config_to_tokenformer, tensor_names
from gnomon.models.presets import PRESETS, preset
from gnomon.nn import Pattention
from samples import golden, language_model, parameters_of, random_ids

SCORES = ("l2_norm_gelu", "gelu_l2_norm", "softmax")
FOLDABLE = SCORES[1:]
IMPLEMENTATIONS = ("eager", "sdpa")


def converted(score: str, implementation: str = "sdpa") -> GnomonForCausalLM:
    tensors, config = golden(f"tokenformer_lm_{score}")
    model = from_tokenformer(parameters_of(tensors), config)
    model.set_attn_implementation(implementation)
    return model


def hold_scales(model: GnomonForCausalLM, factor: float) -> GnomonForCausalLM:
    """Move every tau away from what its token count says."""
    for module in model.modules():
        if isinstance(module, Pattention):
            module.score_scale.mul_(factor)
    return model


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("score", SCORES)
def test_logits_loss_and_gradients_equal_the_reference_codes(score: str, implementation: str) -> None:
    """Logits within 1e-5, loss within 3e-6, and the gradient of every tensor within 1e-4."""
    tensors, config = golden(f"tokenformer_lm_{score}")
    model, ids = converted(score, implementation), tensors["input_ids"]
    output = model(input_ids=ids, labels=ids)
    output.loss.backward()
    torch.testing.assert_close(output.logits, tensors["logits"], rtol=1e-5, atol=1e-5)
    assert abs(output.loss.item() - config["loss"]) < 3e-6
    parameters, names = dict(model.named_parameters()), tensor_names(config["num_layers"])
    assert set(names.values()) == set(parameters)
    for official, ours in names.items():
        torch.testing.assert_close(parameters[ours].grad, tensors[f"grad.{official}"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("score", SCORES)
def test_the_naive_model_gives_the_same_logits(score: str) -> None:
    """A straight loop over rows, heads and tokens, fed with the released names, agrees with the converted model."""
    tensors, config = golden(f"tokenformer_lm_{score}")
    ids = tensors["input_ids"][:1, :7]
    naive = reference.tokenformer(parameters_of(tensors), ids, config)
    with torch.no_grad():
        output = converted(score)(input_ids=ids, labels=ids)
    torch.testing.assert_close(output.logits, naive, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(output.loss, reference.next_token_loss(naive, ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("score", SCORES)
def test_the_round_trip_returns_the_original_tensors_bit_for_bit(score: str) -> None:
    """to_tokenformer undoes from_tokenformer: same names, same bits, and memory of its own."""
    original = parameters_of(golden(f"tokenformer_lm_{score}")[0])
    model = converted(score)
    returned = to_tokenformer(model)
    assert returned.keys() == original.keys()
    assert all(torch.equal(returned[name], original[name]) for name in original)
    returned["sequential.0.word_embeddings.weight"].zero_()
    assert model.model.embed_tokens.weight.abs().sum() > 0


def test_the_model_that_the_reference_grew_computes_its_numbers_before_and_after() -> None:
    """Logits before growth come from the old checkpoint, those after it from the grown one with its own counts."""
    tensors, counts = golden("tokenformer_growth")
    _, config = golden("tokenformer_lm_l2_norm_gelu")
    ids = tensors["input_ids"]
    before = converted("l2_norm_gelu")
    after = from_tokenformer(parameters_of(tensors), {**config, **counts})
    with torch.no_grad():
        torch.testing.assert_close(before(input_ids=ids).logits, tensors["logits_before"], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(after(input_ids=ids).logits, tensors["logits_after"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("score", FOLDABLE)
def test_a_held_score_scale_is_folded_into_the_values(score: str) -> None:
    """Where the score is linear in tau, the written file computes the same logits with the layout's own tau."""
    ids, model = random_ids(2, 9), hold_scales(converted(score), 1.37)
    again = from_tokenformer(to_tokenformer(model), config_to_tokenformer(model.config))
    unfolded = converted(score)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
        torch.testing.assert_close(again(input_ids=ids).logits, logits, rtol=1e-5, atol=1e-5)
        assert (unfolded(input_ids=ids).logits - logits).abs().max() > 1e-2


def test_a_held_score_scale_inside_the_gelu_is_refused_with_both_numbers() -> None:
    """l2_norm_gelu cannot fold tau: the error names it, sqrt(n), and what to do instead."""
    model = hold_scales(converted("l2_norm_gelu"), 2.0)
    with pytest.raises(ValueError, match="annealed to its default") as error:
        to_tokenformer(model)
    assert f"{2 * math.sqrt(24):.6g}" in str(error.value)
    assert f"sqrt(24) = {math.sqrt(24):.6g}" in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_floating_dtype_is_read(dtype: torch.dtype) -> None:
    """A half-precision file gives a float32 model with the file's own numbers, a float64 file rounds to float32."""
    tensors, config = golden("tokenformer_lm_l2_norm_gelu")
    checkpoint = {name: tensor.to(dtype) for name, tensor in parameters_of(tensors).items()}
    model = from_tokenformer(checkpoint, config)
    weight = model.model.layers[1].feed_forward.key_tokens
    assert weight.dtype == torch.float32
    assert torch.equal(weight, checkpoint["sequential.3.mlp.key_param_tokens"].float())


def test_the_table_has_ten_rows_a_layer_and_three_more() -> None:
    """The released 150M checkpoint has 10 L + 3 tensors, each with one place in our model, and nothing is left out."""
    names = tensor_names(12)
    assert len(names) == len(set(names.values())) == 123
    with torch.device("meta"):
        model = GnomonForCausalLM(preset("tokenformer-150m"))
    assert set(names.values()) == {name for name, _ in model.named_parameters()}


def test_absent_keys_take_the_values_of_gpt_neox() -> None:
    """Rotary over the whole head at base 10000 and eps 1e-5, hyphens or underscores in the keys alike."""
    sizes = {"num-layers": 2, "hidden-size": 32, "num-attention-heads": 4, "qkv_slot_num": 24, "ffn_slot_num": 80}
    config = config_from_tokenformer({**sizes, "proj-slot-num": 28}, vocab_size=9)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    assert (config.norm_eps, config.score, config.vocab_size) == (1e-5, "l2_norm_gelu", 9)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("tokenformer") and "vit" not in name])
def test_configurations_survive_the_way_there_and_back(name: str) -> None:
    """Our fields to the official keys and back give the same configuration, for every TokenFormer preset."""
    ours = preset(name)
    ours.is_decoder = True
    assert config_from_tokenformer(config_to_tokenformer(ours), vocab_size=ours.vocab_size) == ours


def broken(kind: str) -> tuple[dict, dict]:
    tensors, config = golden("tokenformer_lm_l2_norm_gelu")
    checkpoint, config = parameters_of(tensors), dict(config)
    if kind == "missing tensor":
        del checkpoint["sequential.3.mlp.key_param_tokens"]
    elif kind == "left over":
        checkpoint["sequential.9.mlp.key_param_tokens"] = torch.zeros(1)
    elif kind == "no embedding":
        checkpoint = {"model.weight": torch.zeros(1)}
    elif kind == "wrong shape":
        checkpoint["sequential.5.norm.bias"] = torch.zeros(31)
    elif kind == "missing key":
        del config["ffn_slot_num"]
    else:
        key, _, value = kind.partition(" ")
        config[key] = {"true": True}.get(value, int(value) if value.isdigit() else value)
    return checkpoint, config


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing tensor", "lacks 1 of 23 tensors, the first sequential.3.mlp.key_param_tokens"),
        ("left over", "the first sequential.9.mlp.key_param_tokens: use the configuration that belongs to it"),
        (
            "no embedding",
            "needs the table sequential.0.word_embeddings.weight; got 1 tensors, the first named 'model.weight'",
        ),
        ("wrong shape", r"sequential.5.norm.bias has shape \(31,\), but the configuration makes it \(32,\)"),
        ("missing key", "needs the key ffn_slot_num"),
        ("num_layers 3", "num_layers is 3 in the configuration, but the TokenFormer weights have 2 layers"),
        ("ffn_slot_num 81", "ffn_slot_num is 81 in the configuration, but 80 in the TokenFormer weights"),
        ("norm layernorm", "norm layernorm_nonparam; got norm layernorm"),
        ("gpt_j_residual true", "got gpt_j_residual True"),
        ("no_weight_tying true", "only the released TokenFormer form can be converted"),
        ("pos_emb sinusoidal", "got pos_emb sinusoidal"),
        ("norm_activation_type relu", "score must be one of"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(kind: str, message: str) -> None:
    """Missing or left-over tensors, contradicting shapes and unconvertible configs each get one clear sentence."""
    with pytest.raises(ValueError, match=message):
        from_tokenformer(*broken(kind))


def test_buffers_without_trained_numbers_are_passed_over() -> None:
    """Rotary frequencies and stored causal masks in a checkpoint change nothing."""
    tensors, config = golden("tokenformer_lm_l2_norm_gelu")
    extra = {
        "sequential.2.attention.rotary_emb.inv_freq": torch.zeros(1),
        "sequential.2.attention.masked_bias": torch.zeros(1),
        "sequential.3.attention.bias": torch.zeros(1, 1, 4, 4),
    }
    assert from_tokenformer({**parameters_of(tensors), **extra}, config).config.vocab_size == 64


@pytest.mark.parametrize(
    "variant",
    ["gelu", "rms norm", "untied head", "grouped queries", "no positions", "token lists", "narrow heads", "linear"],
)
def test_a_model_of_another_form_is_not_written(variant: str) -> None:
    """What the released layout cannot say is refused, not dropped."""
    with pytest.raises(ValueError, match="the official TokenFormer layout"):
        to_tokenformer(language_model(variant))


@pytest.mark.parametrize("score", SCORES)
def test_a_learned_score_scale_is_folded_or_refused_like_a_held_one(score: str) -> None:
    """A learned tau is written unchanged where it has not moved, folded where it can be, else refused."""
    ids, model = random_ids(2, 9), language_model(score, learn_score_scale=True)
    assert len(to_tokenformer(model)) == 23
    with torch.no_grad():
        hold_scales(model, 0.8)
        if score not in FOLDABLE:
            with pytest.raises(ValueError, match="cannot be folded"):
                to_tokenformer(model)
            return
        again = from_tokenformer(to_tokenformer(model), config_to_tokenformer(model.config))
        torch.testing.assert_close(again(input_ids=ids).logits, model(input_ids=ids).logits, rtol=1e-4, atol=1e-4)
