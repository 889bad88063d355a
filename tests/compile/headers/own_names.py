"""What headers of ours use of each other, by their text: check_headers.py says what is asked of them."""
import collections
import re

# Text without comments and literals, so that a word in a message is not taken for code.
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"'
                   r"|(?<!\w)'(?:[^'\\\n]|\\[^\n][^'\n]*)'", re.S)

# Uses that a check of text refuses, and why they stay.
ALLOWED = {
    # config.hpp defines it and then includes this header, which nothing else includes.
    ("tiffin/instruction_set.hpp", "TIFFIN_EXCEPTIONS"),
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
            # The sign of a type is written to it or to the name, T& a, T *a, *b; that of an expression is not, a & b.
            is_typed = (before.is_name() and (before != "const" or first == "*")
                        or before in (">", "*", "&", "&&", "...") and not before.spaced and first not in tuple("([{,!<-")
                        or before == "*" and first.is_name() and not name.spaced)
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


# For the check of the checks: what is declared, another header that uses it, and words that only look like uses.
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
