"""The engines' own kernels: their launch code under a stand-in GPU, what it launches, and a bundle
of it that Triton finds ready."""
