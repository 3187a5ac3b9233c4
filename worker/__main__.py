"""``python -m worker``: the same as the command ``wakeboard``."""

from worker.cli import main

if __name__ == "__main__":
    main()
