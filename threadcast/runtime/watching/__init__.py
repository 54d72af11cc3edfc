"""Whether what a captured graph has built in is still as it was, asked before each call, in microseconds.

`optimize` has no guards of Dynamo's: a graph holds a model's tensors themselves, has the numbers that code has read
built in, and calls no hooks. A `Watch` (`model`) says in an `Observation` what has become of all that:

- *changed*: a tensor, a layer or the optimizer's state was exchanged or moved in memory, or a Python value that code
  reads is another. All graphs go, and calls are captured anew.
- *settings*: modes, public numbers and texts of modules (`constants`), which parameters are trained, the optimizer's
  settings. They belong to the kind of a call (`calls`), so that a program may alternate between train and eval.
- *hooked*, *apart* (`hooks`): hooks, or a replaced `step`, which a graph would not call. PyTorch runs the call, or the
  optimizer's step after a graph of the gradients.
- *unsteady*: something changes in every call (`Patience`), or cannot be watched. PyTorch runs the calls.

What code can read is found by a walk through code and objects (`capture/guards`), of milliseconds, when a graph is
captured; `python_values` compares with it. The quick look reads the counters of dictionaries, the places of attributes
and the addresses of tensors natively (`Untouched`, `Unassigned`): where none has moved, the observation is the last
one. Only where something was touched the items are compared, one by one; without the native library, always. Modules'
dictionaries are in both looks, for two questions: tensors and layers here, whatever code does with them, as a graph
holds them; all other attributes there, as far as code names them.

Shapes and values of arguments are not watched: they are the kind of a call.
"""
