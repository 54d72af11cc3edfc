"""Whether plans give what eager PyTorch gives: compared on copies of a step's state, down to the operator at fault."""
