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
import collections
import functools
import pathlib
import re
import sys

MOST_LINES = 300

# Text without comments and literals, so that a word in a message is not taken for code.
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"'
                   r"|(?<!\w)'(?:[^'\\\n]|\\[^\n][^'\n]*)'", re.S)

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

# What brings each name of other people's libraries. The headers are compiled one by one behind a precompiled header that
# has all of these, so that it is here that one that forgets its own is found. Of several, one is enough.
BRINGS = {
    "algorithm": "all_of any_of binary_search clamp copy copy_n equal fill fill_n find find_if lower_bound make_heap max "
                 "max_element min minmax_element pop_heap push_heap ranges sort sort_heap unique nth_element none_of "
                 "count count_if transform reverse rotate stable_sort upper_bound partial_sort remove_if is_sorted "
                 "equal_range partition stable_partition",
    "array": "array to_array", "atomic": "atomic atomic_flag atomic_ref memory_order_acquire memory_order_relaxed "
                                "memory_order_release memory_order_acq_rel memory_order_seq_cst",
    "bit": "bit_cast bit_ceil bit_width countl_zero countr_zero endian has_single_bit popcount rotl",
    "charconv": "from_chars to_chars chars_format", "chrono": "chrono",
    "cmath": "copysign cos erf exp expm1 fabs fma fmax fmin isfinite isinf isnan log log1p nan pow round sin sqrt tanh "
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
    "new": "align_val_t bad_alloc nothrow nothrow_t launder", "numeric": "accumulate exclusive_scan iota gcd",
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
    "vector": {"vector"}, "less": {"map", "set"}, "hash": {"string", "memory"}, "ranges": {"ranges"},
    "ios": {"fstream", "iosfwd"},
}
for alike in ("end", "size", "data"):
    BRINGS_ALSO[alike] = BRINGS_ALSO["begin"]
OTHERS = {"Eigen": "Eigen/", "nlohmann": "nlohmann/", "xsimd": "xsimd/"}


# Uses that a check of text refuses, and why they stay.
ALLOWED = {
    # config.hpp defines it and then includes this header, which nothing else includes.
    ("tiffin/instruction_set.hpp", "TIFFIN_EXCEPTIONS"),
    # Missing: the header compiles, and what instantiates it does not, without analysis/cost.hpp or tiffin.hpp before it.
    ("tiffin/call/token_router.hpp", "tensors_needed"),
}

