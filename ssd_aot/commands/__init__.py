"""One module a command: its options, what it delegates to, what it prints."""
