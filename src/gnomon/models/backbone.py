"""The backbone: one place where a configuration becomes blocks, and where transformers' machinery meets them."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from gnomon.models.config import GnomonConfig
from gnomon.models.sizes import layer_tokens
from gnomon.nn.attention import Attention, dot_product_attention
from gnomon.nn.blocks import Block, Residual
from gnomon.nn.feedforward import build_feed_forward
from gnomon.nn.initialization import INITIALIZATIONS, Rule
from gnomon.nn.norms import build_norm
from gnomon.nn.positions import rotary_angles
from gnomon.nn.projections import Embedding, build_projection


class AttentionInterface:
    """transformers' attention functions (eager, sdpa, flash, ...) in the slot of `Attention`.

    Args:
        config: names the implementation; read at every call, so that `set_attn_implementation` takes effect.
    """

    def __init__(self, config: GnomonConfig) -> None:
        self.config = config

    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Run the implementation that the configuration names."""
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, dot_product_attention)
        return attend(module, *args, **kwargs)


class GnomonBlock(GradientCheckpointingLayer, Block):
    """A block that transformers can checkpoint, shard and record."""


def initialization_rule(config: GnomonConfig) -> Rule:
    """The initialization rule of a configuration.

    Args:
        config: names the rule and the sizes that it depends on.

    Returns:
        The rule, for the layers to ask.
    """
    return INITIALIZATIONS[config.initialization](
        num_layers=config.num_hidden_layers, hidden_size=config.hidden_size, std=config.initializer_range
    )


def build_block(config: GnomonConfig, layer: int) -> GnomonBlock:
    """Build one block as the configuration describes it: the only place where a config meets a layer.

    Args:
        config: of the model.
        layer: index of the block.

    Returns:
        The block with fresh parameters.
    """
    rule, tokens = initialization_rule(config), layer_tokens(config.to_dict(), layer)
    width, attended = config.hidden_size, config.num_attention_heads * config.head_dim
    shared = config.num_key_value_heads * config.head_dim
    pattention = {"score": config.score, "learn_score_scale": config.learn_score_scale}

    def project(site: str, in_features: int, out_features: int) -> nn.Module:
        more = {**pattention, "num_tokens": tokens[site]} if config.projection == "pattention" else {}
        return build_projection(
            config.projection, in_features, out_features, site=site, rule=rule, bias=config.use_bias, **more
        )

    def residual() -> Residual:
        return Residual(before=build_norm(config.norm, width, eps=config.norm_eps), dropout=config.hidden_dropout)

    attention = Attention(
        query=project("query", width, attended),
        key=project("key", width, shared),
        value=project("value", width, shared),
        output=project("output", attended, width),
        num_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        layer_index=layer,
        is_causal=config.is_decoder is not False,
        dropout=config.attention_dropout,
        attend=AttentionInterface(config),
    )
    more = {**pattention, "num_tokens": tokens["feed_forward"]} if config.feed_forward == "pattention" else {}
    feed_forward = build_feed_forward(
        config.feed_forward,
        width,
        intermediate_size=config.intermediate_size,
        activation=config.hidden_act,
        rule=rule,
        bias=config.use_bias,
        **more,
    )
    return GnomonBlock(
        attention=attention,
        feed_forward=feed_forward,
        attention_residual=residual(),
        feed_forward_residual=residual(),
    )