# A word, number or sign of C++, or a directive with the lines that continue it.
TOKEN = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*|[A-Za-z_]\w*|\d[\w.']*|::|->|&&|\|\||\.\.\.|[=!<>+*/%&|^-]=|\S", re.M)
# What may be before a name and is no type, which would make it a declaration.
NOT_TYPES = set("case defined delete do else goto if new operator private protected public requires return sizeof "
                "throw".split())
# In the head of a declaration ( ) is $, < > is @. `of`: a member defined outside; `for`: a specialisation; neither is new.
ENUM = re.compile(r"enum(?! class| struct)(?: (\w+))?")
CLASS = re.compile(r"\b(?:struct|class|union|enum(?: class| struct)?) (?:alignas \$ )?(?P<name>\w+)(?P<for> @)?")
FUNCTION = re.compile(r"(?P<of>:: )?\b(?!(?:alignas|decltype|noexcept|requires|explicit|__\w+) )(?P<name>\w+)"
                      r"(?P<for> @)? \$")
VARIABLE = re.compile(r"(?P<of>:: )?(?P<name>\w+)(?P<for> @)?$")
MACRO_CALL = re.compile(r"TIFFIN_\w+ \$$")


class Token(str):
    """Has its line, and whether a space is before it."""

    def is_name(self):
        return (self[0].isalpha() or self[0] == "_") and self not in NOT_TYPES


def tokens_of(code, line=1):
    last = 0
    for found in TOKEN.finditer(code):
        line += code.count("\n", last, found.start())
        last = found.start()
        token = Token(found[0].strip())
        token.line, token.spaced = line, last == 0 or code[last - 1].isspace()
        yield token


class Piece:
    """A declaration at namespace scope, or a directive: its namespace, its tokens, the names that it declares there, the
    names that are declared inside, and the classes whose members it has or may name."""

    def __init__(self, space, head, tokens):
        self.space, self.tokens, self.names, self.hidden, self.classes = space, tokens, set(), set(), set()
        self.is_whole = True  # not only struct x;
        if MACRO_CALL.match(head):
            self.tokens = tokens[:1]
        elif head == "#define":
            self.names = {tokens[1]}
            if tokens[2:3] == ["("] and not tokens[2].spaced:
                self.hidden = set(tokens[3:tokens.index(")")])
            elif len(tokens) == 3:  # one word, which may become a part of another
                self.tokens = []
        elif head[0] != "#":
            self.read_inside()
            self.read_head(head)
            self.hidden -= self.names
        elif head not in ("#if", "#ifdef", "#ifndef", "#elif"):
            self.tokens = []

    def read_inside(self):
        """Members, parameters, locals, template parameters, enumerators."""
        end, here = [Token(";")] * 2, self.tokens
        depth, listed = 0, -1  # of brackets: here, and where `T a` was read, after which `, b{}` declares b
        for first, before, name, after, last in zip(end + here, end[:1] + here, here, here[1:] + end, here[2:] + end):
            depth += (name in "([{") - (name in ")]}")
            if depth < listed or (name == ";" and depth == listed):
                listed = -1
            if not name.is_name():
                continue
            # The sign of a type is written to it, T& a; that of an expression is not, a & b.
            is_typed = (before.is_name() and (before != "const" or first == "*")
                        or before in (">", "*", "&", "&&", "...") and not before.spaced and first not in tuple("([{,!<-"))
            if is_typed and after in (";", ",", ")", "=", "{", "(", "[", ":", ">", "..."):
                self.hidden.add(name)
                listed = depth
            elif (before == "," and (after in ("=", ";") or depth == listed and after in ("{", "(", "["))
                  or after == "=" and before in ("[", "using")
                  or first == "(" and before in ("*", "&") and after == ")" and last in ("(", "[")):
                self.hidden.add(name)
        text = " ".join(here)
        for bound, enumerators in re.findall(r"\bauto (?:&&? )?\[ ([^]]*) \]|\benum [^;{]*{ ([^}]*)", text):
            self.hidden.update(re.findall(r"(?:^|, )(\w+)", bound or enumerators))
        for is_enum, name in re.findall(r"\busing (enum )?[^;=]*?(\w+) ;", text):
            (self.classes if is_enum else self.hidden).add(name)

    def read_head(self, head):
        head, left = head.replace("->", ""), 1
        while left:
            head, left = re.subn(r"<[^<>]*>", "@", head)
        start = re.split(r" [={;]", head)[0]
        if re.search(r"(?<!:: )\btemplate (?!@)|\boperator\b|^(?:static_assert|typedef)\b", head):
            return
        if found := re.search(r"\b(?:using|concept) (\w+) =|^using .* (\w+) ;", head):
            self.names = {found[1] or found[2]}
        elif found := ENUM.match(start):
            self.names = self.hidden | {found[1]} - {None}
        elif found := CLASS.search(start):
            self.names, self.is_whole = set() if found["for"] else {found["name"]}, "{" in head
            self.classes.update(re.findall(r"\w+", start[found.start("name"):]))
        elif found := FUNCTION.search(start) or VARIABLE.search(start):
            if found["of"]:
                self.classes.update(re.findall(r"(\w+)(?: @)? :: ", start[:found.end()]))
            elif not found["for"]:
                others = re.findall(r", (\w+) [={;]", head) if found.re is VARIABLE else []
                self.names = {found["name"], *others}


def pieces_of(code):
    spaces, head, piece, depth = [], [], [], 0
    tokens = list(tokens_of(code))
    for token, after in zip(tokens, tokens[1:] + [Token("}")]):
        if token[0] == "#":
            directive = list(tokens_of(token[1:], token.line))
            yield Piece(sum(spaces, ()), "#" + "".join(directive[:1]), directive)
            continue
        if token in ("TIFFIN_BEGIN", "TIFFIN_END"):
            yield Piece((), token + " $", [token])
            continue
        piece.append(token)
        if depth == 0 and token not in ")[]}":
            constrains = token == "{" and (head[-1:] == ["requires"] or head[-2:] == ["requires", "$"])
            head.append("$" if token == "(" or constrains else token)
        depth += (token in "([{") - (token in ")]}")
        if depth < 0 and spaces:
            spaces.pop()
        elif depth == 1 and token == "{" and head[0] in ("namespace", "extern"):
            spaces.append(tuple(word for word in head[1:] if word[0].isalpha() and word != "tiffin"))
        elif depth == 0 and (token == ";" or token == ")" and MACRO_CALL.match(" ".join(head))
                             or token == "}" and head[-1] == "{" and (after[0] in "}[#:" or after[0].isalpha())):
            yield Piece(sum(spaces, ()), " ".join(head), piece)
        else:
            continue
        head, piece, depth = [], [], 0
    if spaces or piece:
        raise ValueError("has braces that do not match")


class Header:
    def __init__(self, name, text):
        self.name, self.text = name, text
        self.code = NOISE.sub(lambda m: '""' if m[0][0] == '"' else re.sub(r"[^\n]", " ", m[0]), text)
        end = self.code.rfind("TIFFIN_END") if "TIFFIN_END" in self.code else len(self.code)
        found = re.finditer(r"^[ \t]*#[ \t]*include[ \t]*<([^>]+)>", self.code, re.M)
        # Each with its line, and whether it comes after the code.
        self.includes = [(m[1], self.code.count("\n", 0, m.end()) + 1, m.start() > end) for m in found]
        try:
            self.pieces, self.unread = list(pieces_of(self.code)), []
        except ValueError as error:
            self.pieces, self.unread = [], [str(error)]


class Library:
    """All headers, and what they declare at namespace scope."""

    def __init__(self, headers):
        self.headers = {header.name: header for header in headers}
        self.spaces = {()}
        self.declared = collections.defaultdict(lambda: collections.defaultdict(dict))  # name: namespace: header: whole
        self.pieces = collections.defaultdict(list)  # by the names that they declare
        for header in headers:
            for piece in header.pieces:
                self.spaces.update(piece.space[:n] for n in range(1, len(piece.space) + 1))
                for name in piece.names:
                    at = self.declared[name][piece.space]
                    at[header.name] = at.get(header.name, False) or piece.is_whole
                    self.pieces[name].append(piece)

    def reached(self, header, tails=True):
        """What a header includes before its code, itself or by others; by the tails of others, if asked for."""
        seen, left = set(), [name for name, _, is_tail in header.includes if not is_tail]
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                of = self.headers[name].includes if name in self.headers else []
                left += [include for include, _, is_tail in of if tails or not is_tail]
        return seen

    def hidden_in(self, piece):
        """Names that are declared in a piece or in the classes whose members it may name."""
        names, seen, left = set(piece.hidden), set(), list(piece.classes)
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                for of in self.pieces.get(name, []):
                    names |= of.hidden
                    left += of.classes
        return names

    def uses(self, piece):
        """The words that are names of the library where they stand, each with the headers that declare it."""
        hidden, words = self.hidden_in(piece), piece.tokens
        for at, word in enumerate(words):
            if word not in self.declared or (at > 0 and words[at - 1] in (".", "->")):
                continue
            start = at
            while start > 1 and words[start - 1] == "::" and words[start - 2].is_name():
                start -= 2
            if (start > 0 and words[start - 1] == "::") or (start == at and word in hidden):
                continue
            spaces = [piece.space[:n] for n in range(len(piece.space), -1, -1)]
            if chain := tuple(words[start:at:2]):
                if chain[0] == "tiffin":
                    spaces, chain = [()], chain[1:]
                spaces = [space + chain for space in spaces if space + chain in self.spaces][:1]
            found = {}
            for space in spaces:
                for name, is_whole in self.declared[word].get(space, {}).items():
                    found[name] = is_whole or found.get(name, False)
            # struct x; is enough for x& and x*.
            whole = {name for name in found if found[name] or words[at + 1:at + 2] in (["&"], ["*"])}
            if found:
                yield word, set(found), whole or set(found)

    def faults(self, header, reaches):
        if header.name in self.reached(header, tails=False):
            yield 1, "is included by what it includes"
        for name, line, _ in header.includes:
            if name.startswith("tiffin/") and name not in self.headers:
                yield line, f"includes {name}, which does not exist"
        told = {word for name, word in ALLOWED if name == header.name}
        for piece in header.pieces:
            for word, found, whole in self.uses(piece):
                if word not in told and header.name not in found and not whole & reaches:
                    told.add(word)
                    yield word.line, f"uses {word} of {' or '.join(sorted(whole))} and does not include it"


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


# Three headers: what is declared, another one that uses it, and words that only look like uses.
DECLARES = """#pragma once
#define TIFFIN_TWICE(x) (2 * (x))
TIFFIN_BEGIN
struct plain;
template <class T> requires requires { T::size; } struct limited { T kept; };
enum class colour { red, green };
enum { loose, tight };
using number = float;
template <class T> concept countable = requires(T a) { ++a; } && true;
inline constexpr int first_one = 1, second_one[] = {1, 2};
namespace detail {
template <class T>
[[nodiscard]] inline auto twice(const T& of = {}) -> decltype(of) { return of; }
}  // namespace detail
TIFFIN_END
"""
USES = """#pragma once
TIFFIN_BEGIN
namespace detail {
template <countable T>
struct user : limited<T> {
    number a = TIFFIN_TWICE(second_one[first_one]);
    void f(const plain& p) { twice(a), g(colour::red, loose, p); }
};
}  // namespace detail
TIFFIN_END
"""
USED = "TIFFIN_TWICE colour countable first_one limited loose number plain second_one twice".split()
LOOKS = """#pragma once
namespace tiffin {
struct colour;
struct base { int plain; };
struct user : base {
    void f(int number, const colour& c) { c.limited = number + plain + std::twice(1) + "loose" + 'l'; }
};
template <class countable> void f(countable* twice) { const auto [tight, loose] = *twice; detail::f(tight, loose); }
}
"""


def own_faults(*texts):
    library = Library([Header(f"{n}.hpp", text) for n, text in enumerate(texts)])
    for header in library.headers.values():
        yield from (fault for _, fault in library.faults(header, library.reached(header)))


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
