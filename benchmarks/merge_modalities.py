"""What a merge of a model of images and a model of texts gives, before and after a few steps on pairs.

Command: OMP_NUM_THREADS=1 python benchmarks/merge_modalities.py --seed 0 --output results/image-text/merge-0.json

Emoji by Noto with their names (embedded), a tenth of the names held out. A model learns to paint hidden patches,
another to fill in hidden letters; then both forms of `gnomon.growth.merge` are compared with the same architectures
from fresh weights, on the held-out pairs, images alone and texts alone.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnomon import GnomonConfig, GnomonForImageTextMaskedModeling, GnomonForMaskedImageModeling, GnomonForMaskedLM
from gnomon.data.image_text import load_image_text
from gnomon.growth.merge import HOWS, merge_models
from gnomon.models.inputs import random_mask

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "is_decoder": False,
    "positions": "rotary",
}
IMAGES = {"image_size": 32, "patch_size": 8, "num_channels": 3, "vocab_size": None}
MASK_RATIO, LETTER_RATIO = 0.5, 0.3


def hide(batch: dict[str, Tensor], mask_id: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Hide half of the patches and three letters of ten."""
    ids, real = batch["input_ids"], batch["attention_mask"].bool()
    letters = (torch.rand(ids.shape, generator=generator) < LETTER_RATIO) & real
    patches = random_mask(len(ids), 16, MASK_RATIO, generator)
    labels = torch.where(letters, ids, -100)
    return {**batch, "input_ids": ids.masked_fill(letters, mask_id), "labels": labels, "bool_masked_pos": patches}


def only(batch: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The part of a batch that concerns images, texts, or both."""
    text, image = ("input_ids", "attention_mask", "labels"), ("pixel_values", "bool_masked_pos")
    names = {"text": text, "image": image, "pairs": (*text, *image)}[kind]
    return {name: batch[name] for name in names}


def train(model: Any, batches: list[dict[str, Tensor]], kind: str, options: argparse.Namespace, steps: int) -> None:
    """Steps on random batches, the rate falling to zero by a cosine."""
    generator = torch.Generator().manual_seed(options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.5 + 0.5 * math.cos(math.pi * s / steps))
    model.train()
    for step in range(steps):
        batch = hide(batches[step % len(batches)], options.mask_id, generator)
        loss = model(**only(batch, kind)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def score(model: Any, batch: dict[str, Tensor]) -> dict[str, float]:
    """Nats a hidden letter and mean error of a hidden pixel (of 2), alone and in pairs."""
    model.eval()
    found = {kind: float(model(**only(batch, kind)).loss) for kind in ("text", "image", "pairs")}
    return {name: round(value, 4) for name, value in found.items()}


def main() -> None:
    """Train, merge, train on, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150, help="of each model alone")
    parser.add_argument("--joint-steps", type=int, default=100, help="on pairs, afterwards")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    splits = load_image_text(name="emoji-noto", image_size=32)
    options.mask_id = len(splits.tokenizer)
    fields = {**SIZES, "vocab_size": options.mask_id + 1, "max_position_embeddings": 64}
    order = torch.randperm(len(splits.train), generator=torch.Generator().manual_seed(options.seed)).tolist()
    rows = [splits.train[row] for row in order]
    batches = [splits.collate()(rows[start : start + 64]) for start in range(0, len(rows) - 63, 64)]
    held_out = splits.collate()([splits.validation[row] for row in range(len(splits.validation))])
    held_out = hide(held_out, options.mask_id, torch.Generator().manual_seed(0))

    torch.manual_seed(options.seed)
    vision = GnomonForMaskedImageModeling(GnomonConfig(**{**fields, **IMAGES}))
    text = GnomonForMaskedLM(GnomonConfig(**fields))
    train(vision, batches, "image", options, options.steps)
    train(text, batches, "text", options, options.steps)
    results: dict[str, Any] = {"options": {name: value for name, value in vars(options).items() if name != "output"}}
    with torch.no_grad():
        alone = {
            "text": text.eval()(**only(held_out, "text")).loss,
            "image": vision.eval()(**only(held_out, "image")).loss,
        }
    results["before the merge"] = {name: round(float(value), 4) for name, value in alone.items()}
    for how in HOWS:
        merged = merge_models(vision, text, how=how)
        results[f"{how}, merged"] = score(merged, held_out)
        train(merged, batches, "pairs", options, options.joint_steps)
        results[f"{how}, merged, then pairs"] = score(merged, held_out)
        torch.manual_seed(options.seed)
        fresh = GnomonForImageTextMaskedModeling(merged.config)
        train(fresh, batches, "pairs", options, options.joint_steps)
        results[f"{how}, fresh, then pairs"] = score(fresh, held_out)
        results[f"{how}, parameters"] = fresh.num_parameters()
        print(json.dumps(results, indent=1), flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
