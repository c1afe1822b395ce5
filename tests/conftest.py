"""Shared builders for the tests."""
