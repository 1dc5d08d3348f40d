"""The verb that makes and shows keys: ``key``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from inductor_plugin.cache.trust.keys import Signer, new_key, open_signer
from inductor_plugin.cli.verb import Verb, output_file, say
from inductor_plugin.config import Config
from inductor_plugin.errors import TrustError


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("what", choices=("new", "show"), help="make a key, or show its public half")
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        nargs="?",
        help="the private key, PEM; that of INDUCTOR_PLUGIN_SIGNING_KEY if it is left out",
    )


def _key(arguments: Namespace) -> int:
    file = str(arguments.file or Config.load().signing_key)
    if not file:
        raise TrustError("no key is named; name its file, or set INDUCTOR_PLUGIN_SIGNING_KEY")
    signer = new_key(output_file(Path(file))) if arguments.what == "new" else open_signer(file)
    assert signer is not None  # a file is named
    say(arguments, {"file": file, "public": signer.public}, _text(signer, file, arguments.what))
    return 0


def _text(signer: Signer, file: str, what: str) -> str:
    if what == "show":
        return signer.public
    return (
        f"{file}: new private key, to be read by you alone\n"
        f"INDUCTOR_PLUGIN_SIGNING_KEY={file}    signs the kernels that you pass on\n"
        f"INDUCTOR_PLUGIN_TRUSTED_KEYS={signer.public}    on machines that may run them"
    )


VERBS = (Verb("key", "make or show a key that signs kernels", _arguments, _key, cache=False),)
