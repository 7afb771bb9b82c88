"""The backbone: a stack of blocks between embeddings and the final norm, as encoder or decoder."""

import math
from functools import partial
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils import TransformersKwargs
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from gnomon.models.audio_inputs import FilterbankEmbedding
from gnomon.models.blocks import GnomonBlock, build_block, initialization_rule, multiway_norm
from gnomon.models.caches import PairedCache, new_cache
from gnomon.models.config import GnomonConfig
from gnomon.models.inputs import PatchEmbedding
from gnomon.models.sizes import extents, side_layers
from gnomon.nn.attention import Attention
from gnomon.nn.biases import Alibi, RelativeBias, add_to_mask
from gnomon.nn.multiway import call
from gnomon.nn.positions import Rotation, rotary_angles, sinusoidal_positions, xpos_rotation
from gnomon.nn.projections import Embedding

BIASED_IMPLEMENTATIONS = ("eager", "sdpa")
"""Attention functions that take numbers to add to the scores."""


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
    _can_record_outputs = {
        "hidden_states": GnomonBlock,
        "attentions": OutputRecorder(Attention, index=1, layer_name="attention"),
        "cross_attentions": OutputRecorder(Attention, index=1, layer_name="cross_attention"),
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Give a module fresh parameters: each layer knows its own standard deviations.

        transformers makes torch's init functions skip every tensor that a checkpoint has filled.
        """
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()

    def random_inputs(self, *, seed: int = 0, rows: int = 4, length: int = 32) -> dict[str, Tensor]:
        """Inputs that mean nothing, to compare a model with itself before and after a change.

        Args:
            seed: of the numbers.
            rows: of the batch.
            length: of each row; no longer than the model's positions. Images have their model's size.

        Returns:
            The keyword arguments of a forward pass.
        """
        generator = torch.Generator().manual_seed(seed)
        if self.config.image_size is not None:
            shape = (rows, self.config.num_channels, *extents(self.config.image_size))
            return {"pixel_values": torch.randn(shape, generator=generator).to(self.device, self.dtype)}
        length = min(length, self.config.max_position_embeddings)
        features: dict[str, Tensor] = {}
        if self.config.num_mel_bins is not None:
            shape = (rows, length * self.config.subsampling_factor, self.config.num_mel_bins)
            features = {"input_features": torch.randn(shape, generator=generator).to(self.device, self.dtype)}
            if not self.config.is_encoder_decoder:
                return features
        ids = torch.randint(self.config.vocab_size, (2, rows, length), generator=generator).to(self.device)
        source = features or {"input_ids": ids[0]}
        return source | ({"decoder_input_ids": ids[1]} if self.config.is_encoder_decoder else {})


class GnomonModel(GnomonPreTrainedModel):
    """The stack of blocks between token embeddings and the final norm, without a head.

        h_0 = E[ids],   h_{l+1} = Block_l(h_l),   output = LN(h_L)

    Source: TF section 3.2; MG section 2. Causal unless `config.is_decoder` is False.

    Args:
        config: of the model.
        side: `encoder` or `decoder` of an encoder-decoder; None for a model by itself.

    Raises:
        ValueError: for an encoder-decoder's config without a side.
    """

    def __init__(self, config: GnomonConfig, *, side: str | None = None) -> None:
        super().__init__(config)
        if config.is_encoder_decoder and side is None:
            raise ValueError(
                "GnomonModel is one stack, but the config has encoder_layers and decoder_layers; "
                "use GnomonEncoderDecoderModel or GnomonForSeq2SeqLM"
            )
        encoder_layers, decoder_layers = side_layers(config.to_dict())
        self.is_causal = side == "decoder" if side else config.is_decoder is not False
        first, depth = (encoder_layers, decoder_layers) if self.is_causal else (0, encoder_layers)
        rule = initialization_rule(config, self.is_causal)
        std = rule("embedding", "weight", config.vocab_size or 1, config.hidden_size)
        self.embed_tokens, self.embed_patches, self.embed_features = None, None, None
        self.embed_positions, self.position_bias = None, None
        if config.num_mel_bins is not None and side != "decoder":
            self.embed_features = FilterbankEmbedding(config)
            self.main_input_name = "input_features"
        elif config.vocab_size is not None:
            self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, std=std)
        if config.image_size is not None:
            self.embed_patches = PatchEmbedding(config, rule)
            self.main_input_name = "pixel_values"
        elif config.positions == "learned":
            rows = config.max_position_embeddings + config.position_offset
            self.embed_positions = Embedding(rows, config.hidden_size, std=std)
        elif config.positions == "alibi":
            self.position_bias = Alibi(config.num_attention_heads)
        elif config.positions == "relative_bias":
            both_ways = config.relative_attention_bidirectional
            self.position_bias = RelativeBias(
                config.num_attention_heads,
                num_buckets=config.relative_attention_num_buckets,
                max_distance=config.relative_attention_max_distance,
                is_bidirectional=not self.is_causal if both_ways is None else both_ways,
                std=config.initializer_range,
            )
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList(build_block(config, layer) for layer in range(first, first + depth))
        self.norm = multiway_norm(config, config.final_norm, config.hidden_size)
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
        encoder_hidden_states: torch.FloatTensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        pixel_values: torch.FloatTensor | None = None,
        input_features: torch.FloatTensor | None = None,
        modality_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Run the stack.

        Args:
            input_ids: token ids, (batch, length); or give `inputs_embeds`.
            attention_mask: 1 for a token, 0 for padding, (batch, cached + length).
            position_ids: position of every token; counted from the first token that is no padding if not given.
            inputs_embeds: embeddings in place of ids, (batch, length, d).
            encoder_hidden_states: what the cross-attention of an encoder-decoder's decoder looks at.
            encoder_attention_mask: 1 where that is a token, 0 for padding, (batch, source).
            cache: keys and values of earlier tokens.
            use_cache: return a cache (a model that looks both ways never has one).
            pixel_values: images in place of ids, (batch, channels, height, width), of a model with an image_size.
            input_features: filterbanks in place of ids, (batch, frames, mel bins), of a model with num_mel_bins;
                `attention_mask` is then of its frames.
            modality_ids: which kind of token each one is, (batch, length), of a model with num_modalities.
            kwargs: passed to the attention function.

        Returns:
            The last hidden state, and the cache.

        Raises:
            ValueError: for none or several of ids, embeddings and images, an input of another kind of model, an id
                outside the vocabulary, a mask that is too short, or a position beyond a learned table.
        """
        if sum(given is not None for given in (input_ids, inputs_embeds, pixel_values, input_features)) != 1:
            raise ValueError(
                "give exactly one of input_ids and inputs_embeds, or of a model of images pixel_values, "
                "or of a model of sound input_features"
            )
        if pixel_values is not None:
            if self.embed_patches is None:
                raise ValueError("pixel_values are for models with an image_size; this one has none: give input_ids")
            inputs_embeds = self.embed_patches(pixel_values)
        elif input_features is not None:
            if self.embed_features is None:
                raise ValueError("input_features are for models with num_mel_bins; this one has none: give input_ids")
            inputs_embeds, attention_mask = self.embed_features(input_features, attention_mask)
        elif inputs_embeds is None:
            if self.embed_tokens is None:
                raise ValueError(f"this model has no table of tokens; give {self.main_input_name} instead of input_ids")
            inputs_embeds = self.embed_tokens(self._check_ids(input_ids))
        if use_cache and cache is None and self.is_causal:
            cache = new_cache(self.config)
        if modality_ids is not None and self.config.num_modalities is None:
            raise ValueError("modality_ids are for models with num_modalities in their config; this one has none")
        length = inputs_embeds.shape[1]
        seen = cache.get_seq_length() if cache is not None else 0
        self._check_mask(attention_mask, seen, length)
        own_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        mask = self._mask(inputs_embeds, attention_mask, position_ids, own_cache)
        memory_mask = None
        if encoder_hidden_states is not None:
            memory_mask = create_bidirectional_mask(
                config=self.config,
                inputs_embeds=inputs_embeds,
                attention_mask=encoder_attention_mask,
                encoder_hidden_states=encoder_hidden_states,
            )
        if position_ids is None:
            position_ids = self._count_positions(inputs_embeds, attention_mask, seen)
        if self.position_bias is not None:
            keys = self._key_positions(position_ids, attention_mask, own_cache, mask.shape[-1])
            mask = add_to_mask(mask, self.position_bias(position_ids, keys), inputs_embeds.dtype)
        hidden_states = self.dropout(self._embed(inputs_embeds, position_ids))
        positions = self._rotation(position_ids)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                encoder_hidden_states,  # by position, since gradient checkpointing looks for gradients there
                mask=mask,
                memory_mask=memory_mask,
                positions=positions,
                cache=PairedCache(cache) if isinstance(cache, EncoderDecoderCache) else cache,
                modality_ids=modality_ids,
                **kwargs,
            )
        hidden_states = call(self.norm, hidden_states, modality_ids)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states, cache=cache)

    def _mask(
        self, embeds: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, cache: Cache | None
    ) -> Any:
        """Where each token may look; always in full where a position scheme will add numbers to it."""
        build: Any = create_bidirectional_mask
        skip = "allow_is_bidirectional_skip"
        if self.is_causal:
            # packed sequences are read off the caller's own position ids: give those, not our counting
            build, skip = partial(create_causal_mask, position_ids=position_ids), "allow_is_causal_skip"
        has_bias = self.position_bias is not None
        if has_bias and self.config._attn_implementation not in BIASED_IMPLEMENTATIONS:
            raise ValueError(
                f"positions {self.config.positions} add numbers to the scores, which only the attention functions "
                f"{' and '.join(BIASED_IMPLEMENTATIONS)} take; got {self.config._attn_implementation!r}: set "
                "attn_implementation"
            )
        options = {skip: False} if has_bias else {}
        return build(config=self.config, inputs_embeds=embeds, attention_mask=attention_mask, cache=cache, **options)

    @staticmethod
    def _key_positions(
        position_ids: Tensor, attention_mask: Tensor | None, cache: Cache | None, num_keys: int
    ) -> Tensor:
        """Positions of the keys: the tokens' own without a cache, else counted as theirs were by default."""
        if cache is None:
            return position_ids
        if attention_mask is not None and attention_mask.dim() == 2:
            counted = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
            return F.pad(counted, (0, max(num_keys - counted.shape[1], 0)))[:, :num_keys]
        return torch.arange(num_keys, device=position_ids.device).unsqueeze(0)

    def _embed(self, embeds: Tensor, position_ids: Tensor) -> Tensor:
        """Token embeddings, scaled, with positions added where the scheme adds them."""
        config = self.config
        if config.scale_embedding:
            embeds = embeds * math.sqrt(config.hidden_size)
        numbers = position_ids + config.position_offset
        if self.embed_positions is not None:
            rows = self.embed_positions.num_embeddings
            if embeds.device.type == "cpu" and not torch.compiler.is_compiling() and int(numbers.max()) >= rows:
                raise ValueError(
                    f"learned positions reach {config.max_position_embeddings} tokens (max_position_embeddings); "
                    f"got position {int(position_ids.max())}: give a shorter sequence"
                )
            embeds = embeds + self.embed_positions(numbers)
        elif config.positions == "sinusoidal":
            embeds = embeds + sinusoidal_positions(numbers, config.hidden_size).to(embeds.dtype)
        return embeds

    def _rotation(self, position_ids: Tensor) -> Rotation | None:
        """What queries and keys are turned with."""
        config = self.config
        if config.positions == "rotary":
            base = float(config.rope_parameters["rope_theta"])
            return rotary_angles(position_ids, rotary_size=config.rotary_size, base=base)
        if config.positions == "xpos":
            return xpos_rotation(position_ids, head_size=config.head_dim)
        return None

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

__all__ = ["GnomonBlock", "GnomonModel", "GnomonPreTrainedModel", "build_block", "initialization_rule"]
