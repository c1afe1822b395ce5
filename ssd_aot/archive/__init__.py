"""Bundles on their way: as one file, and as an OCI image."""
