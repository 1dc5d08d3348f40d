"""The C++ part of the operators: call sites that launch compiled kernels without Python."""
