"""The training step of a TokenFormer against its reference formulation and against transformers' GPT-NeoX.

One step is forward, loss, backward and AdamW. The three models take turns in one process; a ratio is a model's time
over gnomon's in the same round, so that a number above 1 means that gnomon is faster. Beside it stands what a model
keeps for its backward pass, which does not depend on the machine. Nothing is timed before the reference formulation
has given the same logits, loss and gradients.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.progress import Progress
from torch import Tensor, nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedModel

from _common import Report, Spread, conditions, interleave, options, ratio
from gnomon import GnomonConfig, GnomonForCausalLM
from gnomon.nn.projections import Pattention

OURS, REFERENCE, NEOX = "gnomon", "reference", "GPT-NeoX"
OUTPUT_TOLERANCE, GRADIENT_TOLERANCE, LOSS_TOLERANCE = 1e-5, 1e-4, 3e-6
"""Largest difference over the largest value of the tensor; of the loss, the plain difference."""


@dataclass(frozen=True)
class Case:
    """A model's size and a batch's."""

    width: int
    layers: int
    heads: int
    batch: int
    length: int
    vocabulary: int = 512

    def __str__(self) -> str:
        return f"d={self.width} L={self.layers}, {self.batch} x {self.length}"


SIZES = ((128, 4, 4), (256, 6, 4), (384, 6, 6))
BATCHES = ((32, 128), (8, 512))
CASES = [Case(*size, *batch) for size in SIZES for batch in BATCHES]


class ReferencePattention(nn.Module):
    """Pattention in the steps of the published code, each an operation of autograd.

    Scores, a factor of one on them, a mask of ones, division by the L2 norm, times sqrt(n), GELU, dropout, product.

    Args:
        tokens: the layer whose parameters it shares.
    """

    def __init__(self, tokens: Pattention) -> None:
        super().__init__()
        self.key_tokens, self.value_tokens = tokens.key_tokens, tokens.value_tokens

    def forward(self, x: Tensor) -> Tensor:
        """Apply the projection to the last axis."""
        mask = torch.ones(x.shape[-2], self.key_tokens.shape[0], dtype=x.dtype, device=x.device)
        scores = x @ self.key_tokens.transpose(-2, -1) * 1.0
        scores = scores * mask
        scores = scores / torch.linalg.vector_norm(scores, dim=-1, keepdim=True) * scores.shape[-1] ** 0.5
        return torch.dropout(F.gelu(scores), 0.0, True) @ self.value_tokens


def build_tokenformer(case: Case) -> GnomonForCausalLM:
    """gnomon's TokenFormer with the token counts of the published sizes: d, and 4 d in the feed-forward layer."""
    torch.manual_seed(0)
    config = GnomonConfig(
        vocab_size=case.vocabulary,
        hidden_size=case.width,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        max_position_embeddings=case.length,
        use_cache=False,
    )
    return GnomonForCausalLM(config).train()


def build_reference(case: Case) -> GnomonForCausalLM:
    """The same model with the same weights, each Pattention replaced."""
    model = build_tokenformer(case)
    for name, module in list(model.named_modules()):
        if isinstance(module, Pattention):
            model.set_submodule(name, ReferencePattention(module))
    return model


def build_neox(case: Case) -> GPTNeoXForCausalLM:
    """transformers' GPT-NeoX with blocks of equal size: 4 d^2 + 2 d (6 d) weights against 2 d (4 d + 4 d)."""
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=case.vocabulary,
        hidden_size=case.width,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        intermediate_size=6 * case.width,
        max_position_embeddings=case.length,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        tie_word_embeddings=True,
        use_parallel_residual=False,
        attention_bias=False,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return GPTNeoXForCausalLM(config).train()


def check_equivalence(ours: nn.Module, reference: nn.Module, ids: Tensor) -> dict[str, float]:
    """Compare logits, loss and every gradient.

    Returns:
        The largest differences.

    Raises:
        SystemExit: one of them is too large, so that a comparison of times would mean nothing.
    """
    outputs = [model(input_ids=ids, labels=ids) for model in (ours, reference)]
    for output in outputs:
        output.loss.backward()
    gradients = dict(reference.named_parameters())
    differences = {
        "logits": _difference(outputs[0].logits, outputs[1].logits),
        "loss": (outputs[0].loss - outputs[1].loss).abs().item(),
        # torch's maximum, since Python's can lose a NaN
        "gradients": torch.tensor([_difference(p.grad, gradients[name].grad) for name, p in ours.named_parameters()])
        .max()
        .item(),
    }
    for model in (ours, reference):
        model.zero_grad()
    limits = {"logits": OUTPUT_TOLERANCE, "loss": LOSS_TOLERANCE, "gradients": GRADIENT_TOLERANCE}
    for name, difference in differences.items():
        if not difference <= limits[name]:
            raise SystemExit(
                f"no times: the {name} of gnomon and of the reference formulation must agree within {limits[name]:g}; "
                f"they differ by {difference:.3g}, so mend the fast path first"
            )
    return differences


