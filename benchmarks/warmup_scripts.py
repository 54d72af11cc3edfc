"""Ten whole public scripts: where they are from, their one added line, and what they have in place of downloads.

They are fetched into build/scripts by git, each at one commit, and never stored here.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from run_facts import ROOT
from sessions import Session

FOLDER = ROOT / "build" / "scripts"
REPOSITORIES = {
    "examples": ("https://github.com/pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8"),
    "nanoGPT": ("https://github.com/karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"),
    "minGPT": ("https://github.com/karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26"),
}
"""Where each is from, and its commit."""
TEXT = "distributed/minGPT-ddp/mingpt/data/input.txt"
"""Tiny Shakespeare, in the repository "examples"."""
END_S = 60.0
"""Seconds that a script has for ending after its time is over."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script at `path` of a repository, run in the folder `within`, with the line that compiles its model."""

    name: str
    path: str
    before: str
    """The text before which the line is added."""
    arguments: str = ""
    line: str = "model = torch.compile(model, {how})"
    data: str = "scikit-learn's digits as MNIST"
    repository: str = "examples"
    within: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    """Texts that are replaced, in every way: downloads."""

    @property
    def title(self) -> str:
        """What its records are called."""
        return f"{self.name}, training"


_GPT = (
    "--device=cpu --compile=False --eval_iters=20 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128"
)
_ADADELTA = "    optimizer = optim.Adadelta("
SCRIPTS = (
    Script("VAE", "vae/main.py", "optimizer = optim.Adam(", "--epochs 100"),
    Script("MNIST", "mnist/main.py", _ADADELTA, line="    model = torch.compile(model, {how})"),
    Script(
        "word language model", "word_language_model/main.py", "criterion = nn.NLLLoss()",
        "--use-optimizer --lr 0.001 --data shakespeare", "model.compile({how})", "tiny Shakespeare as Wikitext-2",
    ),
    Script(
        "DCGAN", "dcgan/main.py", "criterion = nn.BCELoss()", "--dataset fake --workers 0",
        "netD, netG = (torch.compile(net, {how}) for net in (netD, netG))", "random images, the script's own",
    ),
    Script(
        "super-resolution", "super_resolution/main.py", "optimizer = optim.Adam(",
        "--upscale_factor 3 --threads 0 --nEpochs 1000", "model.compile({how})", "random images as BSDS300",
    ),
    Script("Siamese network", "siamese_network/main.py", _ADADELTA, line="    model = torch.compile(model, {how})"),
    Script(
        "GCN", "gcn/main.py", "    optimizer = Adam(gcn", "--epochs 100000", "    gcn = torch.compile(gcn, {how})",
        "a random graph as Cora", edits=(("requests.get(cora_url, stream=True)", "open('cora.tgz', 'rb')"),
                                         ("tgz_file.raw", "tgz_file")),
    ),
    Script(
        "GAT", "gat/main.py", "    # configure the optimizer", "--epochs 100000",
        "    gat_net = torch.compile(gat_net, {how})", "a random graph as Cora",
    ),
    Script(
        "nanoGPT", "train.py", "# wrap model into DDP", f"config/train_shakespeare_char.py {_GPT} --dropout=0.0",
        data="tiny Shakespeare", repository="nanoGPT",
    ),
    Script(
        "minGPT's adder", "projects/adder/adder.py", "    # construct the trainer object", "--trainer.num_workers=0",
        "    model = torch.compile(model, {how})", "the script's own", "minGPT", ".",
    ),
)  # fmt: skip
HOW = {"eager": "", "backend": "backend='threadcast'", "inductor": "",
       "inductor, max-autotune": "mode='max-autotune-no-cudagraphs'"}  # fmt: skip
"""The arguments of torch.compile by way; eager has no such line."""


def fetch() -> None:
    """Clone what is not there yet, and make the data that the scripts would download."""
    for name, (address, commit) in REPOSITORIES.items():
        place = FOLDER / name
        if not (place / ".git" / "index").exists():  # there once all is checked out
            place.mkdir(parents=True, exist_ok=True)
            for step in (["init", "-q"], ["fetch", "-q", "--depth", "1", address, commit], ["checkout", "-q", commit]):
                subprocess.run(["git", *step], cwd=place, check=True)
    examples, rng = FOLDER / "examples", np.random.default_rng(0)
    (examples / "vae" / "results").mkdir(exist_ok=True)
    _digits(examples / "data" / "MNIST" / "raw", rng)
    _graph(examples / "gcn", rng)
    shutil.copytree(examples / "gcn" / "cora", examples / "gat" / "cora", dirs_exist_ok=True)
    _images(examples / "super_resolution" / "dataset" / "BSDS300" / "images", rng)
    text = (examples / TEXT).read_text()
    words = examples / "word_language_model" / "shakespeare"
    words.mkdir(exist_ok=True)
    for part, share in (
        ("train", slice(None, -100_000)),
        ("valid", slice(-100_000, -50_000)),
        ("test", slice(-50_000, None)),
    ):
        (words / f"{part}.txt").write_text(text[share])
    letters = FOLDER / "nanoGPT" / "data" / "shakespeare_char"
    shutil.copy(examples / TEXT, letters / "input.txt")
    subprocess.run([sys.executable, "prepare.py"], cwd=letters, check=True, stdout=subprocess.DEVNULL)


