"""Parses option values, from Python and from environment variables, by kind. Pure, but for `pin_file_sha256`."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from inductor_plugin.errors import OptionError, expanded, without_user

Kind = Literal[
    "text",
    "list",
    "folder",
    "choice",
    "on/off",
    "whole number",
    "number",
    "size",
    "limits",
    "url",
    "keys",
    "farm",
]

_SWITCHES = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
# At most 18 digits: longer texts are typing errors, and Python refuses to convert 4,301 digits or an infinite float.
_LIMIT = re.compile(r"(?:([a-z]\w*)=)?(\d{1,18})")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(?!.*::)[^\s\x00-\x1f]+")
"""fsspec's chains (``simplecache::s3://...``) keep files of their own, which nothing checks."""
_KEY = re.compile(r"ed25519:[\w-]{43}( [^,\x00-\x1f]{1,80})?", re.ASCII)
_FARM = re.compile(r"ray:(auto|local|(//)?[^\s/:]+:\d{1,5})")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def how(
    kind: Kind,
    sentence: str,
    *,
    unit: str = "",
    choices: tuple[str, ...] = (),
    minimum: float = 0,
    code: bool = False,
) -> dict[str, Any]:
    """Return the metadata of one option; ``code`` is True if it affects the generated code."""
    return {
        "kind": kind,
        "sentence": sentence,
        "unit": unit,
        "choices": choices,
        "minimum": minimum,
        "code": code,
    }


def _text(value: object, origin: str) -> str:
    if not isinstance(value, str | Path):
        raise OptionError(f"{origin} is {value!r}; use text")
    return str(value)


def _list(value: object, origin: str) -> str:
    several: Any = value  # narrowing by type would leave its elements unknown
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in several):
        several = ",".join(several)
    words = _text(several, origin).upper().split(",")
    return ",".join(word.strip() for word in words if word.strip())


def _path(value: object, origin: str) -> Path:
    text = _text(value, origin)
    if not text:
        raise OptionError(f"{origin} is empty; name a folder or leave the option out")
    return expanded(text, origin, OptionError)


def switch(value: object, origin: str) -> bool:
    """Return the value of a switch.

    Raises:
        OptionError: The value is not a switch.
    """
    if isinstance(value, bool):
        return value
    enabled = _SWITCHES.get(str(value).strip().lower())
    if enabled is None:
        raise OptionError(f"{origin} is {value!r}; use one of {', '.join(_SWITCHES)}")
    return enabled


def _integer(value: object, origin: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,18}", value.strip()):
        return int(value)
    raise OptionError(f"{origin} is {value!r}; use a whole number")


def _number(value: object, origin: str) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = float("nan")
        if abs(number) < float("inf"):
            return number
    raise OptionError(f"{origin} is {value!r}; use a finite number")


def _bytes(value: object, origin: str) -> int:
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        amount, prefix, binary = match.groups()
        base = 1024 if binary or not prefix else 1000
        return int(float(amount) * base ** " kmgt".index(prefix.lower() or " "))
    try:
        return _integer(value, origin)
    except OptionError as error:
        raise OptionError(f"{origin} is {value!r}; use a size such as 10GiB or 500MB") from error


def _limits(value: object, origin: str) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    words = [word.strip() for word in text.split(",")] if isinstance(text, str) else [""]
    if words == [""] and isinstance(text, str):
        return ""
    matches = [_LIMIT.fullmatch(word) for word in words]
    devices = [match[1] for match in matches if match is not None]
    if None in matches or len(set(devices)) < len(words):
        raise OptionError(
            f"{origin} is {value!r}; use a whole number, or one for each device type as in "
            "cuda=24,cpu=64"
        )
    return ",".join(words)


def limit_of(text: str, device_type: str) -> int:
    """Return the limit for a device type from an option of kind ``limits``; 0 for no limit.

    Args:
        text: Such as ``64`` or ``cuda=24,64``; the number without a name applies to all other devices.
        device_type: ``cuda``, ``cpu`` ...
    """
    matches = [match for match in map(_LIMIT.fullmatch, text.split(",")) if match is not None]
    named = {match[1]: int(match[2]) for match in matches}
    return named.get(device_type, named.get(None, 0))


def _url(value: object, origin: str) -> str:
    text = _text(value, origin).strip().rstrip("/")
    if not text:
        return ""
    match = _URL.fullmatch(text)
    if match is None:
        raise OptionError(
            f"{origin} is {without_user(text)!r}; use a URL such as s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or file:///FOLDER"
            f"{', without a chain of file systems' if '::' in text else ''}"
        )
    protocols = _protocols()
    if protocols and match[1] not in protocols:
        raise OptionError(
            f"{origin} is {without_user(text)!r}, and fsspec knows no {match[1]}://; {suggestion(match[1], protocols)}"
        )
    return text


