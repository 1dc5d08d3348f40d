"""The verb that reads everything: ``verify``, and what it does about damage."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict

from inductor_plugin.cache import Store
from inductor_plugin.cache.trust.listing import RefusedKernel, vouchers
from inductor_plugin.cache.verify import Damage
from inductor_plugin.cli.verb import Verb, open_cache, open_to_write, say
from inductor_plugin.errors import CacheError, printable

_REFUSED = 20
"""Refused kernels that are named, each on a line."""


def _verify_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--repair",
        action="store_true",
        help="move damaged entries to the folder `damaged` of the cache; the next compile makes them again",
    )


def _verify(arguments: Namespace) -> int:
    store = open_to_write(arguments) if arguments.repair else open_cache(arguments)
    damaged = store.verify()
    done = {damage.path: _repaired(store, damage) for damage in damaged if arguments.repair}
    left = store.verify() if done else damaged
    usage = store.usage()
    vouching = vouchers(store.root, store.iter_kernels(), store.trust)
    fields = {
        "damaged": [
            {**asdict(damage), "path": str(damage.path)}
            | ({"repair": done[damage.path]} if arguments.repair else {})
            for damage in damaged
        ],
        "left": len(left),
        "vouchers": vouching.fields(),
        **{n: v for n, v in usage.fields().items() if n not in ("damaged", "pinned", "looked")},
    }
    lines = [
        f"{damage.kind} {printable(str(damage.path))}: {printable(damage.reason)}"
        + (f"\n    {done[damage.path]}" if arguments.repair else "")
        for damage in damaged
    ]
    lines.append(
        f"{usage.records} records, {usage.kernels} kernels, {usage.quarantined} in quarantine: "
        f"{len(left)} damaged; {usage.leftovers} leftovers of killed processes"
    )
    if usage.kernels:
        lines.append(f"kernels: {printable(vouching.text())}")
        lines += _refused_lines(vouching.refused)
    if left and not arguments.repair:
        lines.append("`inductor-plugin verify --repair` sets damaged entries aside")
    say(arguments, fields, "\n".join(lines))
    return 1 if left or vouching.refused else 0


def _refused_lines(refused: Sequence[RefusedKernel]) -> list[str]:
    """Return a line for each kernel that is not loaded, and how many others there are."""
    lines = [
        f"    refused {each.digest[:12]}: {printable(each.reason)}" for each in refused[:_REFUSED]
    ]
    left = len(refused) - len(lines)
    more = f"    and {left} more refused: `inductor-plugin verify --json` names them all"
    return [*lines, more] if left else lines


def _repaired(store: Store, damage: Damage) -> str:
    """Set a damaged entry aside; return what was done, or why not."""
    try:
        return store.repair(damage) or "it has been replaced meanwhile"
    except CacheError as error:
        return f"stays: {error}"


VERBS = (Verb("verify", "read everything and name what is damaged", _verify_arguments, _verify),)
