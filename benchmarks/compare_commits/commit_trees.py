"""The trees of two commits under build/compare, and what is built of them.

    build/compare/<short hash>   a worktree of git, at that commit
    build/compare/working        a copy of the working tree, with what is not committed and what is not added

What is built of a tree lies in its folder build/, which git ignores.  A tree and its builds stay for the
next comparison; `git worktree remove --force build/compare/<short hash>` removes those of a commit.
"""

import os
import pathlib
import shutil
import subprocess
import time

from progress import Progress

HERE = pathlib.Path(__file__).resolve().parent


class Failed(Exception):
    """What is wrong, and with what."""


def git(folder, *arguments):
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise Failed("%s: %s" % (" ".join(command), done.stderr.decode(errors="replace").strip()))
    return done.stdout.decode(errors="surrogateescape")


def repository():
    return pathlib.Path(git(HERE, "rev-parse", "--show-toplevel").rstrip("\n"))


class Tree:
    """A tree at `path`, called `name` where results are shown."""

    def __init__(self, path, name, jobs):
        self.path, self.name, self.jobs = path, name, jobs

    def run_layer(self):
        """The program run_layer, built as the preset `examples` does."""
        folder = self.path / "build"
        settings = ["-DTIFFIN_BUILD_TESTS=OFF", "-DTIFFIN_BUILD_BENCHMARKS=OFF"]
        self.build("run_layer", self.path, folder, settings, "run_layer")
        return folder / "examples" / "run_layer"

    def layers(self, march):
        """The folder with the libraries of layers and the program that times them."""
        folder = self.path / "build" / ("layers" if march == "native" else "layers." + march)
        settings = ["-DTREE=%s" % self.path, "-DCOMMIT=%s" % self.name, "-DMARCH=%s" % march]
        self.build("layers", HERE, folder, settings, "all")
        return folder

    def build(self, what, source, folder, settings, target):
        """Configures the project `source` in `folder`, and builds a target of it."""
        ccache = shutil.which("ccache")
        if ccache:
            settings = settings + ["-DCMAKE_CXX_COMPILER_LAUNCHER=" + ccache]
        configure = ["cmake", "-S", str(source), "-B", str(folder), "-G", "Ninja"]
        configure += ["-DCMAKE_BUILD_TYPE=Release", *settings]
        compile_it = ["cmake", "--build", str(folder), "-j", str(self.jobs), "--target", target]
        folder.mkdir(parents=True, exist_ok=True)
        log, start = folder / "compare.log", time.monotonic()
        log.write_bytes(b"")
        for command in (configure, compile_it):
            if self.logged(what, command, log) != 0:
                raise Failed("%s of %s: not built; %s has\n%s" % (what, self.name, log, errors_of(log)))
        print("%s of %s: built in %.0f s" % (what, self.name, time.monotonic() - start), flush=True)

    def logged(self, what, command, log):
        """The exit status of a command, whose output goes to `log`."""
        progress = Progress()
        # Relative paths, so that ccache compiles once what both commits have in common.
        environment = dict(os.environ, CCACHE_BASEDIR=str(repository()))
        try:
            run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        except FileNotFoundError:
            raise Failed("%s: not installed, or not on the path" % command[0]) from None
        with run, open(log, "ab") as file:
            for line in run.stdout:
                file.write(line)
                if line.startswith(b"["):
                    progress.show("%s of %s: %s" % (what, self.name, line.decode(errors="replace").strip()))
        progress.clear()
        return run.returncode


def errors_of(log):
    """The first errors of a build; its last lines where there are none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if "error:" in line or "Error" in line]
    return "\n".join("  %.300s" % line for line in (errors[:10] or lines[-10:]))


def of_commit(root, revision, jobs):
    try:
        commit = git(root, "rev-parse", "--verify", "--end-of-options", revision + "^{commit}").strip()
    except Failed:
        raise Failed("%s: no commit of %s" % (revision, root)) from None
    name = git(root, "rev-parse", "--short", commit).strip()
    path = root / "build" / "compare" / name
    if not path.exists():
        git(root, "worktree", "add", "--force", "--detach", str(path), commit)
    if git(path, "rev-parse", "HEAD").strip() != commit or git(path, "status", "--porcelain").strip():
        raise Failed("%s: not the tree of %s, or changed; git worktree remove --force it" % (path, name))
    return Tree(path, name, jobs)


def of_working_tree(root, jobs):
    path = root / "build" / "compare" / "working"
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    names = {name for name in listed if name and (root / name).is_file()}
    for name in names:
        copy_if_changed(root / name, path / name)
    for folder, folders, files in os.walk(path):
        at = pathlib.Path(folder)
        if at == path and "build" in folders:
            folders.remove("build")
        for file in files:
            if str((at / file).relative_to(path)) not in names:
                (at / file).unlink()
    return Tree(path, "working", jobs)


def copy_if_changed(source, target):
    """Leaves a file of the same content alone, so that nothing is compiled again for it."""
    content = source.read_bytes()
    if target.is_file() and target.read_bytes() == content:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    shutil.copymode(source, target)
