#!/usr/bin/env python3
"""What every public header promises, as far as its text tells.

usage: check_headers.py INCLUDE_FOLDER... [--also HEADER]

A header prints nothing, ends no program, has no state, and includes what it uses: of other people's libraries, and of
ours. It is a name of ours if a header declares it at namespace scope. Where another header uses it, one of those that
declare it must be included, directly or by others. Names after . and ->, names of other people's namespaces, and what
the same declaration has as a member, parameter, local or template parameter are not looked at. Includes exist, and make
no circle; one after TIFFIN_END, for the second half of a header, is for those who include the header and not for itself.
--also: checks one more header, which is read as if it were in the first folder.
"""
import argparse
import functools
import pathlib
import re
import sys

from own_names import DECLARES, LOOKS, USED, USES, Header, Library, own_faults

MOST_LINES = 300

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

# What brings each name of other people's libraries. A compiler reads them behind others that
# have brought it already, so that it is here that one that forgets its own is found. Of several, one is enough.
BRINGS = {
    "algorithm": "all_of any_of binary_search clamp copy copy_n equal fill fill_n find find_if lower_bound make_heap max "
                 "max_element min minmax_element pop_heap push_heap ranges sort sort_heap unique nth_element none_of "
                 "count count_if transform reverse rotate stable_sort upper_bound partial_sort remove_if is_sorted "
                 "equal_range partition stable_partition",
    "array": "array to_array", "atomic": "atomic atomic_flag atomic_ref memory_order_acquire memory_order_relaxed "
                                "memory_order_release memory_order_acq_rel memory_order_seq_cst",
    "bit": "bit_cast bit_ceil bit_width countl_zero countr_zero endian has_single_bit popcount rotl",
    "charconv": "from_chars to_chars chars_format", "chrono": "chrono",
    "cmath": "copysign cos erf erfc exp expm1 fabs fma fmax fmin isfinite isinf isnan log log1p nan pow round sin sqrt tan tanh "
             "trunc lround hypot ceil floor",
    "concepts": "constructible_from convertible_to copyable default_initializable derived_from floating_point integral "
                "invocable movable same_as regular semiregular predicate",
    "condition_variable": "condition_variable",
    "cstddef": "byte max_align_t nullptr_t ptrdiff_t size_t to_integer",
    "cstdint": "int16_t int32_t int64_t int8_t intmax_t uint16_t uint32_t uint64_t uint8_t uintmax_t uintptr_t",
    "cstdio": "FILE fclose fflush fopen fread fwrite rename snprintf remove fseek",
    "cstdlib": "free malloc aligned_alloc strtod", "cstring": "memcmp memcpy memmove memset strlen strerror strcmp",
    "deque": "deque", "exception": "exception terminate current_exception exception_ptr rethrow_exception",
    "filesystem": "filesystem", "fstream": "ifstream ofstream fstream",
    "functional": "function hash less plus reference_wrapper equal_to greater ref cref",
    "future": "future promise async", "ios": "ios",
    "iosfwd": "istream ostream", "initializer_list": "initializer_list",
    "iterator": "back_inserter begin distance end next prev size data istreambuf_iterator",
    "limits": "numeric_limits", "list": "list", "map": "map multimap",
    "memory": "addressof destroy_at enable_shared_from_this make_shared make_unique shared_ptr unique_ptr weak_ptr "
              "construct_at assume_aligned allocator",
    "mutex": "lock_guard mutex once_flag scoped_lock unique_lock call_once", "shared_mutex": "shared_mutex shared_lock",
    "new": "align_val_t bad_alloc nothrow nothrow_t launder", "numbers": "numbers", "numeric": "accumulate exclusive_scan iota gcd",
    "optional": "nullopt optional", "queue": "queue priority_queue", "random": "mt19937 mt19937_64",
    "set": "set multiset", "span": "as_bytes as_writable_bytes dynamic_extent span",
    "sstream": "istringstream ostringstream stringstream", "stdexcept": "invalid_argument logic_error runtime_error",
    "string": "erase_if stoul string to_string getline char_traits", "string_view": "string_view",
    "system_error": "errc error_code generic_category make_error_code system_category system_error", "thread": "thread this_thread",
    "tuple": "apply ignore make_tuple tie tuple tuple_cat", "typeinfo": "type_info",
    "type_traits": "add_const_t conditional_t decay_t enable_if_t false_type integral_constant invoke_result_t "
                   "is_arithmetic_v is_base_of_v is_constructible_v is_const_v is_convertible_v is_empty_v is_enum_v "
                   "is_floating_point_v is_integral_v is_invocable_r_v is_invocable_v is_nothrow_default_constructible_v "
                   "is_lvalue_reference_v is_pointer_v is_same_v is_signed_v is_trivially_copyable_v is_unsigned_v is_void_v "
                   "remove_const_t remove_cv_t remove_cvref_t remove_pointer_t remove_reference_t true_type "
                   "type_identity type_identity_t underlying_type_t make_unsigned_t bool_constant "
                   "is_nothrow_move_constructible_v is_default_constructible_v is_copy_constructible_v common_type_t",
    "unordered_map": "unordered_map", "unordered_set": "unordered_set",
    "utility": "as_const in_range declval exchange forward in_place in_place_index in_place_type index_sequence "
               "index_sequence_for integer_sequence make_index_sequence move pair swap",
    "variant": "get_if variant visit monostate holds_alternative",
}
BRINGS_ALSO = {  # the standard says that these bring it too
    "size_t": {"cstdio", "cstdlib", "cstring"}, "begin": {"array", "string", "vector", "span", "map", "set", "deque"},
    "swap": {"algorithm"}, "pair": {"map"}, "initializer_list": {"array", "vector", "string", "utility", "map", "set"},
    "erase": {"vector", "string", "deque", "list"}, "erase_if": {"vector", "map", "set", "deque", "list"}, "get": {"array", "utility", "tuple", "variant"},
    "tuple_size": {"array", "utility", "tuple"}, "tuple_size_v": {"array", "utility", "tuple"},
    "tuple_element": {"array", "utility", "tuple"}, "tuple_element_t": {"array", "utility", "tuple"},
    "vector": {"vector"}, "less": {"map", "set"}, "hash": {"string", "memory"}, "ranges": {"ranges", "iterator"},
    "ios": {"fstream", "iosfwd"},
}
for alike in ("end", "size", "data"):
    BRINGS_ALSO[alike] = BRINGS_ALSO["begin"]
