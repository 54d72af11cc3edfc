"""What a training loop does around the gradients, and the optimizer's step by PyTorch's fused kernels.

A training step is a forward and a backward pass, and then what the loop does with the gradients: it accumulates them,
unscales and clips them, and lets an optimizer update the parameters. `batch_loss` is the first half as a captured step
computes it. `parameter_update` is the second, in the order in which a loop does it (a `GradScaler` included), for
steps whose update is not part of the plan.

PyTorch's optimizers loop over parameters by default, or run kernels for all of them at once with `fused=True`, which
is much faster for many small parameters, and not right for all. `fused_updates` lets an optimizer use them: `fused_fit`
says whether they are right for the next step, `fused_step` changes the settings and sets them back after it, so that
the caller's optimizer looks as it was.

`first_update` keeps `optimizer.state` as eager PyTorch has it before the first update, though captured steps need its
tensors earlier.
"""
