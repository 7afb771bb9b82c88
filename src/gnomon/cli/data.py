"""`gnomon data`: the data sets that recipes can name."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gnomon.cli.outputs import print_json, print_table

app = typer.Typer(help="List the data sets that a recipe can name, or fetch one.")


@app.callback(invoke_without_command=True)
def overview(context: typer.Context) -> None:
    """List the data sets that a recipe can name, or fetch one."""
    if context.invoked_subcommand is None:
        list_data(as_json=False)


@app.command("list")
def list_data(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the data sets, their sizes, licenses and origins.

    Example: gnomon data list --json
    """
    from gnomon.data.catalog import DATASETS, held_out_in_words, size_in_words
    from gnomon.data.collecting import is_collected
    from gnomon.data.collections import COLLECTIONS
    from gnomon.data.fetch import is_available

    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "kind": "table" if dataset.columns else "text",
                    "title": dataset.title,
                    "license": dataset.license,
                    "origin": dataset.origin,
                    "package": dataset.package,
                    "download_bytes": dataset.download_bytes,
                    "documents": dataset.num_documents,
                    "characters": dataset.num_characters,
                    "columns": list(dataset.columns),
                    "held_out": held_out_in_words(dataset) if dataset.columns else list(dataset.held_out),
                    "available": is_available(name),
                }
                for name, dataset in DATASETS.items()
            ]
            + [
                {
                    "name": name,
                    "kind": entry.kind,
                    "title": entry.title,
                    "license": entry.license,
                    "origin": entry.origin,
                    "package": " ".join(entry.packages) or None,
                    "download_bytes": entry.download_bytes,
                    "counts": dict(entry.counts),
                    "held_out": entry.held_out,
                    "available": is_collected(name),
                }
                for name, entry in COLLECTIONS.items()
            ]
        )
        return
    print_table(
        "Name one in a recipe as data.name",
        ["data set", "what it is", "size", "here", "license"],
        [
            [
                name,
                dataset.title,
                size_in_words(dataset) if dataset.columns else f"{dataset.num_characters:,} characters",
                "yes" if is_available(name) else "no",
                dataset.license,
            ]
            for name, dataset in DATASETS.items()
        ]
        + [
            [name, entry.title, entry.size, "yes" if is_collected(name) else "no", entry.license]
            for name, entry in COLLECTIONS.items()
        ],
    )


@app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set of `gnomon data list`.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Where to put it; $GNOMON_DATA or ~/.cache/gnomon if left out."),
    ] = None,
) -> None:
    """Fetch a data set, saying first what is downloaded, from where, how large, and under which license.

    Example: gnomon data fetch shakespeare-complete
    """
    from gnomon.data.collecting import fetch_collection
    from gnomon.data.collections import COLLECTIONS
    from gnomon.data.fetch import fetch

    get = fetch_collection if name in COLLECTIONS else fetch
    print(get(name, folder=output, announce=lambda sentence: print(sentence, file=sys.stderr, flush=True)))