OTHERS = {"Eigen": "Eigen/", "nlohmann": "nlohmann/", "xsimd": "xsimd/"}


@functools.cache
def brought_by(name):
    return {header for header, names in BRINGS.items() if name in names.split()} | BRINGS_ALSO.get(name, set())


def missing_includes(code, reaches):
    """Names of other people's libraries that nothing included brings."""
    for name in sorted(set(re.findall(r"\bstd::(\w+)", code))):
        brought = brought_by(name)
        if not brought:
            yield f"uses std::{name}, and check_headers.py does not know what brings it"
        elif not brought & reaches:
            yield f"uses std::{name} and includes none of {', '.join(sorted(brought))}"
    for space, folder in OTHERS.items():
        if re.search(rf"\b{space}::", code) and not any(header.startswith(folder) for header in reaches):
            yield f"uses {space}:: and includes nothing of {folder}"


def faults(header, reaches):
    text, code = header.text, header.code
    yield from header.unread
    if not text.isascii():
        yield "is not ASCII"
    lines = text.splitlines()
    if len(lines) > MOST_LINES:
        yield f"has {len(lines)} lines; at most {MOST_LINES} are allowed"
    if lines.count("#pragma once") != 1:
        yield "does not have one line '#pragma once'"
    for what, pattern in FORBIDDEN.items():
        for found in pattern.finditer(code):
            yield f"{what}: {found[0].strip()!r}"
    for found in STATE.finditer(code):
        yield f"declares a variable that is not const: {found[0].strip()!r}"
    yield from missing_includes(code, reaches)
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
Eigen::Index i = std::no_such_name;
""" + "\n" * MOST_LINES
GOOD = """// printf("x"); abort(); std::cout; inline int counter = 0;
#pragma once
#define TIFFIN_X 1
inline constexpr int three = 3;
static constexpr serial serial_{};
static const char* const text = "printf(abort())";
inline std::string name(int x = 0) { return "a"; }
static result<file> open(const path& p);
inline float load(int i) noexcept { return 1; }
"""


def check_the_checks():
    bad = list(faults(Header("bad", BAD), {"iostream"}))
    for what in ("ASCII", "lines", "pragma once", "'std::cout'", "'printf('", "'abort('", "'exit('", "namespace",
                 "counter", "cache", "last", "slot", "calls", "macro MAX", "std::vector and includes none of vector",
                 "std::no_such_name, and check_headers.py does not know", "includes nothing of Eigen"):
        if not any(what in fault for fault in bad):
            sys.exit(f"check_headers.py does not see '{what}' in its own example: {bad}")
    good = list(faults(Header("good", GOOD), {"string"}))
    if good:
        sys.exit(f"check_headers.py objects to good lines: {good}")
    refused = sorted(f"uses {name} of 0.hpp and does not include it" for name in USED)
    for texts, expected in (((DECLARES, USES), refused), ((DECLARES, USES + "#include <0.hpp>\n"), refused),
                            ((DECLARES, "#include <0.hpp>\n" + USES), []), ((DECLARES, LOOKS), []),
                            (("#include <tiffin/none.hpp>\n",), ["includes tiffin/none.hpp, which does not exist"]),
                            (("#include <1.hpp>\n", "#include <0.hpp>\n"), ["is included by what it includes"] * 2)):
        seen = sorted(own_faults(*texts))
        if seen != expected:
            sys.exit(f"check_headers.py should see {expected} in its own example, and sees {seen}: {texts[-1]}")


def main():
    check_the_checks()
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--also", action="append", default=[], type=pathlib.Path)
    given = parser.parse_args()
    paths = {str(p.relative_to(root)): p for root in given.folders for p in sorted(root.rglob("*")) if p.is_file()}
    if not paths:
        sys.exit(f"no headers below {', '.join(map(str, given.folders))}")
    paths.update((path.name, path) for path in given.also)
    library = Library([Header(name, path.read_text(encoding="utf-8")) for name, path in paths.items()])
    found = []
    for name, header in library.headers.items():
        reaches = library.reached(header)
        found += [f"{name}: {fault}" for fault in faults(header, reaches)]
        found += [f"{name}:{line}: {fault}" for line, fault in library.faults(header, reaches)]
    print(*found, f"{len(paths)} headers, {len(found)} faults", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
