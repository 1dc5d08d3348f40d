"""A file that is written under a private name beside its own, and renamed when it is whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def draft_of(file: Path) -> Generator[Path]:
    """Yield an empty new file in the folder of ``file``, which replaces it unless the block raises.

    The name is drawn at random and must not exist yet: in a folder that others may write to, a known
    name could be a link to one of the user's files, and two processes would write to the same draft.

    Raises:
        OSError: The folder cannot be written to, or ``file`` is a folder or a device.
    """
    if file.exists() and not file.is_file():
        raise OSError(f"{file} is no plain file")
    draft = file.with_name(f".{file.name[:64]}.{secrets.token_hex(8)}.part")
    # The mode is what the user's umask leaves of it, as for any file.
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
    try:
        yield draft
        draft.replace(file)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
