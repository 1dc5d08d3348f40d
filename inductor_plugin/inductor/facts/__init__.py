"""Inductor read as values: IR as a problem, toolchains, the settings of a compile, versions of torch."""
