"""A small engine of our own: kernels, and launch code in the styles that engines have."""
