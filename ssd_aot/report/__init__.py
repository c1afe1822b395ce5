"""One HTML page about a bundle: what it covers, what was measured for it, and what is not known."""
