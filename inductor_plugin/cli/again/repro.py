"""The verb of one recorded call as a script. It starts without torch; the script needs it."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from inductor_plugin.cache.transfer.draft import draft_of
from inductor_plugin.cli.verb import (
    Verb,
    find_record,
    force_argument,
    open_cache,
    output_file,
    say,
)
from inductor_plugin.errors import printable
from inductor_plugin.repro.script import script


def _repro_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "key", metavar="KEY", help="start of a record's key, or environment/key; `ls` shows them"
    )
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="write the script there; else it is printed"
    )
    force_argument(parser)


def _repro(arguments: Namespace) -> int:
    """Print the script of one record, or write it to a file and print the path."""
    store = open_cache(arguments)
    path = output_file(arguments.out, force=arguments.force) if arguments.out else None
    _, record = find_record(store, arguments.key, "are of one call; see `ls`")
    rendered = script(
        record, store.environment(record.environment) or {}, str(store.root.resolve())
    )
    fields = {
        "key": record.digest,
        "op": record.op,
        "describe": record.describe,
        "runs": not rendered.refused,
        "reason": rendered.refused,
        "file": None,
        "script": rendered.text,
    }
    text = rendered.text.rstrip("\n")
    describe = printable(record.describe)
    if path is not None:
        with draft_of(path) as draft:
            draft.write_text(rendered.text, encoding="utf-8")
        fields |= {"file": str(path), "script": None}
        text = f"{describe}: python {path}"
    if rendered.refused:
        reason = printable(rendered.refused)
        print(f"inductor-plugin repro: metadata only: {reason}", file=sys.stderr)
    say(arguments, fields, text)
    return 0


VERBS = (
    Verb("repro", "one recorded call as a Python script that runs alone", _repro_arguments, _repro),
)
