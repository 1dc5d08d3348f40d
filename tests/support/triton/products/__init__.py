"""Tests that each Triton template of products has to pass; one module a template."""
