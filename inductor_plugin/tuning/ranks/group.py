"""Which ranks of a job decide together: those whose decisions rest on the same facts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from inductor_plugin.cache import digest_of
from inductor_plugin.config import Config
from inductor_plugin.version import __version__

_OF_A_RANK = frozenset(
    {
        "cache",
        "cache_dir",
        "cache_read",
        "pin_file",
        "pin_file_sha256",
        "policy",
        "remote_url",
        "strict",
    }
)
"""Options that may differ: where a rank keeps what it knows."""


def shared_options(config: Config) -> dict[str, str | int | float | bool]:
    """Return the options that decisions rest on, by name."""
    return {name: value for name, value in config.code_key() if name not in _OF_A_RANK}


def group_of(
    environment: str,
    config: Config,
    templates: Sequence[tuple[str, str, str]],
    *,
    host_counts: bool,
) -> str:
    """Return the digest that names a group.

    Args:
        environment: Digest of the environment: ranks with another GPU are another group.
        config: The options.
        templates: Name, class and version of each registered template, as of `Registry.identity`.
        host_counts: Whether the host's time for a launch counts.
    """
    options = shared_options(config)
    return digest_of(
        {
            "environment": environment,
            "plugin": __version__,
            "templates": [list(row) for row in sorted(templates)],
            "options": options,
            "host_counts": host_counts,
        }
    )
