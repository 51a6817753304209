"""Parts of compiled kernels: vectors of numbers, products of matrices, perceptrons, optimizer steps."""
