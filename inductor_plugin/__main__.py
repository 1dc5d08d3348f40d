"""``python -m inductor_plugin``: the command line."""

import sys

from inductor_plugin.cli import main

if __name__ == "__main__":
    sys.exit(main())
