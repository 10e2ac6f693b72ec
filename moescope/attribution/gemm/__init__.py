"""Matrix operations: their FLOPs and bytes by shape, their kernels, the rate they reach and what small ones lose."""
