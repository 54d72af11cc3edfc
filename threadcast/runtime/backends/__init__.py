"""Other libraries as candidates for a whole inference call: ONNX Runtime, OpenVINO, frozen `torch.compile`.

They fuse more than PyTorch, and for some networks nothing else comes near. But each brings large libraries, copies the
weights, takes seconds to build, and computes some operators otherwise than PyTorch. So:

*Built elsewhere.* `search` is a candidate's view of a search: it begins, is asked for what it found, is paused, ends.
The work is done in one child process (`search_process`, `search_worker`), watched by a small guard that ends it and
deletes its files whatever happens (`search_guard`). The child gets the captured program as data (`program_file`),
exports it (`exported`, `written_out`), builds the likeliest library first (`libraries`, `building`), checks and times
it, and goes on while another is expected to gain more (`plans.backend_history`). What is worth it is opened in the
caller's process and compared there in the caller's own calls, by `tuner`. The fastest way is stored with its files
(`way_store`), so that later processes open it without a child.

*Right for what it is given.* A library that agrees on the example may differ for other numbers. That is found in the
child in two ways. *Calls* (`probes`): it must answer ten inputs that are derived from the example as PyTorch does, up
to what last digits of the input change in PyTorch itself. And *inside* (`inside`), where inputs do not reach, each
library is taken to be as bad as the worst that is known: the program runs in PyTorch with negative products, which may
make no NaN or infinity, and twice side by side, the second time with other last digits in quotients and zeros for small
results of sigmoids, from which nothing may follow. Integers stay within what are indices (`index_ranges`), which is
tried, too. Each call is looked at (`number_guard`): NaN or infinities that the example had not, in arguments or
results, make PyTorch run it, and so does whatever a library raises. So a wrong number in place of NaN is the only harm.
Norms get rows without their mean (`constant_rows`), for which libraries have too few digits.

*Fresh.* Libraries hold copies of the weights; `weight_versions` sees when the caller's have changed, and the backend is
left. Results get PyTorch's strides and share memory as PyTorch's do (`result_memory`).

Which library runs a call is decided by time alone, once it is right.
"""
