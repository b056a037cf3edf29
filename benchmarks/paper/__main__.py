"""`python -m benchmarks.paper NAME DIR...`."""

from benchmarks.paper.command import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.paper")
