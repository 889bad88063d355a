#!/usr/bin/env python3
"""What every public header promises, as far as its text tells.

usage: check_headers.py INCLUDE_FOLDER
"""
import pathlib
import re
import sys

MOST_LINES = 300

# Text without comments and string literals, so that a word in a message is not taken for code.
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.S)

FORBIDDEN = {
    # No output to the terminal, no end of the program: failures are values or exceptions.
    "writes to the terminal": re.compile(r"\bstd::c(out|err|log)\b|\b(printf|puts|putchar)\s*\("
                                         r"|\bstdout\b|\bstderr\b"),
    "ends the program": re.compile(r"\b(abort|exit|_Exit|quick_exit|terminate)\s*\("),
    # Headers must not choose names for those who include them.
    "opens a namespace for its includers": re.compile(r"^\s*using namespace\b(?!.*\bliterals\b)", re.M),
}

# Global state. Headers declare variables at namespace scope as `inline`, and in classes as `static`;
# without const they could be written to. A line with a parenthesis before its = or ; is a function.
STATE = re.compile(r"(?:^|(?<=[;{}]))[ \t]*(?:template\s*<[^;{}]*>\s*)?(?:static|inline|thread_local|extern)\b"
                   r"(?![^\n]*\b(?:const|constexpr|consteval)\b)(?:\s+(?:static|inline|thread_local))*"
                   r"\s+[\w:<>,&* ]*?\w+\s*(?:=|;|\{[^}\n]*\}\s*;)", re.M)


def faults(path, text):
    if not text.isascii():
        yield "is not ASCII"
    lines = text.splitlines()
    if len(lines) > MOST_LINES:
        yield f"has {len(lines)} lines; at most {MOST_LINES} are allowed"
    if lines.count("#pragma once") != 1:
        yield "does not have one line '#pragma once'"
    code = NOISE.sub(lambda m: '""' if m[0][0] == '"' else re.sub(r"[^\n]", " ", m[0]), text)
    for what, pattern in FORBIDDEN.items():
        for found in pattern.finditer(code):
            yield f"{what}: {found[0].strip()!r}"
    for found in STATE.finditer(code):
        yield f"declares a variable that is not const: {found[0].strip()!r}"
    for name in re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", code, re.M):
        if not name.startswith("TIFFIN_"):
            yield f"defines the macro {name}, which does not begin with TIFFIN_"


# The checks themselves: a header with every fault, and lines that only look like some.
BAD = """inline int counter = 0;
static std::vector<int> cache;
thread_local double last;
template <class T> inline T slot{};
#define MAX 3
using namespace std;
void f() { std::cout << 1; printf("x"); abort(); std::exit(1); static int calls = 0; }
// \u00e9
""" + "\n" * MOST_LINES
GOOD = """// printf("x"); abort(); std::cout; inline int counter = 0;
#pragma once
#define TIFFIN_X 1
inline constexpr int three = 3;
static constexpr serial serial_{};
static const char* const text = "printf(abort())";
inline std::string name(int x = 0) { return "a"; }
static result<file> open(const path& p);
inline float load(int i) noexcept {
"""


def check_the_checks():
    bad = list(faults("bad", BAD))
    for what in ("ASCII", "lines", "pragma once", "'std::cout'", "'printf('", "'abort('", "'exit('", "namespace",
                 "counter", "cache", "last", "slot", "calls", "macro MAX"):
        if not any(what in fault for fault in bad):
            sys.exit(f"check_headers.py does not see '{what}' in its own example: {bad}")
    good = list(faults("good", GOOD))
    if good:
        sys.exit(f"check_headers.py objects to good lines: {good}")


def main():
    check_the_checks()
    root = pathlib.Path(sys.argv[1])
    headers = sorted(p for p in root.rglob("*") if p.is_file())
    if not headers:
        sys.exit(f"no headers below {root}")
    found = 0
    for path in headers:
        for fault in faults(path, path.read_text(encoding="utf-8")):
            print(f"{path.relative_to(root)}: {fault}")
            found += 1
    print(f"{len(headers)} headers, {found} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
