"""Token-token attention of a model that has grown by tokens against one that was widened to the same size.

Parameter tokens leave the hidden size alone, so attention between the positions of a sequence costs what it cost before
growth; a widened Transformer pays for every channel more. Counted for the paper's growth chain by formula, at lengths
from 1k to 32k, and measured as the forward pass of one layer's attention at a few lengths, all sizes in turn.

Source: TokenFormer (arXiv 2410.23168), its comparison of token-token costs over model size.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib import rc_context

from _common import ROOT, Report, conditions, interleave, options, ratio
from gnomon.analysis.flops import count_parameters, token_attention_flops
from gnomon.models.presets import PRESETS
from gnomon.models.sizes import resolve
from gnomon.report.figures import COLORS, MARKERS, STYLE, label_ends, new_figure, save_figure

SIZES = ("124m", "354m", "757m", "1.4b")
KINDS = {"grown": "tokenformer", "widened": "transformer"}
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)


def fields(kind: str, size: str) -> dict[str, Any]:
    """The configuration of a size of the chain, grown or widened."""
    return resolve(PRESETS[f"{KINDS[kind]}-growth-{size}"])


def count() -> list[dict[str, Any]]:
    """Operations of a forward pass's token-token attention, in all layers, by kind, size and length."""
    return [
        {
            "kind": kind,
            "size": size,
            "parameters": count_parameters(fields(kind, size)).non_embedding,
            "width": fields(kind, size)["hidden_size"],
            "flops": {length: token_attention_flops(fields(kind, size), length) for length in LENGTHS},
        }
        for kind in KINDS
        for size in SIZES
    ]


@torch.no_grad()
def attend(query: torch.Tensor) -> torch.Tensor:
    """One layer's causal attention, the queries standing for keys and values too."""
    return F.scaled_dot_product_attention(query, query, query, is_causal=True)


def turns(length: int) -> dict[str, Callable[[], object]]:
    """One layer's attention over a sequence of some length, for every width of the chain."""
    found: dict[str, Callable[[], object]] = {}
    for kind in KINDS:
        for size in SIZES:
            sizes = fields(kind, size)
            shape = (1, sizes["num_attention_heads"], length, sizes["head_dim"])
            query = torch.randn(shape, generator=torch.Generator().manual_seed(0))
            found.setdefault(str(sizes["hidden_size"]), partial(attend, query))
    return found


def measure(lengths: list[int], rounds: int) -> dict[int, dict[str, list[float]]]:
    """Seconds of every turn by length and width; sizes of equal width do the same work and are measured once."""
    return {length: interleave(turns(length), rounds=rounds, warmup=1) for length in lengths}


def draw(rows: list[dict[str, Any]], length: int, path: Path) -> list[Path]:
    """Counted cost over the number of parameters, grown against widened."""
    with rc_context(STYLE):
        figure, axes = new_figure(
            f"Token-token attention of one forward pass over {length:,} tokens", "non-embedding parameters", "FLOPs"
        )
        labels = []
        for number, kind in enumerate(KINDS):
            points = [(row["parameters"], row["flops"][length]) for row in rows if row["kind"] == kind]
            axes.plot(*zip(*points, strict=True), color=COLORS[number], marker=MARKERS[number], linewidth=1.8)
            labels.append((kind, *points[-1], COLORS[number]))
        axes.set_ylim(0, None)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e9:g}B" if value >= 1e9 else f"{value / 1e6:g}M")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1e12:g}T")
        label_ends(axes, labels)
        return save_figure(figure, path)


def main() -> None:
    """Count, measure, and write table and figure."""
    parser = options(str(__doc__).splitlines()[0], rounds=3)
    parser.set_defaults(output=ROOT / "results" / "growth-attention")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192], help="that are timed")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows, seconds = count(), measure(arguments.lengths, arguments.rounds)
    timed = [f"{length // 1024}k timed" for length in arguments.lengths]
    counted = [f"{length // 1024}k TFLOP" for length in LENGTHS]
    report = Report(
        "Token-token attention, grown against widened",
        [
            "TFLOP: counted, of the token-token attention of a whole forward pass over one sequence, 4 L d T^2. Timed: "
            "the forward pass of one layer's attention (causal, one sequence, float32) over that of the smallest "
            f"model, median (quartiles) of {arguments.rounds} rounds; a causal kernel skips what the count includes.",
            "The machine had other work to do meanwhile; each round's turns stand side by side.",
            "Grown: the TokenFormer presets tokenformer-growth-*, whose width stays 768. Widened: their Transformers "
            "of equal size.",
        ],
        ["model", "parameters (M)", "width", *counted, *timed],
    )
    for row in rows:
        name, width, narrow = f"{row['kind']} {row['size']}", str(row["width"]), str(rows[0]["width"])
        ratios = [ratio(found, width, narrow) for found in seconds.values()]
        cells = [f"{flops / 1e12:.3g}" for flops in row["flops"].values()]
        report.add(
            [name, f"{row['parameters'] / 1e6:.0f}", row["width"], *cells, *ratios],
            **row,
            seconds={length: found[width] for length, found in seconds.items()},
        )
    report.show()
    written = report.write(arguments.output, "table", conditions(__file__))
    written += draw(rows, LENGTHS[-1], arguments.output / "figure")
    print("\n".join(map(str, written)))


if __name__ == "__main__":
    main()
