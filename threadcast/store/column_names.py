"""What the names of columns say in tables of other programs: threads, times and their units, results, dates."""

from __future__ import annotations

import re
import unicodedata

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Units of time by how many are one second."""

_SPELLED = {
    "s": "s|secs?|seconds?", "ms": "ms|msecs?|millis|milliseconds?", "us": "us|usecs?|micros|microseconds?|\u03bcs",
    "ns": "ns|nsecs?|nanos|nanoseconds?",
}  # fmt: skip
_UNIT = "|".join(f"(?P<{unit}>{words})" for unit, words in _SPELLED.items())
_STATISTIC = r"median|med|p50|mean|avg|average|min|minimum|best"
_NAMED_UNIT = re.compile(
    rf"(?:(?P<stem>.*?)_)?(?:in_)?(?:{_UNIT})"
    rf"(?:_(?P<of>{_STATISTIC})|(?:_per)?_(?:op|iter|iteration|run|call|step)|_(?P<rest>(?:[a-z]+_?)*\d+(?:_?[a-z]+)*))?"
)
_TIME = re.compile(
    rf"(?:(?P<before>{_STATISTIC})_)?(?:t|times?|timings?|wall(?:_?clock)?(?:_?time)?|elapsed(?:_time)?|durations?|"
    rf"real(?:_?time)?|run_?time|exec(?:ution)?(?:_time)?|latency|took)"
    rf"(?:(?:_per)?_(?:iter|iteration|run|call|op|step))?(?:_(?P<after>{_STATISTIC}))?|"
    rf"(?P<alone>{_STATISTIC}|)"
)
THREADS = re.compile(
    r"(?:(?:omp|mkl|openblas|blas|numexpr|torch|intra_?op)_?)?(?:(?:n|no|nr|nb|num|number|count)_?(?:of_)?)?"
    r"threads?(?:_(?:count|num|number|used))?|n_jobs"
)
"""Names of a number of threads beyond doubt."""
CORES = re.compile(
    r"(?:(?:n|no|nr|nb|num|number)_?(?:of_)?)?(?:cores|cpus|procs|processors|workers)(?:_used)?|nproc|np|nt"
)
"""Names that may also be those of the machine's cores: for lack of `THREADS`."""
THREADS_OF_EACH = re.compile(r".*threads?_(?:per|on|in)_.*")
OTHERS = {
    "machine": re.compile(r"machine(?:_name)?|host_?(?:name)?|cpu_model"),
    "op": re.compile(r"op(?:_?name|_?type|eration|erator)?|kernel(?:_name)?|routine|function|benchmark|primitive|name"),
    "id": re.compile(r"(?:op_?|case_?|row_?)?id|(?:op_?)?(?:index|idx)"),
    "affinity": re.compile(r"(?:thread_)?affinity|(?:omp_)?proc_bind|kmp_affinity|binding|placement|pinning"),
}
_RESULT = re.compile(
    r"(?:.*_)?(?:[gmt]?flops|throughput|bandwidth|bw|speedup|efficiency|eff|std|std?dev|stdev|sd|sem|var|variance|cv|rsd|"
    r"iqr|p\d\d|percentile|best|ipc|cycles|energy|power|joules|watts|qps|fps|gbps|times?(?!_steps?)|duration|elapsed|"
    r"latency|wall|walltime|runtime|cputime)(?:_.*)?|min|max|mean|avg|median|user|sys|system|[gm]b_s|"
    r"speed_up|real|cpu|(?:max|min|mean|avg|median)_s|iterations|iters|loops|.*_per_s(?:ec|econd)?|.*flops?_s"
)
DATE = re.compile(r"(?:.*_)?(?:date|timestamp|datetime|utc)(?:_.*)?")
TIME_UNIT = re.compile(r"(?:time_)?units?")
REPETITION = re.compile(
    r"(?:trial|run|rep|iteration|repetition|repeat|sample|pass|seed)(?:[ _.-]?(?:id|index|no|nr|num|number))?", re.I
)
"""Names, as they are written, of columns that number the repetitions of a measurement, and describe no op."""
_COUNT = r"(?:t|th|thr|nt|(?:omp_)?(?:n|num)?_?threads?|cores?|cpus?|procs?|workers?)"
OF_COUNT = re.compile(rf"(?:(?:time|seconds|wall|runtime|latency)_?)?{_COUNT}?_?(?P<n>[1-9]\d*)_?{_COUNT}?")
"""Names of times at a number of threads, without their unit: "t4", "threads_4", "4 cores", "4"."""


def plain_name(name: str) -> str:
    """The name in small letters, its words joined by "_": "numThreads", "Num Threads" and "num-threads" are one."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", unicodedata.normalize("NFKC", name))
    return re.sub(r"[^a-z0-9\u03bc]+", "_", parted.lower()).strip("_")


def says_threads(name: str) -> bool:
    """Whether a name is that of a number of threads beyond doubt."""
    return THREADS.fullmatch(plain_name(name)) is not None


def is_result(plain: str) -> bool:
    """Whether a plain name is that of a time or of something else that is measured."""
    return unit_of(plain) is not None or rank_of_time(plain) is not None or _RESULT.fullmatch(plain) is not None


def form_of(name: str) -> str:
    """The name with "*" for its first number, without the plural: "1 core" and "2 cores" are one."""
    return re.sub(r"([a-z])s(?![a-z])", r"\1", re.sub(r"\d+", "*", name.lower(), count=1))


def parted(name: str) -> tuple[str, str | None, str]:
    """A plain name without its unit, the unit, and the statistic that the name says after it; "s" alone may be
    anything."""
    found = _NAMED_UNIT.fullmatch(name)
    if not found or (found["s"] == "s" and not found["stem"]):
        return name, None, ""
    unit = next(unit for unit in UNITS if found[unit])
    return "_".join(part for part in (found["stem"], found["rest"]) if part), unit, found["of"] or ""


def unit_of(name: str) -> str | None:
    """The unit of time that a plain name says."""
    return parted(name)[1]


def rank_of_time(name: str) -> int | None:
    """How good a plain name is for the time of a run: 0 for "time_ms", 1 for a median, 2 for a mean, 3 for the
    shortest; None where it is not surely the time of a run, as "compile_time_ms". `time_min` may be minutes."""
    bare, unit, statistic = parted(name)
    found = _TIME.fullmatch(bare)
    if found is None or (not unit and (found["alone"] is not None or found["after"] == "min")):
        return None
    statistic = statistic or found["before"] or found["after"] or found["alone"] or ""
    return {"": 0, "median": 1, "med": 1, "p50": 1, "mean": 2, "avg": 2, "average": 2}.get(statistic, 3)
