"""Runs what `torch.compile` hands over: Dynamo's graph as traced, or the graphs that AOTAutograd makes of it, by plans.

Dynamo calls the backend once for each graph that it has traced, and guards when it holds. The backend returns one
callable for it, a program (`compiled_call`), which can run in two ways:

- *as traced* (`graph_by_pytorch`): Dynamo's graph, operator by operator, under PyTorch's own autograd, at its speed.
  This is the baseline, and runs while nothing better is known.
- *by its graphs*: AOTAutograd divides it into a forward and a backward graph below autograd. `graph_calls` runs one of
  them, by PyTorch or by a plan, as `LearnedCalls`: kinds of calls are those of `optimize`, but for what is watched.

`whole_calls` decides between the two by times of whole calls, in one tournament a program. The wrappers that
AOTAutograd puts around graphs cost more than small graphs gain; once a program runs by its graphs, `short_way` does in
C++ what they do.

A program with operators that no plan may run (`whole_graphs`), or with a checkpoint, always runs as traced. A graph
has corners which only PyTorch knows, and each has a file: gradients of results that no loss used are undefined, and not
zeros (`unused_results`); weights of frozen graphs stay the same tensors (`fixed_weights`), of
which backends have copies;
results are handed on as they are (`plain_results`).

`compile_options` are the options that `torch.compile` may be given for us.
"""
