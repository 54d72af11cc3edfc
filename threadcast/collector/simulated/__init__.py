"""The paper's machine, simulated. Nothing here measures real hardware; everything it yields says so."""
