"""What is computed, as frozen facts and pure decisions: operands, epilogues, GPUs, layouts. No torch."""

from inductor_plugin.problem.definition import Operand, Problem, SizeClass, dtype_name

__all__ = ["Operand", "Problem", "SizeClass", "dtype_name"]
