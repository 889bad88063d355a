#!/usr/bin/env python3
"""What may stand where an output goes, and what is left when a program ends before it is finished.

A program that is wrong replaces what it is given, and as root it may replace anything: every output here, and what
stands behind every descriptor, lies in the test's own folder.

usage: outputs_test.py CONVERT_TABLES FOLD_LAYER RUN_LAYER BIG_TABLE
"""
import json
import os
import pathlib
import resource
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time

from overwrite_test import file_of, floats

LAYER = file_of({"modulators.weight": floats(5, 2), "scale": floats(2), "base.up_proj.weight": floats(3, 2),
                 "base.down_proj.weight": floats(2, 3)}, {"block": "retoken", "base.block": "mlp"})
INPUT = file_of({"x": floats(1, 2), "token_ids": ("I32", [1], struct.pack("<i", 3))}, {})
STEP = file_of({"x": floats(1, 2), "dy": floats(1, 2), "token_ids": ("I32", [1], struct.pack("<i", 3))}, {})
TABLES = file_of({"stem_embeddings.0.weight": floats(5, 2), "stem_embeddings.1.weight": floats(5, 4)}, {})
OLD = b"what was there before"


def main():
    convert_tables, fold_layer, run_layer, big_table = (pathlib.Path(p).resolve() for p in sys.argv[1:5])
    failed = 0

    def check(what, holds):
        nonlocal failed
        if not holds:
            failed += 1
            print("failed:", what)

    with tempfile.TemporaryDirectory() as name:
        top = pathlib.Path(name)

        def fresh(case):
            folder = top / case
            folder.mkdir()
            for file, content in (("layer", LAYER), ("input", INPUT), ("step", STEP), ("tables", TABLES)):
                (folder / file).write_bytes(content)
            return folder

        def run(folder, *command, **how):
            return subprocess.run(list(map(str, command)), cwd=folder, stderr=subprocess.PIPE,
                                  stdin=subprocess.DEVNULL, timeout=300, **how)

        def refused(case, folder, ran, *words):
            said = ran.stderr.decode()
            check(f"{case}: status {ran.returncode}, {said!r}", ran.returncode == 1 and said.count("\n") == 1
                  and all(word in said for word in words))
            nothing_left(case, folder)

        def nothing_left(case, folder):
            check(f"{case}: leaves {[str(p) for p in folder.rglob('*part*')]}", not list(folder.rglob("*part*")))

        def device(name, minor):
            """The device's path; for root one of the test's own, as a wrong program would replace /dev/null itself."""
            if os.geteuid() != 0:
                return pathlib.Path("/dev") / name
            os.mknod(top / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
            return top / name

        null, full_disk = device("null", 3), device("full", 7)

        # Every way to name an output, of every program: {} stands for it.
        commands = {
            "run_layer": [run_layer, "layer", "input", "{}"],
            "gradients": [run_layer, "layer", "step", "out", "--gradients", "{}"],
            "fold_layer": [fold_layer, "layer", "{}"],
            "convert_tables": [convert_tables, "tables", "{}"],
        }
        for program, pattern in commands.items():
            def command(output, pattern=pattern):
                return [str(output) if part == "{}" else part for part in pattern]

            folder = fresh(program)
            case = lambda what: f"{program}: {what}"  # noqa: E731
            ran = run(folder, *command("wanted"))
            check(case(f"a new file: {ran.stderr}"), ran.returncode == 0)
            wanted = (folder / "wanted").read_bytes()
            nothing_left(case("a new file"), folder)

            # A link: what it names is made or replaced, the link stays.
            (folder / "other").mkdir()
            (folder / "other" / "old").write_bytes(OLD)
            for link, target in [("dangling", "made"), ("absolute", folder / "other" / "made"), ("linked", "other/old"),
                                 ("twice", "dangling2"), ("other/up", "../made3")]:
                (folder / link).symlink_to(target)
            (folder / "dangling2").symlink_to("other/made2")
            for link, target in [("dangling", "made"), ("absolute", "other/made"), ("linked", "other/old"),
                                 ("twice", "other/made2"), ("other/up", "made3")]:
                ran = run(folder, *command(link))
                check(case(f"link {link}: {ran.stderr}"), ran.returncode == 0 and (folder / link).is_symlink()
                      and (folder / target).is_file() and (folder / target).read_bytes() == wanted)
                nothing_left(case(link), folder)
            # Through a link to a folder that is not there: nothing to make it in.
            (folder / "nowhere").symlink_to("missing/made")
            refused(case("a link into no folder"), folder, run(folder, *command("nowhere")), "nowhere")
            (folder / "circle").symlink_to("circle")
            refused(case("a link to itself"), folder, run(folder, *command("circle")), "circle")

            # Standard output that is a file: written to behind what is there, by whatever name.
            for stdout in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1"):
                with open(folder / "log", "wb") as log:
                    log.write(b"header\n")
                    log.flush()
                    ran = run(folder, *command(stdout), stdout=log)
                    log.seek(0, os.SEEK_END)
                    log.write(b"trailer\n")
                check(case(f"{stdout}: {ran.stderr}"), ran.returncode == 0
                      and (folder / "log").read_bytes() == b"header\n" + wanted + b"trailer\n")
            # Another descriptor, and one that is only read.
            (folder / "read").write_bytes(OLD)
            with open(folder / "log", "w+b") as log, open(folder / "read", "rb") as source:
                ran = run(folder, *command(f"/dev/fd/{log.fileno()}"), pass_fds=[log.fileno()])
                check(case(f"a descriptor: {ran.stderr}"), ran.returncode == 0
                      and (folder / "log").read_bytes() == wanted)
                refused(case("a descriptor that is read"), folder,
                        run(folder, *command(f"/proc/self/fd/{source.fileno()}"), pass_fds=[source.fileno()]),
                        "not open to be written")
            refused(case("a descriptor that is closed"), folder, run(folder, *command("/dev/fd/77")), "/dev/fd/77")
            with open(folder / "log", "ab") as log:
                refused(case("another process's"), folder, run(folder, *command(f"/proc/{os.getpid()}/fd/{log.fileno()}")),
                        "a link to what a process has open")
            check(case("/dev/stdout of a pipe"),
                  run(folder, *command("/dev/stdout"), stdout=subprocess.PIPE).stdout == wanted)

            # A FIFO is written to, and stays one.
            os.mkfifo(folder / "fifo")
            (folder / "to_fifo").symlink_to("fifo")
            for fifo in ("fifo", "to_fifo"):
                got = []
                reader = threading.Thread(target=lambda: got.append((folder / "fifo").read_bytes()))
                reader.start()
                ran = run(folder, *command(fifo))
                if ran.returncode != 0:
                    os.close(os.open(folder / "fifo", os.O_WRONLY | os.O_NONBLOCK))
                reader.join()
                check(case(f"{fifo}: {ran.stderr}"), ran.returncode == 0 and got == [wanted]
                      and stat.S_ISFIFO((folder / "fifo").lstat().st_mode))
            # Whoever reads a pipe may stop doing so.
            reader = threading.Thread(target=lambda: os.close(os.open(folder / "fifo", os.O_RDONLY)))
            reader.start()
            ran = run(folder, *command("fifo"))
            reader.join()
            # Small outputs may fit the pipe before its reader closes it.
            check(case(f"nobody reads on: {ran.returncode}, {ran.stderr}"), ran.returncode in (0, 1))
            read_end, write_end = os.pipe()
            os.close(read_end)
            refused(case("a pipe without a reader"), folder, run(folder, *command("/dev/stdout"), stdout=write_end),
                    "cannot be written: Broken pipe")
            os.close(write_end)

            # Devices: what they take, they take; a disk that is full is an error.
            (folder / "to_null").symlink_to(null)
            for output in (null, "to_null"):
                ran = run(folder, *command(output))
                check(case(f"{output}: {ran.stderr}"), ran.returncode == 0 and stat.S_ISCHR(null.lstat().st_mode)
                      and (folder / "to_null").is_symlink())
            refused(case("a full disk"), folder, run(folder, *command(full_disk)), "No space left")
            check(case("a full disk stays"), stat.S_ISCHR(full_disk.lstat().st_mode))
            for what, word in [("other", "directory"), (".", "directory"), ("new/", "names no file"),
                               ("layer/out", "cannot be written"), ("missing/out", "cannot be written")]:
                refused(case(what), folder, run(folder, *command(what)), what, word)

            # A file that is protected stays (as root all may be written).
            if os.geteuid() != 0:
                (folder / "protected").write_bytes(OLD)
                (folder / "protected").chmod(0o444)
                refused(case("a protected file"), folder, run(folder, *command("protected")), "cannot be written")
                check(case("a protected file stays"), (folder / "protected").read_bytes() == OLD)

            # Files that may not grow: an ordinary error, and what was there stays.
            (folder / "old").write_bytes(OLD)
            ran = run(folder, *command("old"), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)))
            refused(case("ulimit -f"), folder, ran, "File too large")
            check(case("ulimit -f keeps the old file"), (folder / "old").read_bytes() == OLD)

        # Two outputs of one name, in whatever spelling.
        folder = fresh("two")
        (folder / "here").mkdir()
        (folder / "folder_link").symlink_to("here")
        (folder / "to_same").symlink_to("here/same")
        (folder / "there").write_bytes(OLD)
        os.link(folder / "there", folder / "there_too")
        for one, other in [("same", "./same"), ("here/same", "folder_link/same"), ("here/same", "to_same"),
                           ("there", "there_too"), ("/dev/stdout", "/dev/fd/1"), ("there", "/dev/stdout")]:
            with open(folder / "there", "ab") as stdout:
                ran = run(folder, run_layer, "layer", "step", one, "--gradients", other, stdout=stdout)
            refused(f"{one} and {other}", folder, ran, "are one file")
            check(f"{one} and {other}: nothing made", not (folder / "same").exists() and not list((folder / "here").iterdir())
                  and (folder / "there").read_bytes() == OLD)
        ran = run(folder, run_layer, "layer", "step", "same", "--gradients", "here/same")
        check(f"two outputs: {ran.stderr}", ran.returncode == 0 and (folder / "same").exists()
              and (folder / "here/same").exists())
        # What is wrong with the second leaves the first as it was.
        (folder / "same").write_bytes(OLD)
        refused("gradients to a full disk", folder,
                run(folder, run_layer, "layer", "step", "same", "--gradients", full_disk), "No space left")
        check("OUTPUT as it was", (folder / "same").read_bytes() == OLD)

        # Signals: nothing is left, and the shell sees what ended the program.
        folder = fresh("signals")
        rows, width = 1 << 17, 1 << 10
        sparse = {f"stem_embeddings.{i}.weight": {"dtype": "F32", "shape": [rows, width],
                                                  "data_offsets": [i * rows * width * 4, (i + 1) * rows * width * 4]}
                  for i in (0, 1)}
        text = json.dumps(sparse).encode()
        with open(folder / "big", "wb") as big:
            big.write(struct.pack("<Q", len(text)) + text)
            big.truncate(8 + len(text) + 2 * rows * width * 4)

        def written(pid):
            """How much the process has written to a file that is not finished; of a named one, its size."""
            try:
                links = list(pathlib.Path(f"/proc/{pid}/fd").iterdir())
                names = {str(link): os.readlink(link) for link in links}
                return max((os.stat(link).st_size for link, to in names.items()
                            if str(folder) in to and "/big" not in to.removesuffix("/big_table.safetensors")), default=0)
            except OSError:
                return 0

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for program in ([convert_tables, "big", "out"], [big_table, "--gigabytes", "1", "--folder", folder]):
                case = f"{program[0].name}, {number.name}"
                before = sorted(p.name for p in folder.iterdir())
                child = subprocess.Popen(list(map(str, program)), cwd=folder, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.PIPE)
                end = time.monotonic() + 60
                while written(child.pid) < 1 << 20 and time.monotonic() < end and child.poll() is None:
                    time.sleep(0.005)
                check(f"{case}: is writing", child.poll() is None)
                child.send_signal(number)
                said = child.communicate(timeout=60)[1]
                check(f"{case}: status {child.returncode}, {said}", child.returncode == -number)
                left = sorted(p.name for p in folder.iterdir())
                check(f"{case}: leaves {set(left) - set(before)}", left == before)
        # A file system that has no files without names.
        (folder / "shim.c").write_text(r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
static int opened(const char* name, const char* path, int flags, int mode) {
    if ((flags & O_TMPFILE) == O_TMPFILE) { errno = EOPNOTSUPP; return -1; }
    return ((int (*)(const char*, int, ...))dlsym(RTLD_NEXT, name))(path, flags, mode);
}
#define SHIM(name) int name(const char* path, int flags, ...) { \
    va_list rest; va_start(rest, flags); const int mode = va_arg(rest, int); va_end(rest); \
    return opened(#name, path, flags, mode); }
SHIM(open)
SHIM(open64)
""")
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c"], check=True)
        named = dict(os.environ, LD_PRELOAD=str(folder / "shim.so"))
        ran = run(folder, run_layer, "layer", "input", "named", env=named)
        check(f"a file with a name: {ran.stderr}", ran.returncode == 0 and (folder / "named").exists())
        nothing_left("a file with a name", folder)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            child = subprocess.Popen([convert_tables, "big", "out"], cwd=folder, stderr=subprocess.PIPE, env=named)
            end = time.monotonic() + 60
            while not list(folder.glob("tiffin.part*")) and time.monotonic() < end and child.poll() is None:
                time.sleep(0.005)
            check("a file with a name is there", bool(list(folder.glob("tiffin.part*"))))
            child.send_signal(number)
            child.communicate(timeout=60)
            check(f"a file with a name, {number.name}", child.returncode == -number)
            nothing_left(f"a file with a name, {number.name}", folder)
        # big_table when the table has its name already.
        child = subprocess.Popen([big_table, "--gigabytes", "0.3", "--folder", folder], cwd=folder,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while not (folder / "big_table.safetensors").exists() and time.monotonic() < end and child.poll() is None:
            time.sleep(0.005)
        check("big_table: has made its table", (folder / "big_table.safetensors").exists())
        child.send_signal(signal.SIGTERM)
        check("big_table: ends by the signal", child.wait(timeout=60) == -signal.SIGTERM)
        check("big_table: removes its table", not (folder / "big_table.safetensors").exists())
        # What nohup ignores stays ignored.
        child = subprocess.Popen([convert_tables, "big", "out"], cwd=folder,
                                 preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        time.sleep(0.3)
        child.send_signal(signal.SIGHUP)
        check("an ignored signal", child.wait(timeout=300) == 0 and (folder / "out").exists())

        # What is said goes somewhere, or is an error.
        with open(full_disk, "wb") as full:
            ran = run(folder, run_layer, "--help", stdout=full)
        check(f"help to a full disk: {ran.returncode}, {ran.stderr}", ran.returncode == 1 and b"No space left" in ran.stderr)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
