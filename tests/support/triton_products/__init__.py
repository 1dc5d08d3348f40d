"""What each Triton template of products is held to; one module a template."""
