"""Entry point that `import torch` calls in every process where the plugin is installed.

It must be fast when the plugin is not enabled, and a failure here must not break `import torch`.
"""

from __future__ import annotations

import logging
import os


def autoload() -> None:
    """Enable the plugin if ``INDUCTOR_PLUGIN_ENABLE`` is set. Never raises."""
    # Importing the options takes several milliseconds, and most processes do not need them.
    if os.environ.get("INDUCTOR_PLUGIN_ENABLE", "0") in ("", "0"):
        return
    try:
        _enable()
    except Exception as error:  # noqa: BLE001 torch would turn it into a failed `import torch`
        logging.getLogger(__name__).warning(
            "inductor-plugin stays off: %s: %s; unset INDUCTOR_PLUGIN_ENABLE to silence this",
            type(error).__name__,
            error,
        )


def _enable() -> None:
    from inductor_plugin.config import enabled_by_environment  # noqa: PLC0415  5 ms

    if enabled_by_environment():
        from inductor_plugin.activation import enable_deferred  # noqa: PLC0415  mostly not needed

        enable_deferred()