class GnomonPreTrainedModel(PreTrainedModel):
    """What all gnomon models share: their config, their initialization, and what transformers may do with them."""

    config_class = GnomonConfig
    config: GnomonConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["GnomonBlock"]
    _keep_in_fp32_modules_strict = ["score_scale"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": GnomonBlock, "attentions": OutputRecorder(Attention, index=1)}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Give a module fresh parameters: each layer knows its own standard deviations.

        transformers makes torch's init functions skip every tensor that a checkpoint has filled.
        """
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()


class GnomonModel(GnomonPreTrainedModel):
    """The stack of blocks between token embeddings and the final norm, without a head.

        h_0 = E[ids],   h_{l+1} = Block_l(h_l),   output = LN(h_L)

    Source: TF section 3.2. Causal unless `config.is_decoder` is False.

    Args:
        config: of the model.
    """

    def __init__(self, config: GnomonConfig) -> None:
        super().__init__(config)
        std = initialization_rule(config)("embedding", "weight", config.vocab_size, config.hidden_size)
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, std=std)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList(build_block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = build_norm(config.final_norm, config.hidden_size, eps=config.norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Run the stack.

        Args:
            input_ids: token ids, (batch, length); or give `inputs_embeds`.
            attention_mask: 1 for a token, 0 for padding, (batch, cached + length).
            position_ids: position of every token; counted from the first token that is no padding if not given.
            inputs_embeds: embeddings in place of ids, (batch, length, d).
            cache: keys and values of earlier tokens.
            use_cache: return a cache (a model that looks both ways never has one).
            kwargs: passed to the attention function.

        Returns:
            The last hidden state, and the cache.

        Raises:
            ValueError: for neither or both of ids and embeddings, an id outside the vocabulary, or a mask that is too
                short.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(self._check_ids(input_ids))
        if use_cache and cache is None and self.config.is_decoder is not False:
            cache = DynamicCache(config=self.config)
        length = inputs_embeds.shape[1]
        seen = cache.get_seq_length() if cache is not None else 0
        self._check_mask(attention_mask, seen, length)
        # create_causal_mask reads packed sequences off the caller's own position ids: give it those, not our counting
        build_mask = create_bidirectional_mask if self.config.is_decoder is False else create_causal_mask
        if build_mask is create_causal_mask:
            build_mask = partial(build_mask, position_ids=position_ids)
        mask = build_mask(config=self.config, inputs_embeds=inputs_embeds, attention_mask=attention_mask, cache=cache)
        if position_ids is None:
            position_ids = self._count_positions(inputs_embeds, attention_mask, seen)
        positions = None
        if self.config.positions == "rotary":
            rope = self.config.rope_parameters
            positions = rotary_angles(position_ids, rotary_size=self.config.rotary_size, base=float(rope["rope_theta"]))
        hidden_states = self.dropout(inputs_embeds)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask=mask, positions=positions, cache=cache, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden_states), cache=cache)

    def _check_ids(self, input_ids: Tensor) -> Tensor:
        """Refuse ids outside the vocabulary; on the CPU alone, where looking costs no synchronisation."""
        if input_ids.device.type == "cpu" and not torch.compiler.is_compiling() and input_ids.numel():
            low, high = (int(bound) for bound in torch.aminmax(input_ids))
            if low < 0 or high >= self.embed_tokens.num_embeddings:
                wrong = low if low < 0 else high
                raise ValueError(
                    f"token ids must lie in the vocabulary, 0 to {self.embed_tokens.num_embeddings - 1}; got {wrong}; "
                    "use the tokenizer that was saved with the model"
                )
        return input_ids

    @staticmethod
    def _check_mask(attention_mask: Tensor | None, seen: int | Tensor, length: int) -> None:
        """Refuse a padding mask that leaves out cached or new tokens (a compiler cannot look at a static cache)."""
        if attention_mask is None or attention_mask.dim() != 2 or torch.compiler.is_compiling():
            return
        if attention_mask.shape[1] < int(seen) + length:
            raise ValueError(
                f"attention_mask needs a column for each cached and each new token, so at least {int(seen) + length}; "
                f"got {attention_mask.shape[1]}"
            )

    @staticmethod
    def _count_positions(embeds: Tensor, attention_mask: Tensor | None, seen: int | Tensor) -> Tensor:
        """Positions from the padding mask where there is one, else after the cached tokens."""
        columns = torch.arange(embeds.shape[1], device=embeds.device) + seen
        if attention_mask is not None and attention_mask.dim() == 2:
            return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, columns]
        return columns.unsqueeze(0)


AutoModel.register(GnomonConfig, GnomonModel, exist_ok=True)

__all__ = ["GnomonModel", "GnomonPreTrainedModel", "build_block", "initialization_rule"]
