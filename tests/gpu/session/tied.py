"""Becomes a step's command, tied to the session that starts it: the kernel kills it when the session's thread ends.

    python -I -S tied.py PARENT COMMAND...

A session that is killed by SIGKILL cannot end its step; one that went on would disturb what the next session measures.
`subprocess`'s ``preexec_fn`` could do the same, but is unsafe in a process with threads, and Python 3.12 warns of it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h; execve keeps it


def main() -> None:
    """Tie this process to its parent, and become the command."""
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):  # it has ended before the call
        sys.exit(f"the session {parent} has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
