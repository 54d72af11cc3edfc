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
CELL = re.compile(rf"(?P<number>[-+]?[\d.,]+(?:e[-+]?\d+)?)\s*(?:{_UNIT})", re.I)
_STATISTIC = r"median|med|p50|mean|avg|average|min|minimum|best"
NAMED_UNIT = re.compile(
    rf"(?:(?P<stem>.*?)_)?(?:in_)?(?:{_UNIT})"
    rf"(?:_(?P<of>{_STATISTIC})|(?:_per)?_(?:op|iter|iteration|run|call|step)|_(?P<rest>(?:[a-z]+_?)*\d+(?:_?[a-z]+)*))?"
)
_TIME = re.compile(
    rf"(?:(?P<before>{_STATISTIC})_)?(?:t|times?|timings?|wall(?:_?clock)?(?:_?time)?|elapsed(?:_time)?|durations?|"
    rf"real(?:_?time)?|run_?time|exec(?:ution)?(?:_time)?|latency|took)"
    rf"(?:(?:_per)?_(?:iter|iteration|run|call|op|step))?(?:_(?P<after>{_STATISTIC}))?|"
    rf"(?P<alone>{_STATISTIC}|)"
)
_BESIDE = re.compile(r"(?:.*_)?(?:cpu|user|sys|system|std|std?dev|sd|sem|var|cv|iqr|max|maximum|p9\d)(?:_.*)?")
"""Times that stand beside those of a run."""
_RATE = re.compile(r"(?:.*_)?(?:[kmgt]?i?(?:flops?|b|bytes?|bits?|ops?)|per|it|images|items|runs|calls|samples)")
"""What is counted by the second."""
_PART = re.compile(
    r"(?:.*_)?(?:total|set_?up|init|wait|idle|start|end|compile|compilation|load|warm_?up|queue|overhead|saved|relative|"
    r"lock|sleep|gpu|cuda|device)(?:_.*)?"
)
ANY_TIME = 4
"""The rank of a time of which only the unit says that it is one, or "time" after a word."""
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
RESULT = re.compile(
    r"(?:.*_)?(?:[gmt]flops|throughput|bandwidth|bw|speedup|efficiency|eff|std|std?dev|stdev|sd|sem|var|variance|cv|rsd|iqr|"
    r"p\d\d|percentile|best|ipc|cycles|energy|power|joules|watts|qps|fps|gbps|times?(?!_steps?)|duration|elapsed|latency|wall|"
    r"walltime|runtime|cputime|msec|ms|us|ns|secs?|seconds)(?:_.*)?|min|max|mean|avg|median|user|sys|system|[gm]b_s|"
    r"speed_up|real|cpu|(?:max|min|mean|avg|median)_s|iterations|iters|loops|.*_per_s(?:ec|econd)?|.*flops?_s"
)
"""Names of numbers that are measured: they differ with the threads, and describe no op."""
DATE = re.compile(r"(?:.*_)?(?:date|timestamp|datetime|utc)(?:_.*)?")
TIME_UNIT = re.compile(r"(?:time_)?units?")
_COUNT = r"(?:t|th|thr|nt|(?:omp_)?(?:n|num)?_?threads?|cores?|cpus?|procs?|workers?)"
OF_COUNT = re.compile(rf"(?:(?:time|seconds|wall|runtime|latency)_?)?{_COUNT}?_?(?P<n>[1-9]\d*)_?{_COUNT}?")
OF_REPEAT = re.compile(
    r"(?:(?:time|wall|elapsed|latency)_)?(?:t|time|run|rep|repeat|trial|sample|measurement|iter|r)_?(?P<n>\d+)"
)


def plain_name(name: str) -> str:
    """The name in small letters, its words joined by "_": "numThreads", "Num Threads" and "num-threads" are one."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", unicodedata.normalize("NFKC", name))
    return re.sub(r"[^a-z0-9\u03bc]+", "_", parted.lower()).strip("_")


def says_threads(name: str) -> bool:
    """Whether a name is that of a number of threads beyond doubt."""
    return THREADS.fullmatch(plain_name(name)) is not None


def is_measured(plain: str) -> bool:
    """Whether a plain name is that of times or of other results."""
    of_number = parted(plain)[0]
    return (
        rank_of_time(plain) is not None or RESULT.fullmatch(plain) is not None
        or OF_COUNT.fullmatch(of_number) is not None or OF_REPEAT.fullmatch(of_number) is not None
    )  # fmt: skip


def spelled_unit(found: re.Match[str]) -> str:
    """The unit of `UNITS` that a pattern of this file found."""
    return next(unit for unit in UNITS if found[unit])


def form_of(name: str) -> str:
    """The name with "*" for its first number, without the plural: "1 core" and "2 cores" are one."""
    return re.sub(r"([a-z])s(?![a-z])", r"\1", re.sub(r"\d+", "*", name.lower(), count=1))


def parted(name: str) -> tuple[str, str | None, str]:
    """A plain name without its unit, the unit, and the statistic that the name says after it; "s" alone may be
    anything."""
    found = NAMED_UNIT.fullmatch(name)
    if not found or (found["s"] == "s" and not found["stem"]):
        return name, None, ""
    return "_".join(part for part in (found["stem"], found["rest"]) if part), spelled_unit(found), found["of"] or ""


def unit_of(name: str) -> str | None:
    """The unit of time that a plain name says."""
    return parted(name)[1]


def rank_of_time(name: str) -> int | None:
    """How good a plain name is for the time of a run: 0 for "time_ms", 1 for a median, 2 for a mean, 3 for the
    shortest, ANY_TIME for any other with a unit; None where it is no time. `time_min` may be minutes."""
    bare, unit, statistic = parted(name)
    found = _TIME.fullmatch(bare)
    if found is None:
        return (
            ANY_TIME if unit and not _BESIDE.fullmatch(bare) and not (unit == "s" and _RATE.fullmatch(bare)) else None
        )
    if not unit and (found["alone"] is not None or found["after"] == "min"):
        return None
    statistic = statistic or found["before"] or found["after"] or found["alone"] or ""
    return {"": 0, "median": 1, "med": 1, "p50": 1, "mean": 2, "avg": 2, "average": 2}.get(statistic, 3)


def is_of_run(name: str) -> bool:
    """Whether a plain name of rank ANY_TIME is that of a run: "inference_time_ms", and not "compile_time_ms"."""
    bare = parted(name)[0]
    return re.fullmatch(r".+_(?:time|runtime|latency|duration)", bare) is not None and not _PART.fullmatch(bare)
