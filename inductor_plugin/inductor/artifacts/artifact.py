"""The plugin's type of artifact: one entry of its cache, which is read when artifacts are saved and not before.

``torch.compiler.save_cache_artifacts()`` returns what compiles have recorded, ``load_cache_artifacts(data)`` puts it into the
caches of another process. A process that does not know the type of one artifact loads none at all, Inductor's included
(torch 2.11 to 2.15, `CacheArtifactManager.deserialize`). So the type is registered when Dynamo is imported, which loading
does first (`autoload`, `backend`), and this module imports little.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager

from inductor_plugin.config import Config
from inductor_plugin.errors import warn_once

logger = logging.getLogger(__name__)

TYPE = "inductor_plugin"
"""Name of the type; `CacheInfo` lists the keys as ``inductor_plugin_artifacts``."""
RECORD, KERNEL = "record/", "kernel/"
"""How the keys begin."""


class EntryArtifact(CacheArtifact):
    """An entry of the plugin's cache.

    Attributes:
        key: ``record/ENVIRONMENT/OP/DIGEST`` or ``kernel/DIGEST``.
        content: An archive of it (`cache.transfer.parcel`); empty if the cache has lost the entry.
    """

    @property
    def content(self) -> bytes:
        """The archive; made anew for each reader, of whom there is one: `CacheArtifact.serialize`."""
        source: bytes | Callable[[], bytes | None] = vars(self)["source"]
        if isinstance(source, bytes):
            return source
        try:
            return source() or b""
        except Exception as error:  # noqa: BLE001  the border: torch would drop all artifacts
            text = f"{self.key} is not among the saved artifacts: {type(error).__name__}: {error}"
            warn_once(logger, text, "an artifact that was not saved")
            return b""

    @content.setter
    def content(self, source: bytes | Callable[[], bytes | None]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride] - a field there
        vars(self)["source"] = source  # the class is frozen

    @staticmethod
    def encode(content: Any) -> Any:
        """Return what `add` passes as it is: torch calls this when an artifact is recorded."""
        return content

    @staticmethod
    def type() -> str:
        """Return the name of the type."""
        return TYPE

    def populate_cache(self) -> None:
        """Put the entry into this process's cache: that of `enable`, or of the environment variables."""
        data = self.content
        if data:
            from inductor_plugin.inductor.artifacts.loading import take  # noqa: PLC0415  most processes load none

            take(self.key, data, _PROCESS.config, is_record=self.key.startswith(RECORD))

    def __eq__(self, other: object) -> bool:
        """Compare keys: the content would have to be read."""
        return isinstance(other, EntryArtifact) and self.key == other.key

    def __hash__(self) -> int:
        """Hash by the key; torch keeps all artifacts of a process in a set."""
        return hash(self.key)


class _Process:
    """What this process has chosen for all its compiles.

    Attributes:
        config: The options of `enable`; None for those of the environment variables.
    """

    config: Config | None = None


_PROCESS = _Process()


def register() -> None:
    """Make the type known to torch."""
    known: dict[str, Any] = CacheArtifactFactory._artifact_types  # pyright: ignore[reportPrivateUsage]
    if TYPE not in known:
        CacheArtifactFactory.register(EntryArtifact)


def load_with(config: Config | None) -> None:
    """Load artifacts into the cache of these options from now on; None: into that of the environment variables."""
    _PROCESS.config = config


def add(key: str, read: Callable[[], bytes | None]) -> None:
    """Record an artifact, unless this process has recorded it already; 3 us.

    To be called by the thread that compiles: it holds torch's compile lock, which guards the lists of artifacts.

    Args:
        key: As in `EntryArtifact`.
        read: Returns the archive, None if there is no such entry any more; called when artifacts are saved.
    """
    CacheArtifactManager.record_artifact(TYPE, key, read)
