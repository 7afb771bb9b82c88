"""`gnomon demo`: from text to a model that grows twice and writes, in a few minutes on two cores."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnomon.cli.generate import encode, sample
from gnomon.cli.loading import load_model, load_tokenizer
from gnomon.cli.outputs import print_cells, print_table, refuse_existing
from gnomon.cli.train import RUNS, OverridesOption, leave_if_interrupted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gnomon.training.data_options import DataOptions

RECIPE = "demo"
ORDERS = {"bigram": 2, "3-gram": 3, "5-gram": 5}
PROMPT = "ROMEO:\n"


def demo(
    output: Annotated[
        Path | None, typer.Option(help="The run's folder; the first free of runs/demo, runs/demo-2, ...")
    ] = None,
    override: OverridesOption = None,
) -> None:
    """Train a small TokenFormer on Shakespeare, grow it twice, compare it with n-grams, and let it write.

    Nothing is downloaded. The recipe is packaged: `gnomon recipes copy demo` gives it to you to change.

    Example: gnomon demo
    """
    output = output or first_free(RUNS / RECIPE)
    refuse_existing(output)
    from gnomon.report.cost import cost_cells, draw_cost, read_curve
    from gnomon.report.figures import save_figure
    from gnomon.report.run import draw_run
    from gnomon.report.run import train as run
    from gnomon.training.recipe import load_recipe

    recipe = load_recipe(RECIPE, override or [])
    print(f"Training the recipe {RECIPE!r} into {output}/", flush=True)
    result = run(recipe, output)
    leave_if_interrupted(result)

    model = load_model(output / "model")
    tokenizer = load_tokenizer(output / "model", model)
    floors = ngram_losses(recipe.stages[-1].data or recipe.data, tokenizer)
    row = result.ledger[-1]
    losses = {**floors, f"this model, {row['parameters']:,} parameters": row["validation_loss"]}
    print_table(
        "\nLoss on the held-out play, which none of them has seen (nats per token; lower is better)",
        ["model", "loss"],
        [[name, f"{loss:.4f}"] for name, loss in losses.items()],
    )
    print()
    print_cells(
        "What each stage cost and gained; between stages the model grew, and computed the same", *cost_cells([output])
    )
    draw_run(output, floors=floors)
    save_figure(draw_cost([read_curve(output)], floors=floors), output / "figures" / "cost")
    print(
        f"\nLoss over steps and over cost, the n-grams as dotted lines: {output}/figures/loss.png, cost.png (and .svg)"
    )
    print("\nWhat it writes:\n", flush=True)
    prompt_ids = encode(PROMPT, tokenizer, model)
    sample(
        model,
        tokenizer,
        prompt_ids,
        max_new_tokens=min(400, model.config.max_position_embeddings - prompt_ids.shape[1]),
        temperature=0.8,
        top_k=0,
        top_p=0.95,
        seed=recipe.seed,
        stream=True,
    )
    print(f'\nMore of it: gnomon generate {output}/model --prompt "JULIET:"')


def first_free(folder: Path) -> Path:
    """The folder itself if nothing is there yet, or the first of its numbered names that is free."""
    if not folder.exists():
        return folder
    number = 2
    while (numbered := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return numbered


def ngram_losses(data: "DataOptions", tokenizer: "PreTrainedTokenizerBase") -> dict[str, float]:
    """The held-out losses of interpolated n-grams, counted on the same training text with the same tokens."""
    from gnomon.data.packing import pack
    from gnomon.evaluation.ngrams import NGramModel
    from gnomon.training.tasks.language_modeling import load

    splits = load(data)
    seen = pack(splits.train, tokenizer, data.sequence_length).ids
    held_out = pack(splits.validation, tokenizer, data.sequence_length, allow_short=True).ids
    return {name: NGramModel(order, len(tokenizer)).fit(seen).loss(held_out) for name, order in ORDERS.items()}
