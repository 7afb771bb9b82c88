"""transformers' own tests of a model class, run on every class of `models.MODELS`."""

import unittest

from models import FORMS, MODELS, Tester, case_name
from torch import nn
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers_tests import test_fsdp_mixin, test_modeling_common, test_tensor_parallel_mixin, test_training_mixin
from transformers_tests.generation.test_utils import GenerationTesterMixin

import gnomon


def join_the_peers_lists() -> None:
    """Put our classes where the peer's tests look up what a class is for, and lift what holds for its own models."""
    for auto in vars(modeling_auto).values():
        mapping = getattr(auto, "_model_mapping", None) if isinstance(auto, type) else None
        if mapping is not None and gnomon.GnomonConfig in mapping._extra_content:
            ours = mapping._extra_content[gnomon.GnomonConfig]
            names = tuple(cls.__name__ for cls in (ours if isinstance(ours, tuple) else (ours,)))
            mapping._model_mapping[gnomon.GnomonConfig.model_type] = names if len(names) > 1 else names[0]
    test_fsdp_mixin.FSDP_DISTRIBUTED_TEST_MODEL_TYPES = None
    test_tensor_parallel_mixin.TP_DISTRIBUTED_TEST_MODEL_TYPES = None
    # Ranks on the CPU may share a core.
    test_fsdp_mixin._get_available_fsdp_workers = lambda: 4
    # The original sets every name that one of the peer's models gives its epsilon; ours refuses fields it has not.
    test_modeling_common.set_config_for_less_flaky_test = raise_epsilon
    # Ours have rope_parameters for base and partial rotation, and refuse every rope_type but the default.
    test_modeling_common._config_supports_rope_scaling = lambda config: False


def raise_epsilon(config: PreTrainedConfig) -> None:
    """Keep rows of tiny variance, and cosines times 14, from deciding a comparison of attention implementations."""
    for each in [getattr(config, name) for name in config.sub_configs] or [config]:
        each.norm_eps = 1.0
    if config.sub_configs:
        config.logit_scale_init_value = 0.0


OF_A_TOWER = ("test_attention_outputs", "test_hidden_states_output", "test_retain_grad_hidden_states_attentions")
"""Tests of one stack's layers, which the peer leaves out for its own models of two towers (CLIP) as well."""


class OwnTests:
    """Where the peer's test, or its way to make a model, takes for granted what ours have in some forms alone."""

    def _get_tiny_config(self) -> tuple[type, dict]:
        # The peer's sets an intermediate_size, which a Pattention has not.
        config = self.model_tester.get_config()
        return type(config), config.to_diff_dict()

    def setUp(self) -> None:
        """Leave out what has no meaning for a model of sound, or of two towers."""
        super().setUp()
        config = self.model_tester.get_config()
        if "pad_left" in self._testMethodName and getattr(config, "num_mel_bins", None) is not None:
            self.skipTest("Sound is padded on the right; padding on the left is refused")
        if config.sub_configs and self._testMethodName in OF_A_TOWER:
            self.skipTest("Two towers have no layers in common; test_get_*_features_* look at those of each")

    def _prepare_for_class(self, inputs: dict, cls: type, return_labels: bool = False) -> dict:
        """What the peer has no labels for: a transcript is the tokens that it is made of, and pairs are their own."""
        prepared = super()._prepare_for_class(inputs, cls, return_labels=return_labels)
        if return_labels and cls is gnomon.GnomonForImageTextContrastive:
            prepared["return_loss"] = True
        if return_labels and cls is gnomon.GnomonForSpeechSeq2Seq:
            prepared["labels"] = prepared["decoder_input_ids"]
        return prepared

    def test_model_get_set_embeddings(self) -> None:
        """What embeds images and sounds is a layer, but no table, as in the peer's own tests of such models."""
        model = self.all_model_classes[0](self.model_tester.get_config())
        if self.test_resize_embeddings:
            return super().test_model_get_set_embeddings()
        layer = nn.Identity()
        assert isinstance(model.get_input_embeddings(), nn.Module)
        model.set_input_embeddings(layer)
        assert model.get_input_embeddings() is layer
        assert isinstance(model.get_output_embeddings(), nn.Linear | None)

    def test_keep_in_fp32_modules_exist(self) -> None:
        """The list of what stays float32 names tau, which is there where Pattention is."""
        model = self.all_model_classes[0](self.model_tester.get_config())
        if not any(name.endswith("score_scale") for name in model.state_dict()):
            self.skipTest("Without Pattention there is no score scale to keep in float32")
        super().test_keep_in_fp32_modules_exist()

    def test_base_model_prefix_loads_base_weights(self) -> None:
        """A head holds its base model, but a base model's two stacks are no base models of it."""
        if self.all_model_classes[0] is gnomon.GnomonEncoderDecoderModel:
            self.skipTest("Encoder and decoder are parts of this base model, not a base model under a head")
        super().test_base_model_prefix_loads_base_weights()


def build_case(name: str, form: str) -> type:
    """The peer's test class for one model class in one form."""
    cls = MODELS[name].cls
    mixins = [OwnTests, test_modeling_common.ModelTesterMixin]
    if cls.can_generate():
        mixins.append(GenerationTesterMixin)
    if cls is gnomon.GnomonForCausalLM:  # the peer has these for causal language models alone
        mixins += [
            test_training_mixin.TrainingTesterMixin,
            test_fsdp_mixin.FSDPTesterMixin,
            test_tensor_parallel_mixin.TensorParallelTesterMixin,
        ]
    tester = Tester(MODELS[name], form)
    attributes = {
        "__module__": __name__,
        "all_model_classes": (cls,),
        "is_encoder_decoder": tester.get_config().is_encoder_decoder,
        "_is_composite": MODELS[name].is_two_towers,
        "additional_model_inputs": ["pixel_values"] if cls.input_modalities == ("image", "text") else [],
        "model_tester": property(lambda self: Tester(MODELS[name], form)),
        "test_can_init_all_missing_weights_before_2023": True,
        "test_resize_embeddings": "input_ids" in tester.prepare_config_and_inputs_for_common()[1],
    }
    return type(case_name(name, form), (*mixins, unittest.TestCase), attributes)


join_the_peers_lists()
globals().update({case_name(name, form): build_case(name, form) for name in MODELS for form in FORMS})
