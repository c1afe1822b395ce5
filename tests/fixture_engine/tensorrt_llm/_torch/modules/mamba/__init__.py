"""A small TensorRT-LLM of our own: the kernels' names and what tells their variants apart."""
