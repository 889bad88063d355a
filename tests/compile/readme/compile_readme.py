#!/usr/bin/env python3
"""Compiles every ```cpp block of a Markdown file.

usage: compile_readme.py README COMPILER [FLAG...]

A block that contains `int main` is a whole program. Any other is the body of a function after
`#include <tiffin/tiffin.hpp>`, without `using namespace tiffin`: it names what it uses. What a function
cannot hold goes before it, in the block's order: lines that begin with `#include`, and definitions and
aliases whose first line begins, without indentation, with struct, class, enum, template, concept,
namespace or using, up to the end of that paragraph.

Status 0: all compile. 1: one does not, or there is none. 77: there is no README.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

# Any indentation, as in a list; the closing fence is at least as long as the opening one.
FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,})cpp[ \t]*\n(?P<code>.*?)^[ \t]*(?P=fence)`*[ \t]*$",
                   re.M | re.S)
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


def program_of(code):
    if re.search(r"\bint main\b", code):
        return code
    before, body = [], []
    for piece in paragraphs_of(code):
        first = next((line for line in piece.split("\n") if line and not line.startswith("//")), "")
        (before if first.startswith("#include") or DEFINITION.match(first) else body).append(piece)
    return "\n".join(["#include <tiffin/tiffin.hpp>", *before, "void readme_block_() {", *body, "}", ""])


def main():
    readme, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
    if not readme.exists():
        print(f"{readme.name} does not exist")
        return 77
    blocks = list(blocks_of(readme.read_text(encoding="utf-8")))
    if not blocks:
        print(f"{readme.name} has no ```cpp block")
        return 1
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for line, code in blocks:
            source = pathlib.Path(folder) / f"line_{line}.cpp"
            source.write_text(program_of(code), encoding="utf-8")
            ran = subprocess.run([*command, "-std=c++20", "-fsyntax-only", str(source)],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            print(f"{readme.name}:{line}: {'compiles' if ran.returncode == 0 else 'does not compile'}")
            if ran.returncode != 0:
                print(source.read_text(encoding="utf-8"), ran.stdout, sep="\n")
                failed += 1
    print(f"{len(blocks)} blocks, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
