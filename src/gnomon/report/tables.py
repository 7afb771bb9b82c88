"""Ledgers as tables: one choice of columns and numbers, written as Markdown, CSV, or for the terminal."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

Rows = Sequence[Mapping[str, Any]]

STAGE_COLUMNS = {
    "stage": "stage",
    "steps": "steps",
    "tokens": "tokens",
    "flops": "FLOPs",
    "seconds": "seconds",
    "parameters": "parameters",
    "train_loss": "training loss (nats/token)",
    "validation_loss": "validation loss (nats/token)",
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
}
"""Columns of a run's ledger: key -> heading."""

SETTING_COLUMNS = {
    "seeds": "seeds",
    "diverged": "diverged",
    "validation_loss": "validation loss (nats/token)",
    "spread": "lowest to highest",
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
    "parameters": "parameters",
    "tokens": "tokens",
    "flops": "FLOPs",
    "seconds": "seconds",
}
"""Columns of a sweep's table behind those of the settings: key -> heading."""


MEASURES = {
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
    "pseudo_perplexity": "pseudo-perplexity",
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "bleu": "BLEU",
    "chrf": "chrF",
    "character_error_rate": "character error rate",
    "word_error_rate": "word error rate",
    "recall_at_1": "recall@1",
    "level_error": "error of a hidden pixel (of 255)",
}
"""What tasks score beside the loss: key -> heading, in the order of the columns."""

OF_TOKENS = frozenset({"perplexity", "bits_per_byte", "pseudo_perplexity"})
"""Measures whose tasks count tokens, and lose nats on each; others count images, frames or rows."""

PLAIN_HEADINGS = {"tokens": "inputs", "train_loss": "training loss", "validation_loss": "validation loss"}


def columns_for(columns: Mapping[str, str], rows: Rows) -> dict[str, str]:
    """The columns with the measures that the rows have, in the place of a language model's.

    >>> list(columns_for({"steps": "steps", "perplexity": "perplexity"}, [{"steps": 5, "accuracy": 0.5}]))
    ['steps', 'accuracy']
    """
    found = [name for name in MEASURES if any(name in row for row in rows)]
    if not found:
        return dict(columns)
    if not OF_TOKENS & set(found):
        columns = {name: PLAIN_HEADINGS.get(name, heading) for name, heading in columns.items()}
    first = next(place for place, name in enumerate(columns) if name in MEASURES)
    others = [(name, heading) for name, heading in columns.items() if name not in MEASURES]
    return dict([*others[:first], *((name, MEASURES[name]) for name in found), *others[first:]])


def format_cell(key: str, value: Any) -> str:
    """One number as a reader wants it: losses to four decimals, large counts with separators.

    >>> format_cell("validation_loss", 1.5), format_cell("tokens", 128000), format_cell("flops", 123456789012)
    ('1.5000', '128,000', '1.235e+11')
    """
    if value is None:
        return "-"
    if key == "flops":
        return f"{value:.3e}"
    if isinstance(value, float) and key in ("perplexity", "pseudo_perplexity", "bleu", "chrf", "level_error"):
        return f"{value:,.2f}"
    if isinstance(value, float) and (key.endswith("loss") or key == "bits_per_byte" or key in MEASURES):
        return f"{value:.4f}"
    if isinstance(value, float) and key == "seconds":
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def ledger_cells(ledger: Rows) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a run's ledger; a diverged stage has dashes."""
    columns = columns_for(STAGE_COLUMNS, ledger)
    cells = [[format_cell(key, row.get(key)) for key in columns] for row in ledger]
    return list(columns.values()), cells


def summarize(ledger: Rows) -> list[dict[str, Any]]:
    """A sweep's rows by setting: means over the seeds that finished, and how many diverged."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in ledger:
        groups.setdefault(repr(sorted(row["settings"].items())), []).append(row)
    summaries = []
    for rows in groups.values():
        finished = [row for row in rows if row["status"] == "finished"]
        summary: dict[str, Any] = {
            "settings": dict(rows[0]["settings"]),
            "seeds": len(finished),
            "diverged": len(rows) - len(finished),
        }
        measures = [name for name in columns_for(SETTING_COLUMNS, ledger) if name in MEASURES]
        for name in ("validation_loss", *measures, "seconds"):
            summary[name] = statistics.fmean(row[name] for row in finished) if finished else None
        for name in ("parameters", "tokens", "flops"):
            summary[name] = finished[0][name] if finished else None
        losses = [row["validation_loss"] for row in finished]
        summary["spread"] = f"{min(losses):.4f} to {max(losses):.4f}" if losses else None
        summary["losses"] = losses
        summaries.append(summary)
    return summaries


def sweep_cells(ledger: Rows) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a sweep's table: a row a setting."""
    summaries = summarize(ledger)
    keys = list(dict.fromkeys(key for summary in summaries for key in summary["settings"]))
    columns = columns_for(SETTING_COLUMNS, ledger)
    cells = [
        [format_cell(key, summary["settings"].get(key)) for key in keys]
        + [format_cell(key, summary[key]) for key in columns]
        for summary in summaries
    ]
    return [*short_keys(keys).values(), *columns.values()], cells


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Each dotted key's last part, or the whole key where two end alike.

    >>> short_keys(["model.preset", "stages.0.training.beta1"])
    {'model.preset': 'preset', 'stages.0.training.beta1': 'beta1'}
    """
    last = [key.split(".")[-1] for key in keys]
    return {key: word if last.count(word) == 1 else key for key, word in zip(keys, last, strict=True)}


def to_markdown(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(to_markdown(["n", "loss"], [["1", "2.5"]]))
    | n | loss |
    |---|---|
    | 1 | 2.5 |
    """
    lines = [headings, *cells]
    written = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([written[0], "|" + "---|" * len(headings), *written[1:]])


def to_csv(ledger: Rows) -> str:
    """A sweep's rows, one a run, in full precision, settings as columns of their own."""
    flat = [{**row["settings"], **{key: value for key, value in row.items() if key != "settings"}} for row in ledger]
    keys = list(dict.fromkeys(key for row in flat for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def to_rich(title: str, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """A table for the terminal."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for line in cells:
        table.add_row(*line)
    return table