def _keys(value: object, origin: str) -> str:
    words = [word.strip() for word in _text(value, origin).split(",")]
    for word in filter(None, words):
        if not _KEY.fullmatch(word) and "/" not in word:
            raise OptionError(
                f"{origin} has {word[:80]!r}; use a key (`inductor-plugin key show FILE`), with a name behind a blank if "
                "wanted, or the path of a file of keys, with a slash in it"
            )
    return ",".join(filter(None, words))


def _farm(value: object, origin: str) -> str:
    text = _text(value, origin).strip()
    if not text or _FARM.fullmatch(text):
        return text
    raise OptionError(
        f"{origin} is {value!r}; use ray://HOST:PORT (a Ray client), ray:auto, ray:HOST:PORT or ray:local"
    )


def _protocols() -> frozenset[str]:
    """Return the protocols that fsspec knows, installed or not; none without fsspec, which a later error says."""
    try:
        fsspec: Any = importlib.import_module("fsspec")  # 50 ms, and only where a URL is named
    except ImportError:
        return frozenset()
    return frozenset(fsspec.available_protocols())


PARSERS: Mapping[Kind, Callable[[object, str], object]] = {
    "text": _text,
    "folder": _path,
    "choice": _text,
    "list": _list,
    "on/off": switch,
    "whole number": _integer,
    "number": _number,
    "size": _bytes,
    "limits": _limits,
    "url": _url,
    "keys": _keys,
    "farm": _farm,
}
"""Parser of each kind; takes the value, and its origin for error messages."""


def parse(how: Mapping[str, Any], value: object, origin: str) -> object:
    """Return the value of an option.

    Args:
        how: Its metadata: ``kind``, ``choices``, ``minimum``.
        value: The value, or its text.
        origin: The option or variable, for error messages.

    Raises:
        OptionError: It is not a value of this option.
    """
    parsed = PARSERS[how["kind"]](value, origin)
    listed = str(parsed).split(",") if parsed else []
    words: list[object] = [*listed] if how["kind"] == "list" else [parsed]
    if how["choices"] and any(word not in how["choices"] for word in words):
        raise OptionError(f"{origin} is {value!r}; use one of {', '.join(how['choices'])}")
    if isinstance(parsed, int | float) and parsed < how["minimum"]:
        raise OptionError(f"{origin} is {value!r}; use {how['minimum']} or more")
    return parsed


def suggestion(
    name: str, options: Iterable[str], others: Iterable[str] = (), *, brief: bool = False
) -> str:
    """Return the closest name, and the list of names.

    Args:
        name: The name that does not exist.
        options: Those that exist, listed.
        others: More that exist, too many to list.
        brief: Leave the list out where a name is close.
    """
    names = sorted(options)
    close = difflib.get_close_matches(name, [*names, *others], n=1)
    hint = f"did you mean {close[0]!r}?" if close else ""
    listed = "" if brief and close else f"known are: {', '.join(names)}"
    return " ".join(filter(None, (hint, listed)))


def unknown_names(
    variables: Mapping[str, str], prefix: str, names: Sequence[str]
) -> tuple[str, ...]:
    """Return one sentence for each variable with a prefix that is none of the names."""
    return tuple(
        f"variable {variable}={text!r} has no effect, there is none of this name; "
        f"{suggestion(variable, names, brief=True)}"
        for variable, text in sorted(variables.items())
        if variable.startswith(prefix) and variable not in names
    )


def pin_file_sha256(path: str) -> str:
    """Return the SHA-256 of the content of a pin file.

    Raises:
        OptionError: It cannot be read.
    """
    file = expanded(path, "option pin_file", OptionError)
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise OptionError(
            f"option pin_file is {path!r}, which cannot be read ({error.strerror}); name a file that "
            "`inductor-plugin pin` or inductor_plugin.record has written"
        ) from error


def check_pins(policy: str, pin_file: str, *, strict: bool) -> None:
    """Check the options about pins together.

    Raises:
        OptionError: They do not fit.
    """
    if policy == "pinned" and not pin_file:
        raise OptionError(
            "option policy='pinned' needs a file of decisions; set pin_file (written by "
            "inductor_plugin.record(FILE) or `inductor-plugin pin FILE`) or use policy='cached'"
        )
    if strict and policy != "pinned":
        words = "it is about pins; set policy='pinned'"
        raise OptionError(f"option strict is on, and policy is {policy!r}: {words}")


def check_farms(compile_farm: str, bench_farm: str) -> None:
    """Check the options about clusters together: a process is connected to one.

    Raises:
        OptionError: They name two.
    """
    if compile_farm and bench_farm and compile_farm != bench_farm:
        raise OptionError(
            f"option bench_farm is {bench_farm!r}, and compile_farm is {compile_farm!r}; a process is connected to one "
            "cluster: name the same, or leave one out"
        )
