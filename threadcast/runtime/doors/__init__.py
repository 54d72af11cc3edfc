"""What users call: `optimize`, `optimize_training`, and the backend of `torch.compile`; their reports and timelines.

`optimize` and `optimize_training` (`optimize`; `given` refuses what cannot work) return a callable in place of the
caller's: `optimized_call` for inference, `optimized_step` for a training step. Both are an `optimized_model`: reports,
the choice of cores, `learn`, `close`. Within is one `Optimized` (`optimized`): it finds the kind of a call (`calls`),
asks the kind's `Tuning` (`tuner`) to run it, and falls back to PyTorch with a reason that users read. Whatever happens,
a call does exactly what it does in PyTorch.

Calls of our own, as those of `learn` or of an example, change nothing: `own_calls` sets back parameters, buffers,
counters, random numbers. `traced_step` shows a step beside its plan.

`compile_backend` is what `torch.compile(model, backend="threadcast")` calls: PyTorch's graphs and PyTorch's semantics,
hooks, graph breaks and guards included; it returns programs of `compiled`.

All doors share everything behind them: kinds of calls, the tuner and its budget, plans, backends, the engine.
"""
