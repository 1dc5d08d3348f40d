"""``python -m inductor_plugin.cli``: the command line."""

import sys

from inductor_plugin.cli import main

sys.exit(main())