def check_sizes(ours: PreTrainedModel, other: PreTrainedModel) -> float:
    """Return how many parameters outside the embeddings the other model has, over ours.

    Raises:
        SystemExit: they differ by more than 1%.
    """
    share = _block_parameters(other) / _block_parameters(ours)
    if abs(share - 1.0) > 0.01:
        raise SystemExit(
            f"no times: the blocks of both models must agree in parameters within 1%; GPT-NeoX has {share:.3f} times "
            "as many, so choose another intermediate_size"
        )
    return share


def kept_bytes(model: nn.Module, ids: Tensor) -> int:
    """How much a forward pass keeps for the backward pass besides the parameters, each memory counted once."""
    kept = {}
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(input_ids=ids, labels=ids).loss
    del loss
    return sum(storage.nbytes() for pointer, storage in kept.items() if pointer not in parameters)


def training_step(model: nn.Module, ids: Tensor) -> Callable[[], None]:
    """One step as a function: forward, loss, backward, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(case: Case, report: Report, *, rounds: int, after_round: Callable[[], object]) -> None:
    """Check one case, time it, and add its row."""
    ids = torch.randint(case.vocabulary, (case.batch, case.length), generator=torch.Generator().manual_seed(0))
    models = {OURS: build_tokenformer(case), REFERENCE: build_reference(case), NEOX: build_neox(case)}
    share = check_sizes(models[OURS], models[NEOX])
    differences = check_equivalence(models[OURS], models[REFERENCE], ids)
    kept = {name: kept_bytes(model, ids) for name, model in models.items()}
    steps = {name: training_step(model, ids) for name, model in models.items()}
    seconds = interleave(steps, rounds=rounds, after_round=after_round)
    report.add(
        [
            case,
            f"{1e3 * Spread.of(seconds[OURS]).median:.0f}",
            *(ratio(seconds, name, OURS) for name in (REFERENCE, NEOX)),
            f"{kept[OURS] / 2**20:.0f}",
            *(f"{kept[name] / kept[OURS]:.2f}" for name in (REFERENCE, NEOX)),
        ],
        case=vars(case),
        block_parameters=_block_parameters(models[OURS]),
        neox_block_parameters_over_ours=share,
        differences=differences,
        kept_bytes=kept,
        ratios={name: vars(ratio(seconds, name, OURS)) for name in (REFERENCE, NEOX)},
        seconds=seconds,
    )


def main(arguments: list[str] | None = None, cases: list[Case] | None = None) -> Report:
    """Measure all cases, print the table and write it."""
    parser = options(__doc__.splitlines()[0], rounds=12)
    parser.add_argument("--only", type=int, choices=range(len(CASES)), help="number of the only case to run")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    cases = cases or (CASES if chosen.only is None else [CASES[chosen.only]])
    report = Report(
        title="Training step",
        about=[
            "Time: one step of gnomon, and the reference formulation's and transformers' GPT-NeoX's over gnomon's in "
            f"the same round, median (quartiles) of {chosen.rounds} rounds; above 1, gnomon is faster.",
            "Kept: what gnomon's forward pass keeps for the backward pass besides the parameters, and the others' "
            "over gnomon's.",
            "A case is width, layers, and batch x sequence length. float32, eager, sdpa attention, tied embeddings of "
            f"{cases[0].vocabulary} rows, fused AdamW; the blocks of GPT-NeoX have as many parameters within 1%.",
            f"Before timing, logits agreed within {OUTPUT_TOLERANCE:g}, gradients within {GRADIENT_TOLERANCE:g} (over "
            f"the tensor's largest value) and the loss within {LOSS_TOLERANCE:g} with the reference formulation.",
        ],
        columns=["case", "time (ms)", REFERENCE, NEOX, "kept (MB)", f"{REFERENCE}, kept", f"{NEOX}, kept"],
    )
    with Progress() as progress:
        for case in cases:
            task = progress.add_task(str(case), total=chosen.rounds)
            measure(case, report, rounds=chosen.rounds, after_round=lambda t=task: progress.advance(t))
    report.show()
    report.write(chosen.output, "training_step", conditions(__file__))
    return report


def _difference(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max().clamp_min(1e-12)).item()


def _block_parameters(model: PreTrainedModel) -> int:
    return sum(p.numel() for p in model.parameters()) - model.get_input_embeddings().weight.numel()


if __name__ == "__main__":
    main(sys.argv[1:])
