"""The environments of this machine, in which its compiles look for decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inductor_plugin.cache import digest_of


def environments_here() -> dict[str, Mapping[str, Any]]:
    """Return the fields of the environments in which a compile of this machine looks for decisions, by digest."""
    import torch  # noqa: PLC0415  takes 2.5 s, and few verbs need it

    from inductor_plugin.inductor.facts.toolchain import compiler_version  # noqa: PLC0415
    from inductor_plugin.tuning.environment import environment  # noqa: PLC0415

    own = environment("cpu")
    own["software"] = {**own["software"], "cpp": compiler_version()}
    devices = [own]
    if torch.cuda.is_available():
        devices += [environment(f"cuda:{index}") for index in range(torch.cuda.device_count())]
    return {digest_of(fields): fields for fields in devices}
