"""`torch.compile` with the parameters as constants: a process compiles to a file, and any other runs it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

from threadcast.runtime.backends.frozen import TensorCall
from threadcast.runtime.engine.native.library import lead_to_lanes


def write_package(program: ExportedProgram, folder: Path, cores: int, *, freezing: bool) -> Path:
    """Compile the program with Inductor, its weights as constants, for `cores` threads; return the shared library.

    With `freezing` weights are packed in the order that oneDNN prefers, and channels last is tried. That makes
    convolutions faster and matrix products slower: GPT-2 with 4 layers of 256 takes 4.7 ms a call with it and 4.2
    without, 0.5 of which is the packing, and compiles in 11 s in place of 7 (decision 34).

    `package_call` runs it in any process of this machine, without a compiler.
    """
    import torch._inductor

    options = {
        "cpp.threads": cores,
        "compile_threads": 1,  # no pool of processes, which would end later than this one
        "cpp.vec_isa_ok": True,  # a compiler that lacks the vector instructions fails anyway
        "cpp_cache_precompile_headers": False,  # compiling them takes longer than one use saves
        "freezing": freezing,
        "aot_inductor.precompile_headers": False,  # GoogLeNet compiles in 23 s in place of 31
        "aot_inductor.output_path": str(folder / "compiled.so"),
    }
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        module = program.module(check_guards=False)
        return Path(str(torch._inductor.aot_compile(module, program.example_inputs[0], options=options)))


def package_call(path: Path, example: Sequence[Tensor]) -> TensorCall:
    """Load what `write_package` wrote, and return its call. The file is not needed any more when this returns.

    `example` has the strides that it was compiled for: it reads memory by these, whichever its arguments have.

    `torch._inductor.aoti_load_package` would unpack an archive first: 1.4 s of CPU time for the weights of ResNet-50,
    not 0.06 s.

    The engine's threads run its parallel regions, if there are any, as they do those of PyTorch: workers of its own
    would spin beside them.
    """
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1)
    is_led, compiled_for = False, [value.stride() for value in example]

    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        nonlocal is_led
        is_led = is_led or lead_to_lanes(path)
        found: Sequence[Tensor] = runner.run(list(map(_as_compiled_for, tensors, compiled_for)))
        return found

    return run


def _as_compiled_for(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The tensor's numbers in memory with these strides."""
    if tensor.stride() == strides and not tensor.is_neg() and not tensor.is_conj():
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
