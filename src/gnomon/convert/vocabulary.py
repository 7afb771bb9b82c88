"""Rows of an embedding table that no token of the tokenizer has, and that must never be sampled."""

from transformers import GenerationMixin


def never_sample_padding_rows(model: GenerationMixin, num_token_ids: int) -> None:
    """Keep `generate` away from the rows behind the tokenizer's last id.

    Tables are padded to a round number of rows, and nothing was trained to avoid these. The rule stands in
    `generation_config.suppress_tokens`, which is saved and loaded with the model and acts in greedy search, sampling
    and beam search alike; the logits, and so the loss, stay what they are.

    Args:
        model: any model that generates.
        num_token_ids: how many ids the tokenizer has; from here on rows are padding.

    Raises:
        ValueError: for a number that is not between 1 and the rows of the table.
    """
    rows = model.config.vocab_size
    if not 1 <= num_token_ids <= rows:
        raise ValueError(
            f"the tokenizer's ids must be between 1 and the {rows} rows of the model's table; got {num_token_ids}"
        )
    model.generation_config.suppress_tokens = list(range(num_token_ids, rows)) or None


__all__ = ["never_sample_padding_rows"]
