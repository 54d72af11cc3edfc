"""Records what a function of tensors calls, as a graph whose every legal order gives eager's bits.

The function runs once, below autograd, on fake tensors: these have shapes, types and strides, and no numbers. A
`recorder.Recorder` is a dispatch mode, which sees each operator that PyTorch would call, autograd's among them, and
notes it in a `program.Recording`: which operator, on which slots. That takes milliseconds and no arithmetic. PyTorch's
own tracer does the same through a graph of Python objects, in twice the time.

    arguments --stand-ins--> fake_tensors --calls--> recorder --Recording--> lowering --Program, OpGraph--> captured

*Slots.* Every value has a number: first the inputs (parameters, buffers, optimizer state, arguments, constants), then
one for each call. `values` is all that may stand in a call's arguments: a `Ref` to a slot, a number that a tensor holds
(`AsNumber`), or a plain constant, which is built in.

*Order.* A graph may run in any order that its edges allow, on several threads. Values flowing make most edges; the rest
is `dependencies`: memory that one op writes and another reads, under whatever name (views, in-place results, running
statistics); draws of random numbers; and errors, as after one that is raised the caller's tensors must be what they are
in PyTorch. A missing edge is a wrong number that shows once in a thousand runs. So where a schema does not say what an
operator does, as a custom one's, the worst is assumed.

*Bits.* `rewriting` puts other calls in place of recorded ones only where these give the same numbers: parts of a
gradient, empty tensors by shape, sums that a product adds. `fake_results` says what operators return where PyTorch's
rule for fake tensors does not. Where PyTorch's kernels themselves depend on threads or overrun memory, `capture`
refuses the graph.

*What varies between runs.* Tensors are inputs. Learning rates are tensors of one element (`optimizers`).
Sizes are fixed: others have a graph of their own. Numbers read out of tensors are built in, and read again before
each run (`numbers.NumberReads`). Python values are the business of `guards`, which is below this room.

*A training step* (`training_step`) is forward, backward and update in one recording. Updates are PyTorch's fused
kernels, for types and layouts of which they are right (`optimizers`), with the state in `optimizer.state` as always.

`captured.Captured` is what comes out: the graph, the program, and the live tensors that a run takes. `bind` checks a
call's arguments, `program.run` is the plain interpreter that every faster engine must equal bit by bit, and `finish`
tells autograd which results are views.
"""
