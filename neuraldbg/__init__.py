"""NeuralDbg: the debugger for neural-network training."""
