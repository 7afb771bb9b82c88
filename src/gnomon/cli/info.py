"""`gnomon info`: what a model costs, by formula, without importing torch."""

import difflib
from pathlib import Path
from typing import Annotated, Any

import typer

from gnomon.cli.outputs import print_json, print_table, readable_bytes

SIZES = (
    "hidden_size",
    "num_attention_heads",
    "num_attention_tokens",
    "num_output_tokens",
    "num_feed_forward_tokens",
    "vocab_size",
)
"""Fields that formulas take as they are: a checkpoint's file is read without its configuration's own checks."""


def info(
    model: Annotated[str, typer.Argument(metavar="CHECKPOINT|PRESET", help="A checkpoint's folder, or a preset.")],
    sequence_length: Annotated[
        int, typer.Option(min=1, max=10**12, help="Tokens in a sequence, for costs that grow with it.")
    ] = 1024,
    batch_size: Annotated[int, typer.Option(min=1, max=10**12, help="Rows in the key-value cache.")] = 1,
    dtype: Annotated[str, typer.Option(help="Of weights and cache: float32, bfloat16, float16.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a model's parameters, operations and memory, by formula.

    Examples:

    gnomon info tokenformer-150m

    gnomon info runs/shakespeare/model --sequence-length 128 --json
    """
    from gnomon.analysis import flops
    from gnomon.models.sizes import resolve

    fields = read_fields(model)
    has_towers = bool(flops.towers(fields))
    positions = flops.image_positions(fields if has_towers else resolve(fields))
    has_texts = has_towers or fields.get("vocab_size") is not None
    counts = flops.count_parameters(fields)
    forward = flops.forward_flops_per_token(fields, sequence_length)
    attention = flops.token_attention_flops(fields, sequence_length)
    memory = flops.memory_bytes(fields, sequence_length, batch_size, dtype)
    if as_json:
        print_json(
            {
                "model": model,
                "sequence_length": sequence_length,
                "batch_size": batch_size,
                "dtype": dtype,
                "parameters": counts.to_dict(),
                "flops": {
                    "forward_per_token": forward,
                    "training_per_token": flops.training_flops(fields, 1, sequence_length),
                    "token_attention_per_sequence": attention,
                },
                "memory_bytes": memory.to_dict(),
            }
        )
        return
    print_table(model, ["parameters", "count"], [[name.replace("_", " "), n] for name, n in counts.to_dict().items()])
    unit = "frame" if fields.get("num_mel_bins") else "token"
    whole = f"per image, of {positions:,} positions"
    if positions and has_texts:
        whole = f"per image of {positions:,} positions with a text of {sequence_length:,} tokens"
    print_table(
        f"\n{whole}" if positions else f"\nper {unit}, in sequences of {sequence_length:,}",
        ["operations", "FLOPs"],
        [
            ["forward", forward],
            ["of which token-token attention", attention if positions else attention // sequence_length],
            ["training", flops.training_flops(fields, 1, sequence_length)],
        ],
    )
    print_table(
        f"\nwithout activations; weights in {dtype}, cache of {batch_size:,} x {sequence_length:,} tokens",
        ["memory", "size"],
        [[name, readable_bytes(size)] for name, size in memory.to_dict().items()],
    )


def read_fields(model: str) -> dict[str, Any]:
    """The configuration of a preset or of a checkpoint's folder.

    Raises:
        ValueError: It is neither, or its configuration is not gnomon's.
    """
    from gnomon.models.presets import PRESETS
    from gnomon.training.records import read_json

    if model in PRESETS:
        return dict(PRESETS[model])
    path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
    if not path.is_file():
        close = difflib.get_close_matches(model, PRESETS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the presets are {', '.join(PRESETS)}."
        raise ValueError(f"{model!r} is neither a preset nor a checkpoint's folder (one with a config.json): {hint}")
    fields: dict[str, Any] = read_json(path)
    if fields.get("model_type") not in ("gnomon", "gnomon_image_text"):
        kind = fields.get("model_type")
        raise ValueError(f"{path} describes a model of type {kind!r}, not 'gnomon': convert the checkpoint first.")
    for name in SIZES:
        size = fields.get(name)
        if size is not None and (not isinstance(size, int) or size < 1):
            raise ValueError(f"{path}: {name} must be a whole number of at least 1, got {size!r}; mend the file.")
    return fields
