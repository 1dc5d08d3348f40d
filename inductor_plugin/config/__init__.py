"""The options of a compile, declared once, and the variables of this process."""

from inductor_plugin.config.names import (
    option_names,
    split,
    unknown_variables,
    warn_of_unknown_variables,
)
from inductor_plugin.config.options import Config
from inductor_plugin.config.variables import (
    PREFIX,
    default_cache_dir,
    default_cache_read,
    default_trusted_keys,
    enabled_by_environment,
    launched_rank,
    local_ranks,
    process_environment,
    set_environment,
)

__all__ = [
    "PREFIX",
    "Config",
    "default_cache_dir",
    "default_cache_read",
    "default_trusted_keys",
    "enabled_by_environment",
    "launched_rank",
    "local_ranks",
    "option_names",
    "process_environment",
    "set_environment",
    "split",
    "unknown_variables",
    "warn_of_unknown_variables",
]
