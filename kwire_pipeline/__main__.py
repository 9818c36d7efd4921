"""The entry point of ``python -m kwire_pipeline``, the same as the command ``kwire-pipeline``."""

import sys

from kwire_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
