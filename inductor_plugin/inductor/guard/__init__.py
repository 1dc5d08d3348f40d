"""A tuned graph is compared with the same graph of library kernels, and gives up what makes it slower."""
