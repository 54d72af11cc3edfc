"""The order of images, weights and results in memory, where it differs from the one that the caller gave.

Convolutions are often faster on images in channels last, and slower on others. `optimize` and `optimize_training` may
reorder a model's weights in place (`plans/model_format`), as objects and values stay the same; under `torch.compile`
this cannot be, as Dynamo guards strides, so graphs convert what their convolutions take in each call, below autograd
(`graph_layout`). Either way the caller must not see it: results get eager PyTorch's strides (`result_layout`).

Some of PyTorch's kernels are wrong, without an error, where an image and its gradient lie in different orders. Only
graphs of operators that were tried are converted, and their results are compared with the graph's own, as PyTorch runs
it (`graph_by_pytorch`).

Which order is faster is no matter of this room: each is a candidate in `tuner`.
"""
