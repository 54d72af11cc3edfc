"""Records what a function of tensors calls, as a graph whose every legal order gives eager's bits."""
