#!/usr/bin/env python3
"""Compiles every ```cpp block of Markdown pages.

usage: compile_snippets.py PAGE... -- COMPILER [FLAG...]

A block that contains `int main` is a whole program. Any other is the body of a function after
`#include <tiffin/tiffin.hpp>`, without `using namespace tiffin`: it names what it uses. What a function
cannot hold goes before it, in the block's order: lines that begin with `#include`, and definitions and
aliases whose first line begins, without indentation, with struct, class, enum, template, concept,
namespace or using, up to the end of that paragraph. Bodies of functions are compiled together, each in a namespace
of its own, and one by one if that fails, to tell which.

The first page must have a block; others may have none. Blocks that no C++ compiler reads alone have another
fence (```cuda, ```sh).

Status 0: all compile. 1: one does not, or there is none. 77: the first page does not exist.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

# Any indentation, as in a list; the closing fence is at least as long as the opening one.
FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,})cpp[ \t]*\n(?P<code>.*?)^[ \t]*(?P=fence)`*[ \t]*$",
                   re.M | re.S)
MAIN = re.compile(r"\bint main\b")
DEFINITION = re.compile(r"(struct|class|enum|template|concept|namespace|using)\b")


def blocks_of(text):
    """(line, code) of each block, without the indentation that its fence has."""
    for found in FENCE.finditer(text):
        indent = len(found["indent"])
        lines = found["code"].split("\n")
        code = "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines)
        yield text.count("\n", 0, found.start("code")) + 1, code


def paragraphs_of(code):
    """Top-level pieces: each ends where braces are closed and a line ends with ; or } or is empty."""
    piece, depth = [], 0
    for line in code.split("\n"):
        piece.append(line)
        bare = re.sub(r'//.*|"(?:[^"\\]|\\.)*"', "", line).rstrip()
        depth += bare.count("{") - bare.count("}")
        if depth <= 0 and (not bare or bare.endswith((";", "}")) or bare.startswith("#")):
            yield "\n".join(piece)
            piece, depth = [], 0
    if piece:
        yield "\n".join(piece)


def parts_of(code):
    """What includes, what goes before the function, and its body."""
    includes, before, body = [], [], []
    for piece in paragraphs_of(code):
        first = next((line for line in piece.split("\n") if line and not line.startswith("//")), "")
        (includes if first.startswith("#include") else before if DEFINITION.match(first) else body).append(piece)
    return includes, before, body


def program_of(codes):
    """One program of all; what one names as ::x is in its namespace then."""
    parts = [parts_of(code) for code in codes]
    lines = ["#include <tiffin/tiffin.hpp>", *(line for includes, _, _ in parts for line in includes)]
    for number, (_, before, body) in enumerate(parts):
        text = "\n".join([*before, "void page_block_() {", *body, "}"])
        if len(codes) > 1:
            space = f"page_block_{number}"
            text = f"namespace {space} {{\n" + re.sub(r"(?<![\w>])::(?=\w)", f"{space}::", text) + "\n}"
        lines.append(text)
    return "\n".join([*lines, ""])


def run(command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main():
    border = sys.argv.index("--")
    pages, compiler, flags = sys.argv[1:border], sys.argv[border + 1], [*sys.argv[border + 2:], "-std=c++20"]
    if not pathlib.Path(pages[0]).exists():
        print(f"{pages[0]} does not exist")
        return 77
    blocks = []
    for page in map(pathlib.Path, pages):
        found = list(blocks_of(page.read_text(encoding="utf-8")))
        if not found and not blocks:
            print(f"{page.name} has no ```cpp block")
            return 1
        blocks += [(page.name, line, code) for line, code in found]
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def compiles(name, text):
            source = folder / f"{name}.cpp"
            source.write_text(text, encoding="utf-8")
            ran = run([compiler, *flags, "-fsyntax-only", str(source)])
            return ran.returncode == 0, ran.stdout

        bodies = [code for _, _, code in blocks if not MAIN.search(code)]
        together, _ = compiles("all", program_of(bodies))
        for page, line, code in blocks:
            is_program = MAIN.search(code)
            if together and not is_program:
                continue
            text = code if is_program else program_of([code])
            done, said = compiles(f"{pathlib.Path(page).stem}_line_{line}", text)
            print(f"{page}:{line}: {'compiles' if done else 'does not compile'}", flush=True)
            if not done:
                print(text, said, sep="\n", flush=True)
                failed += 1
    print(f"{len(blocks)} blocks of {len(pages)} pages, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
