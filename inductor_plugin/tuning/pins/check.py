"""Which pins do not apply here, and why: their environment is another one, or their template is gone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inductor_plugin.cache import differences
from inductor_plugin.cache.document import is_object
from inductor_plugin.cache.lookup.near import differences_text
from inductor_plugin.tuning.pins.pin import Fields, Pin, PinFile, brief

_SETTINGS = ("device.threads", "numerics.")
"""Fields of an environment that a program sets."""


def stale(
    file: PinFile,
    here: Mapping[str, Fields],
    templates: Mapping[str, str],
    known: Mapping[str, Fields],
    not_offered: Callable[[Pin], str] = lambda _: "",
) -> list[tuple[Pin, str]]:
    """Return the pins that do not apply, with the reason.

    Args:
        file: The pin file.
        here: Fields of this machine's environments by digest, one for each kind of device.
        templates: Class and version of each registered template, by name.
        known: Fields of environments that the file does not have, as one of format 1, by digest.
        not_offered: Returns why the registered template of a pin of this machine does not offer its winner, empty if it does.
    """
    reasons = {
        pin.environment: _why_other(
            pin.environment,
            file.environments.get(pin.environment) or known.get(pin.environment) or {},
            here,
        )
        for pin in file.pins.values()
    }
    rows = [
        (
            pin,
            reasons[pin.environment] or _why_no_template(pin, templates) or not_offered(pin),
        )
        for pin in file.pins.values()
    ]
    return sorted(
        ((pin, why) for pin, why in rows if why),
        key=lambda row: (row[1], row[0].op, row[0].describe, row[0].digest),
    )


def _why_other(digest: str, fields: Fields, here: Mapping[str, Fields]) -> str:
    """Return why this machine is none of an environment, empty if it is."""
    if digest in here:
        return ""
    if not fields:
        return "it is of another environment, of which the file says nothing"
    kind = _kind(fields)
    same = [brief(own) for own in here.values() if _kind(own) == kind]
    if not same:
        return f"this machine has no {kind} device"
    changes = min((tuple(differences(brief(fields), own)) for own in same), key=len)
    text = f"another environment; from there to here {differences_text(changes)}"
    if changes and all(change.path.startswith(_SETTINGS) for change in changes):
        text += " (a program may set that)"
    return text


def _kind(fields: Fields) -> str:
    device: Any = fields.get("device")
    return str(device.get("type", "cpu")) if is_object(device) else "cpu"


def _why_no_template(pin: Pin, templates: Mapping[str, str]) -> str:
    if not pin.template:
        return ""
    if pin.template not in templates:
        return f"template {pin.template!r} is not registered"
    if pin.identities and templates[pin.template] not in pin.identities:
        return (
            f"template {pin.template!r} is {templates[pin.template]} here, and was "
            f"{' or '.join(pin.identities)}"
        )
    return ""
