"""Entry point of ``python -m kwire``, which does the same as the command ``kwire``."""

from kwire.cli import main

if __name__ == "__main__":
    main()
