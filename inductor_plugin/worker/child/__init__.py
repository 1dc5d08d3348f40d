"""What runs in a worker: the entry file, compiling, measuring, operands."""
