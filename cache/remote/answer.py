"""What a remote has answered about one record."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from inductor_plugin.cache.remote.chain import Chain
from inductor_plugin.cache.remote.health import LOCAL_ONLY_S
from inductor_plugin.errors import printable, warn_once, without_user

logger = logging.getLogger(__name__)

_LISTING = "it is asked for objects that may be missing, which S3 denies without the right to list the bucket (s3:ListBucket)"


@dataclass(frozen=True)
class Answer:
    """What a remote has answered about one record.

    Attributes:
        chain: Its editions.
        hit: Whether it knew more than the cache.
        damage: Damaged objects, and why.
        refused: Why its winner's kernel may not run here, empty if it may.
        expired: Whether its winner's kernel is described, and no build of it has all its files any more.
        unkept: Why its winner's kernel could not be written to this cache, empty if it could: no fault of the remote.
        error: Why something could not be read from the remote; None if it could.
    """

    chain: Chain
    hit: bool = False
    damage: tuple[str, ...] = ()
    refused: str = ""
    expired: bool = False
    unkept: str = ""
    error: OSError | None = None


def tell_of(answers: Collection[Answer], url: str) -> None:
    """Warn once of each kind of what is wrong: damage, kernels that may not run here, kernels that could not be kept.

    Args:
        answers: What the remote has answered.
        url: Its URL, for messages.
    """
    for damage in (text for answer in answers for text in answer.damage):
        logger.info("damaged object in the remote cache: %s", printable(damage))
        text = f"damaged object in the remote cache: {damage}; it is ignored, and `stats` counts further ones"
        warn_once(logger, text, f"damaged {url}")
    for answer in answers:
        if answer.refused:
            warn_once(logger, answer.refused, f"refused kernels of {url}")
        if answer.unkept:
            warn_once(logger, answer.unkept, f"kernels of {url} are not kept")


def reason_of(error: BaseException) -> str:
    """Return an error in one line, which a store may have filled with a page."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return f"{reason}; {_LISTING}" if isinstance(error, PermissionError) else reason


def tell_local(url: str, reason: str) -> None:
    """Warn once that a remote is left alone for a while."""
    shown = without_user(url)
    text = (
        f"the remote cache {shown} fails ({reason}); only the local cache is used, and the remote one "
        f"is tried again after {LOCAL_ONLY_S:.0f} s"
    )
    warn_once(logger, text, f"remote fails {shown}")


def tell_unsent(count: int, url: str, reason: str) -> None:
    """Warn that records stay in the local cache."""
    records = "1 record is" if count == 1 else f"{count} records are"
    text = f"{records} not in {without_user(url)} yet ({reason})"
    warn_once(logger, f"{text}; `inductor-plugin push` writes them")
