"""Compares what a plan gives with eager PyTorch, from copies of the same state: bit for bit, or operator by operator.

Whatever runs in place of eager PyTorch might compute something else: a kernel that is wrong for other strides, an
operator of ours, an optimizer's fused update, a value that is freed too early. So the first step by each plan also runs
in eager PyTorch, and a plan that gives something else never runs again. Nothing is left to statistics:

1. *A plan has the bits of its graph.* The same graph runs op after op on the calling thread, each op with as many
   threads as the plan gives it: kernels add up in another order on another number of threads, and in no other case.
   What a race changes, or a value that is stale or mixed up, differs.
2. *A graph has the bits of eager PyTorch*, but for what stands for an operator of PyTorch's: gradients computed
   one by one, sums of products that are products that add, products, pools and loops of ours. The graph runs op after
   op with PyTorch's own results of these calls in their place (`judge`), and each is compared with its own on the same
   inputs, within some roundings. So no difference can grow on its way, and what is returned in the end has eager's
   bits. Fused updates are compared by what they write, on gradients that have eager's bits.
3. *Channels last* adds up in other orders. PyTorch's step in that order runs once with each operator on contiguous
   copies of its inputs too, and goes on with what these give (`judge.BothOrders`): what it returns in the end is
   eager's step as given. A plan in channels last is compared with that order's step.
4. *Kernels that do not repeat their own bits*, as those whose threads add in whatever order they come, are found by
   running them again where something differs; such values may differ by some roundings.

A plan whose results have eager's bits at once needs none of that. Steps that can show nothing, as zeros hide a wrong
factor, do not count (`telling`); the next ones are compared too.

`shadow` runs a step twice: `step_state` keeps all that it may change (parameters, buffers, the optimizer's state,
PyTorch's random generator) and sets it back. The caller gets eager PyTorch's result, of the first steps and wherever a
step is verified later (`engine.verify_every`). `bits` compares values, `limits` says how far numbers are from others. A
difference names the first operator that differs on eager's own inputs.
"""
