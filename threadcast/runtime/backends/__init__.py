"""Other runtimes that run a whole module for inference, with its parameters as constants: ONNX Runtime and others."""