def _digits(folder: Path, rng: np.random.Generator) -> None:
    """MNIST's four files, of scikit-learn's 1,797 digits of 8 x 8 points, each three times as large with a frame."""
    from sklearn.datasets import load_digits

    folder.mkdir(parents=True, exist_ok=True)
    points, labels = load_digits(return_X_y=True)
    images = np.pad(np.kron(points.reshape(-1, 8, 8) * 255 / 16, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        some = rng.integers(len(labels), size=count)
        for kind, magic, values in (("images-idx3", 2051, images), ("labels-idx1", 2049, labels)):
            head = np.array([magic, count, *values.shape[1:]], dtype=">i4")
            (folder / f"{part}-{kind}-ubyte").write_bytes(head.tobytes() + values[some].astype(np.uint8).tobytes())


def _graph(folder: Path, rng: np.random.Generator) -> None:
    """A graph with the numbers of nodes, edges, features and classes of Cora, packed besides."""
    nodes, edges, features, classes = 2708, 5429, 1433, 7
    place = folder / "cora"
    place.mkdir(exist_ok=True)
    values = (rng.random((nodes, features)) < 0.0127).astype(int)
    lines = (f"{i} {' '.join(map(str, own))} class{i % classes}\n" for i, own in enumerate(values))
    (place / "cora.content").write_text("".join(lines))
    (place / "cora.cites").write_text("".join(f"{a} {b}\n" for a, b in rng.integers(nodes, size=(edges, 2))))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(place, "cora")
    (folder / "cora.tgz").write_bytes(packed.getvalue())


def _images(folder: Path, rng: np.random.Generator) -> None:
    """200 and 100 images of BSDS300's size."""
    from PIL import Image

    for part, count in (("train", 200), ("test", 100)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            small = Image.fromarray(rng.integers(256, size=(20, 30, 3), dtype=np.uint8))
            small.resize((481, 321)).save(folder / part / f"{number}.jpg")


@dataclass(frozen=True, slots=True)
class Steps:
    """A run of a script: seconds after its start at which each backward pass began, and at which it ended."""

    began_s: Sequence[float] = ()
    until_s: float = 0.0
    failed: str = ""
    """Why, where it failed."""


def run_of(script: Script, way: str, environment: Mapping[str, str], seconds: float) -> Steps:
    """Run the script in a fresh process, for so long at most."""
    source = FOLDER / script.repository / script.path
    text = source.read_text()
    for old, new in (*script.edits, *([] if way == "eager" else [_added(script, way)])):
        if old not in text:
            raise RuntimeError(f"{source} does not have {old!r} any more; see REPOSITORIES for its commit")
        text = text.replace(old, new, 1)
    edited = source.with_name(f"{source.stem}_by_benchmark.py")
    edited.write_text(text)
    within = FOLDER / script.repository if script.within or script.repository != "examples" else source.parent
    found = FOLDER / "steps.json"
    found.unlink(missing_ok=True)
    began = {"BEGAN_S": str(time.monotonic()), "STEPS": str(found), "MOST_S": str(seconds)}
    roots = os.pathsep.join([str(within), str(ROOT), environment.get("PYTHONPATH", "")])
    command = [
        sys.executable,
        str(Path(__file__).with_name("warmup_script_process.py")),
        str(edited),
        *script.arguments.split(),
    ]
    with (FOLDER / "said.txt").open("w+") as said:
        process = subprocess.Popen(
            command, cwd=within, env={**environment, **began, "PYTHONPATH": roots}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
        )  # fmt: skip
        failed = ""
        try:
            process.wait(seconds + END_S)
            said.seek(0)
            failed = said.read().strip()[-300:] if process.returncode else ""
        except subprocess.TimeoutExpired:
            failed = f"not ended {END_S:.0f} s after its time"
        finally:
            Session(process.pid).kill()
            process.wait()
    return Steps(*(json.loads(found.read_text()) if found.exists() else ([], 0.0)), failed)


def _added(script: Script, way: str) -> tuple[str, str]:
    return script.before, f"{script.line.format(how=HOW[way])}\n{script.before}"
