"""What a program's Triton compiles or loads, written down while it runs: a source to build from."""
