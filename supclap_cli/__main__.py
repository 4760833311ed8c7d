"""`python -m supclap_cli` is the command `supclap`."""

import sys

from supclap_cli import main


sys.exit(main())
