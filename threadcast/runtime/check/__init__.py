"""Compares a plan's results with those of eager PyTorch on copies of the same state, and finds the wrong operator.

Whatever runs in place of eager PyTorch might compute something else: a kernel that is wrong for other strides, an
operator of ours, an optimizer's fused update. So the first step by each plan also runs in eager PyTorch from the same
state, and a plan whose results differ beyond rounding never runs again.

`shadow` runs a step twice: `step_state` keeps all that it may change (parameters, buffers, the optimizer's state,
random generators) and sets it back. `functional` is the cheap case, a graph that writes to nothing of the caller's.
`differences` compares number by number, by groups of tensors; `limits` says how much a number may differ: by its type,
its size, and by how much rounding moves it (`sensitivity`, further runs of eager PyTorch's own step).

Some numbers differ in right plans, and these are told apart:

- an index of a near tie is compared by what it points at (`pointing`);
- near the zero of a ReLU, or where a result jumps, a number may differ in one step and agree in others (`chance`,
  `jumps`): a wrong kernel's do in each;
- Adam makes a whole step out of a rounding, so that an update is judged by what eager PyTorch makes of the plan's own
  gradients (`own_update`);
- running means have their own exactness (`running_means`);
- values that are all zero, or not finite, show nothing (`telling`).

A report names the first operator that differs (`first_operator`), which is found by running the step again piece by
piece. Tests hold both sides: right plans of fifteen networks pass, and wrong kernels are found.
"""
