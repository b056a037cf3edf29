"""`python -m tttembed_rag` is the `tttembed` command."""

from tttembed_rag.cli import main

if __name__ == "__main__":
    main(prog_name="tttembed")
