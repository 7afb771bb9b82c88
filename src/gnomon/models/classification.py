"""Heads that classify a text, or each of its tokens."""

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from gnomon.models.backbone import GnomonModel, GnomonPreTrainedModel, initialization_rule
from gnomon.models.config import GnomonConfig
from gnomon.models.losses import token_loss
from gnomon.nn.projections import Linear


def pool(hidden: Tensor, attention_mask: Tensor | None, how: str) -> Tensor:
    """One vector for each row: its first token's, its last token's, or the mean of all.

    Args:
        hidden: (batch, length, d).
        attention_mask: 1 for a token, 0 for padding on either side; None for all tokens.
        how: `first`, `mean` or `last`.

    Returns:
        (batch, d); a row without a token gives zeros for the mean.
    """
    if attention_mask is None or attention_mask.dim() != 2:
        return hidden.mean(dim=1) if how == "mean" else hidden[:, 0 if how == "first" else -1]
    real = attention_mask[:, -hidden.shape[1] :].to(hidden.dtype)
    if how == "mean":
        return (hidden * real.unsqueeze(-1)).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)
    places = torch.arange(hidden.shape[1], device=hidden.device)
    chosen = real.argmax(dim=1) if how == "first" else (real * places).argmax(dim=1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), chosen]


def check_labels(num_labels: int | None) -> int:
    """The number of labels, at least one.

    Raises:
        ValueError: when the config has none.
    """
    if not num_labels or num_labels < 1:
        raise ValueError(f"a classifier needs num_labels of at least 1 in its config; got {num_labels}")
    return num_labels


def classification_loss(
    logits: Tensor,
    labels: Tensor,
    problem_type: str | None = None,
    *,
    smoothing: float = 0.0,
    num_items: Tensor | int | None = None,
) -> Tensor:
    """What a classifier of whole rows is wrong by.

        regression: mean (z - y)^2,   single label: -log softmax(z)[y],   multi label: -log sigmoid(+-z), the mean

    Args:
        logits: z, (batch, labels).
        labels: y, numbers (batch,) or (batch, labels); class numbers (batch,) or shares of the classes (batch, labels).
        problem_type: in transformers' words; regression of a single label if None, else a single label.
        smoothing: of a single label, the share that is spread over all of them.
        num_items: divides a single label's summed loss instead of the count of targets here.

    Returns:
        The loss.
    """
    kind = problem_type or ("regression" if logits.shape[-1] == 1 else "single_label_classification")
    labels = labels.to(logits.device)
    if kind == "regression":
        return F.mse_loss(logits.squeeze(-1).float(), labels.squeeze(-1).float())
    if kind == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits.float(), labels.float())
    return token_loss(logits, labels, smoothing=smoothing, num_items=num_items)


class GnomonForSequenceClassification(GnomonPreTrainedModel):
    """One label, several labels, or numbers for a whole text.

        logits = W dropout(pool(h))

    Args:
        config: of the model; `num_labels`, `problem_type` and `classifier_pooling` say what is predicted from what.

    Raises:
        ValueError: for a config without labels.
    """

    def __init__(self, config: GnomonConfig) -> None:
        super().__init__(config)
        self.num_labels = check_labels(config.num_labels)
        self.model = GnomonModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout)
        std = initialization_rule(config)("embedding", "weight", self.num_labels, config.hidden_size)
        self.classifier = Linear(config.hidden_size, self.num_labels, bias=True, std=std)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Classify every row.

        Args:
            input_ids: token ids, (batch, length); or give `inputs_embeds`.
            attention_mask: 1 for a token, 0 for padding.
            position_ids: position of every token.
            inputs_embeds: embeddings in place of ids.
            labels: class numbers (batch,), or numbers (batch,) or (batch, labels) as `problem_type` says.
            kwargs: passed on; `label_smoothing` spreads a share of each target over all labels.

        Returns:
            Logits (batch, labels), and the loss when labels are given.
        """
        smoothing, num_items = kwargs.pop("label_smoothing", 0.0), kwargs.pop("num_items_in_batch", None)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **{"use_cache": False, **kwargs},
        )
        how = self.config.classifier_pooling or ("last" if self.model.is_causal else "mean")
        logits = self.classifier(self.dropout(pool(outputs.last_hidden_state, attention_mask, how)))
        loss = None
        if labels is not None:
            kind = self.config.problem_type
            if kind is None and self.num_labels > 1 and labels.is_floating_point():
                kind = "multi_label_classification"
            loss = classification_loss(logits, labels, kind, smoothing=smoothing, num_items=num_items)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class GnomonForTokenClassification(GnomonPreTrainedModel):
    """A label for every token.

        logits = W dropout(h)

    Args:
        config: of the model, with `num_labels`.

    Raises:
        ValueError: for a config without labels.
    """

    def __init__(self, config: GnomonConfig) -> None:
        super().__init__(config)
        self.num_labels = check_labels(config.num_labels)
        self.model = GnomonModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout)
        std = initialization_rule(config)("embedding", "weight", self.num_labels, config.hidden_size)
        self.classifier = Linear(config.hidden_size, self.num_labels, bias=True, std=std)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """Classify every token.

        Args:
            input_ids: token ids, (batch, length); or give `inputs_embeds`.
            attention_mask: 1 for a token, 0 for padding.
            position_ids: position of every token.
            inputs_embeds: embeddings in place of ids.
            labels: class numbers (batch, length), -100 where there is none.
            kwargs: passed on; `num_items_in_batch` divides the summed loss instead of the count of targets here.

        Returns:
            Logits (batch, length, labels), and the loss when labels are given.
        """
        num_items = kwargs.pop("num_items_in_batch", None)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **{"use_cache": False, **kwargs},
        )
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None if labels is None else token_loss(logits, labels, num_items=num_items)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


AutoModelForSequenceClassification.register(GnomonConfig, GnomonForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(GnomonConfig, GnomonForTokenClassification, exist_ok=True)

__all__ = ["GnomonForSequenceClassification", "GnomonForTokenClassification"]
