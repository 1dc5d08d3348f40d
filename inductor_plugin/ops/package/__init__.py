"""The C++ that AOTInductor's generated code includes: kernels and attention without Python."""
