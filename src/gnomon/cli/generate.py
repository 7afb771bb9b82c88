"""`gnomon generate`: continue a prompt, printing tokens as they come, or translate it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnomon.cli.loading import load_model, load_tokenizer
from gnomon.cli.outputs import print_json

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LOWEST_TEMPERATURE = 1e-6
"""Above 0; logits over less overflow."""


def generate(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's folder.")],
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The text to continue, or to translate.")],
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens to add, at most; 200, or an encoder-decoder's own.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="Below 1 is bolder on the likely; 0 is greedy. 1, or an encoder-decoder's beams."),
    ] = None,
    beams: Annotated[
        int | None, typer.Option(min=1, help="Of an encoder-decoder: beams of the search; its own if left out.")
    ] = None,
    top_k: Annotated[int, typer.Option(min=0, help="Keep the k likeliest tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Keep the likeliest tokens of this mass.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The same seed gives the same text.")] = 0,
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer's folder, if not the checkpoint's.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON at the end instead of tokens as they come.")
    ] = False,
) -> None:
    """Continue a prompt; an encoder-decoder translates it.

    Examples:

    gnomon generate runs/shakespeare/model --prompt "ROMEO:" --temperature 0.8 --top-p 0.95

    gnomon generate runs/shakespeare/model -p "To be" --temperature 0 --json

    gnomon generate runs/translation/model -p "Choose a color from the list." --beams 5
    """
    model = load_model(checkpoint)
    if not model.can_generate():
        raise ValueError(
            f"{checkpoint} holds a {type(model).__name__}, which writes no text: name a language model's, or "
            "use transformers' pipeline for this one."
        )
    chosen = load_tokenizer(tokenizer or checkpoint, model)
    prompt_ids = encode(prompt, chosen, model)
    if model.config.is_encoder_decoder:
        sampled = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        text, new_tokens = translate(model, chosen, prompt_ids, max_new_tokens, beams, **sampled)
        if as_json:
            print_json({"prompt": prompt, "text": text, "new_tokens": new_tokens, "seed": seed})
        else:
            print(text)
        return
    if beams is not None:
        raise ValueError(f"--beams belongs to an encoder-decoder, and {checkpoint} holds none; leave it out.")
    max_new_tokens, temperature = max_new_tokens or 200, 1.0 if temperature is None else temperature
    longest, wanted = model.config.max_position_embeddings, prompt_ids.shape[1] + max_new_tokens
    if wanted > longest:
        print(f"note: the model is meant for up to {longest} tokens, and {wanted} are asked for.", file=sys.stderr)
    ids = sample(
        model,
        chosen,
        prompt_ids,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stream=not as_json,
    )
    if as_json:
        new_tokens = ids.shape[1] - prompt_ids.shape[1]
        text = chosen.decode(ids[0], skip_special_tokens=True)
        print_json({"prompt": prompt, "text": text, "new_tokens": new_tokens, "seed": seed})


def encode(prompt: str, tokenizer: "PreTrainedTokenizerBase", model: "PreTrainedModel") -> "Tensor":
    """The ids of a prompt, one row, each of them in the model's vocabulary.

    Raises:
        ValueError: The prompt is empty, or has characters or ids outside the vocabulary.
    """
    if not prompt:
        raise ValueError("the prompt is empty: give at least one character, such as --prompt 'A'.")
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    if tokenizer.unk_token_id is not None and bool((ids == tokenizer.unk_token_id).any()):
        unknown = [c for c in dict.fromkeys(prompt) if tokenizer.unk_token_id in tokenizer(c)["input_ids"]]
        named = "".join(unknown) or prompt
        raise ValueError(f"the prompt has text outside the tokenizer's vocabulary, {named!r}: leave it out.")
    rows = model.config.vocab_size
    if int(ids.max()) >= rows:
        raise ValueError(
            f"the prompt has id {int(ids.max())}, outside the checkpoint's vocabulary of {rows}: "
            "name the tokenizer that the model was trained with."
        )
    return ids


def translate(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    source: "Tensor",
    max_new_tokens: int | None,
    beams: int | None,
    *,
    temperature: float | None,
    top_k: int,
    top_p: float,
    seed: int,
) -> tuple[str, int]:
    """Write the text that an encoder-decoder makes of a source, by its own generation settings or by these.

    Returns:
        The text, and how many tokens it took.

    Raises:
        ValueError: Beams and sampling are both asked for.
    """
    import torch

    from gnomon.data.tokenizers import document_marks

    options: dict[str, object] = {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
    if temperature is not None:
        if beams is not None and beams > 1:
            raise ValueError(f"--beams {beams} searches and --temperature {temperature} samples: choose one of them.")
        options |= sampling_options(temperature, top_k, top_p) | {"num_beams": 1}
    elif beams is not None:
        options["num_beams"] = beams
    torch.manual_seed(seed)
    _, end = document_marks(tokenizer)
    source = torch.cat([source, torch.tensor([[end]])], dim=1).to(model.device)
    with torch.inference_mode():
        ids = model.generate(source, attention_mask=torch.ones_like(source), **options)
    return tokenizer.decode(ids[0], skip_special_tokens=True), ids.shape[1] - 1


def sampling_options(temperature: float, top_k: int, top_p: float) -> dict[str, object]:
    """What `generate` needs to sample, or to be greedy at temperature 0.

    Raises:
        ValueError: `top_p` leaves no token, or the logits over the temperature are no numbers any more.
    """
    if temperature == 0:
        return {"do_sample": False}
    if temperature < LOWEST_TEMPERATURE:
        raise ValueError(f"--temperature must be 0 or at least {LOWEST_TEMPERATURE}, not {temperature}; 0 is greedy.")
    if top_p <= 0:
        raise ValueError(f"--top-p must be above 0 and at most 1, not {top_p}; 1 keeps every token.")
    return {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}


def sample(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompt_ids: "Tensor",
    *,
    max_new_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    stream: bool,
) -> "Tensor":
    """Sample a continuation of one row and return the row with it; print the text as it comes if `stream`.

    Raises:
        ValueError: A sampling option is out of its range.
    """
    import torch
    from transformers import TextStreamer

    torch.manual_seed(seed)
    options = sampling_options(temperature, top_k, top_p)
    # Ids past the tokenizer's last are padding rows of the table: they have no text and are never sampled.
    unnamed = list(range(len(tokenizer), model.config.vocab_size))
    prompt_ids = prompt_ids.to(model.device)
    with torch.inference_mode():
        return model.generate(
            prompt_ids,
            attention_mask=torch.ones_like(prompt_ids),
            max_new_tokens=max_new_tokens,
            suppress_tokens=unnamed or None,
            pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
            streamer=TextStreamer(tokenizer, skip_special_tokens=True) if stream else None,
            **options,
        )
