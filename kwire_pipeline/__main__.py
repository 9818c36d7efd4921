"""The entry point of ``python -m kwire_pipeline``, the same as the command ``kwire-pipeline``."""

from kwire_pipeline.job import main

if __name__ == "__main__":
    main()
