"""`python -m tttembed_rag` is the `tttembed` command."""

from tttembed_rag.cli import main

main(prog_name="tttembed")
