"""Start a program by its module, as `python -m` does: `python -m redrive.processes.start redrive.worker`.

What is imported stays: to look for garbage in it, hundreds of times, is a tenth of the CPU until the program runs.
"""

import gc
import importlib
import sys


def main() -> None:
    """Import the program without looking for garbage, and run it."""
    gc.disable()
    del sys.argv[0]
    program = importlib.import_module(sys.argv[0])
    gc.freeze()
    gc.enable()
    program.main()


if __name__ == "__main__":
    main()
