"""What the tasks of text share: the tokenizer of a recipe, and the file it may come from."""

from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from gnomon.data.tokenizers import build_tokenizer, load_tokenizer
from gnomon.training.options import Recipe


def recipe_tokenizer(
    recipe: Recipe, documents: Mapping[str, str], special_tokens: Mapping[str, str] | None = None
) -> PreTrainedTokenizerBase:
    """The recipe's tokenizer, or the checkpoint's own; both are compared where there are both.

    Args:
        recipe: The recipe.
        documents: Training text.
        special_tokens: What the task needs beyond marks and padding.

    Raises:
        FileNotFoundError: The checkpoint has none, and the recipe names none.
        ValueError: Both have one, and they differ.
    """
    checkpoint = recipe.model.get("checkpoint")
    own = Path(checkpoint) if checkpoint and (Path(checkpoint) / "tokenizer.json").is_file() else None
    if recipe.tokenizer is None:
        if own is None:
            raise FileNotFoundError(
                f"the checkpoint {checkpoint} has no tokenizer.json; name its tokenizer in the recipe, for example "
                "tokenizer: {kind: byte}."
            )
        return load_tokenizer(own)
    tokenizer = build_tokenizer(recipe.tokenizer.model_dump(exclude_none=True), documents, special_tokens)
    if own is not None and load_tokenizer(own).get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"the recipe's tokenizer has other ids than the one that the checkpoint {checkpoint} was trained with; "
            "remove tokenizer from the recipe."
        )
    return tokenizer


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """What fills a batch; where a tokenizer has no padding any id will do, because it is masked."""
    return tokenizer.pad_token_id or 0
