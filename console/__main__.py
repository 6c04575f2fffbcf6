"""The console as a program: `python -m console`."""

from console.server import serve
from redrive.program import run_program


def main() -> None:
    """Run the console."""
    run_program("console", serve, failed="console.not_started")


if __name__ == "__main__":
    main()
