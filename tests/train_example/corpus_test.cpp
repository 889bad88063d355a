// The documents of examples/train: which files are read, what is left of them, and which of them are held out.
#include "../../examples/train/corpus.hpp"

#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/scratch_folder.hpp"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace train_example_corpus_test {

namespace {

namespace fs = std::filesystem;
using tiffin_test::scratch_folder;

void write(const fs::path& path, std::string_view text) {
    fs::create_directories(path.parent_path());
    std::ofstream to(path, std::ios::binary);
    to << text;
    REQUIRE(to.flush());
}

// A text of one paragraph, other than that of any other number.
std::string prose(std::uint32_t number, std::size_t length = 300) {
    tiffin_test::random_numbers random(number);
    std::string text = "Text " + std::to_string(number) + ":";
    while (text.size() < length) {
        text.push_back(' ');
        for (std::size_t n = 1 + random.below(8); n > 0; --n)
            text.push_back(static_cast<char>('a' + random.below(26)));
    }
    return text.substr(0, length - 1) + ".";
}

std::vector<std::string> texts_of(const std::vector<document>& documents) {
    std::vector<std::string> texts;
    for (const document& d : documents) texts.push_back(d.text);
    return texts;
}
// The text that a file of this name and these bytes becomes.
std::string text_of(const std::string& name, const std::string& bytes) {
    const scratch_folder folder;
    write(folder / name, bytes);
    const auto documents = read_documents({folder.path()});
    REQUIRE(documents.size() == 1);
    return documents[0].text;
}

template <class Work>
std::string message_of(const Work& work) {
    try {
        work();
    } catch (const std::runtime_error& e) {
        return e.what();
    }
    return "nothing was thrown";
}
void check_has(const std::string& text, const std::string& part) {
    CAPTURE(text);
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("corpus: files and folders, in the order of their paths, each once") {
    const scratch_folder folder;
    write(folder / "b/2.txt", prose(2));
    write(folder / "b/1.txt", prose(1));
    write(folder / "a/deep/er/3", prose(3));
    write(folder / "c.md", prose(4));
    write(folder / "not_asked_for", prose(5));
    const auto documents = read_documents({folder / "c.md", folder / "b", folder / "b/1.txt", folder / "a"});
    CHECK(texts_of(documents) == std::vector<std::string>{prose(3), prose(1), prose(2), prose(4)});
    CHECK(documents[0].path == (folder / "a/deep/er/3").string());
    std::vector<std::pair<std::size_t, std::size_t>> told;
    read_documents({folder / "b"}, [&](std::size_t done, std::size_t of) { told.emplace_back(done, of); });
    CHECK(told == std::vector<std::pair<std::size_t, std::size_t>>{{0, 2}, {1, 2}, {2, 2}});
}

TEST_CASE("corpus: what is no text is skipped, and what is short is no document") {
    const scratch_folder folder;
    write(folder / "good", prose(1));
    write(folder / "zero", prose(2) + std::string(1, '\0'));
    write(folder / "latin", prose(3) + "\xE9 and more");
    write(folder / "late", prose(4, 5000) + "\xE9 and more");  // only the front is looked at
    // A character of three bytes across the end of what is looked at.
    write(folder / "cut", prose(5, 4095) + "\xE2\x82\xAC" + prose(6));
    write(folder / "data.json", prose(7));
    write(folder / "page.ps.gz", prose(8));
    write(folder / "short", prose(9, 199));
    write(folder / "enough", prose(10, 200));
    write(folder / "large", prose(11) + std::string(corpus_reader::too_large, 'x'));
    fs::create_symlink(folder / "good", folder / "link");
    fs::create_directory_symlink(folder.path(), folder / "folder_link");
    corpus_counts counts;
    const auto documents = read_documents({folder.path()}, &counts);
    std::set<std::string> names;
    for (const document& d : documents) names.insert(fs::path(d.path).filename().string());
    CHECK(names == std::set<std::string>{"good", "late", "cut", "enough"});
    CHECK(counts.files == 10);
    CHECK(counts.skipped == 5);
    CHECK(counts.too_short == 1);
    CHECK(counts.documents == 4);
    CHECK(counts.duplicates == 0);
    CHECK(counts.paragraphs_dropped == 0);
    std::size_t bytes = 0;
    for (const document& d : documents) bytes += d.text.size();
    CHECK(counts.bytes == bytes);
    // Whoever names a file wants it.
    CHECK(read_documents({folder / "large", folder / "data.json", folder / "link"}).size() == 3);
}

TEST_CASE("corpus: white space") {
    CHECK(text_of("x", "\n\n \n" + prose(1) + "  \r\n\r\n\t\n\n\n  in\tside \n" + prose(2) + "\n\n\n") ==
          prose(1) + "\n\n  in\tside\n" + prose(2));
    CHECK(text_of("copyright", prose(1) + "\n .\n" + prose(2)) == prose(1) + "\n\n" + prose(2));
}

TEST_CASE("corpus: documents and paragraphs that were there before are left out") {
    const scratch_folder folder;
    const std::string licence = prose(1, 100), short_one = prose(2, 99);
    write(folder / "1", prose(10) + "\n\n" + licence + "\n\n" + short_one);
    write(folder / "2", prose(10) + " \n\n\n" + licence + "\n\n" + short_one + "\n");  // the same
    std::string broken = licence;
    std::replace(broken.begin(), broken.end(), ' ', '\n');
    write(folder / "3",
          licence + "\n\n" + prose(11) + "\n\n" + broken + "\n\n" + short_one + "\n\n" + prose(11));
    write(folder / "4", licence + "\n\n" + short_one + "\n\n" + prose(10));  // nothing new
    const corpus made = read_corpus({folder.path()});
    CHECK(texts_of(made.documents) ==
          std::vector<std::string>{prose(10) + "\n\n" + licence + "\n\n" + short_one,
                                   prose(11) + "\n\n" + short_one});
    CHECK(made.counts.files == 4);
    CHECK(made.counts.documents == 2);
    CHECK(made.counts.duplicates == 1);
    CHECK(made.counts.too_short == 1);
    CHECK(made.counts.paragraphs_dropped == 5);
    CHECK(made.counts.bytes == made.documents[0].text.size() + made.documents[1].text.size());
}

TEST_CASE("corpus: HTML") {
    const std::string page = R"html(<!DOCTYPE html>
<html><head><title>Title</title><STYLE>p { color: red }</STYLE>
<script type="x">if (a<b && c>d) document.write('<p>no</p>');</script></head><body>
<!-- not <b>this</b> --><h1 class="a>b">Head&shy;&amp;line</h1>
    <p>One <b>bo</b>ld,
   1 < 2 &lt; 3; caf&#233; &#x2192; &nbsp;AT&T &nosuch; &#0;&#xD800;</p><ul><li>first<li>second<br/>line</ul>
<table><tr><td>x</td><td>y</td></tr></table><pre>  a
    b &gt; c</pre>)html" + prose(1) +
                             "<p title=\"open>end</p> <";
    const std::string expected = R"(Title

Head&shy;&line

One bold,
1 < 2 < 3; caf)"
                                 "\xC3\xA9 \xE2\x86\x92"
                                 R"(  AT&T &nosuch; &#0;&#xD800;

first
second
line

x y

  a
    b > c

)" + prose(1) + "\n\nend\n\n<";
    for (const char* const name : {"a.html", "a.htm", "a.xhtml"}) CHECK(text_of(name, page) == expected);
    CHECK(text_of("a.txt", prose(1) + "<b>&amp;") == prose(1) + "<b>&amp;");
    // Cut off anywhere, it is read to its end.
    for (std::size_t length = 0; length < page.size(); ++length)
        CHECK(plain_text::from_html(page.substr(0, length)).size() <= length);
}

TEST_CASE("corpus: manual pages") {
    const std::string page = R"roff('\" t
.TH NAME 1 "today"
.de XX
not this
..
.SH "THE NAME"
name \- does\&n\(aqt
.SH SYNOPSIS
.B name
[\fB\-v\fR] \" a comment
.I file ...
.PP
The
.BR name (1)
of \f(CWcode\fP, \s-1BIG\s0 C:\ex\en, \*(Aqq\*(Aq \(bu \[u00E9]\h'2n'.
.br
.RI ( "two words" " ""q""" )
.TP 8
\-v
Verb\
ose.
.IP "\fB\-q\fR" 4
Quiet.
.nf
.B one
.B two
.fi
Three
.B four
.TS
l l.
table
.TE
.nf
five
.SS Last part
six
.B seven
'br
)roff" + prose(1) + "\n";
    const std::string expected = R"(THE NAME
name - doesn't

SYNOPSIS
name [-v] file ...

The name(1) of code, BIG C:\x\n, 'q' * )"
                                 "\xC3\xA9"
                                 R"(.
(two words "q")

-v
Verbose.

-q
Quiet.
one
two
Three four
five

Last part
six seven
)" + prose(1);
    for (const char* const name : {"name.1", "name.3pm", "man/de/name"})
        CHECK(text_of(name, page) == expected);
    // By their names they might be.
    CHECK(text_of("man/plain.txt", prose(1) + "\n.B \\fBx") == prose(1) + "\n.B \\fBx");
    CHECK(text_of("note.txt", prose(1) + "\n.SH \\fBx") == prose(1) + "\n.SH \\fBx");
    // Sentences made of macros would be full of holes.
    const scratch_folder folder;
    write(folder / "bsd.1", ".\\\" x\n.Dd today\n.Sh NAME\n" + prose(2));
    write(folder / "other", prose(3));
    CHECK(texts_of(read_documents({folder.path()})) == std::vector<std::string>{prose(3)});
    // Cut off anywhere, it is read to its end.
    for (std::size_t length = 0; length < page.size(); ++length)
        CHECK(plain_text::from_roff(page.substr(0, length)).size() <= length + 8);
}

TEST_CASE("corpus: packed files") {
    const scratch_folder folder;
#ifdef TIFFIN_EXAMPLE_ZLIB
    const auto pack = [&](const char* name, const std::string& text) {
        const gzFile file = gzopen((folder / name).c_str(), "wb");
        REQUIRE(file != nullptr);
        REQUIRE(gzwrite(file, text.data(), static_cast<unsigned>(text.size())) ==
                static_cast<int>(text.size()));
        REQUIRE(gzclose(file) == Z_OK);
    };
    pack("a.txt.gz", prose(1));
    pack("b.1.gz", ".SH NAME\n.B x\n" + prose(2));
    pack("c.html.gz", "<p>" + prose(3));
    pack("d.gz", prose(4, 20000));
    fs::resize_file(folder / "d.gz", fs::file_size(folder / "d.gz") / 2);
    pack("e.gz", prose(5) + std::string(corpus_reader::too_large, 'x'));
    pack("f.gz", prose(6) + std::string(1, '\0'));
    corpus_counts counts;
    CHECK(texts_of(read_documents({folder.path()}, &counts)) ==
          std::vector<std::string>{prose(1), "NAME\nx " + prose(2), prose(3)});
    CHECK(counts.skipped == 3);
#else
    write(folder / "a.gz", std::string("\x1F\x8B\x08") + prose(1));
    write(folder / "b", prose(2));
    CHECK(texts_of(read_documents({folder.path()})) == std::vector<std::string>{prose(2)});
#endif
}

TEST_CASE("corpus: where there is nothing to read, the error names the paths") {
    const scratch_folder folder;
    write(folder / "some/short", "Too short.");
    write(folder / "some/binary", std::string(300, '\0'));
    write(folder / "empty/e", "");
    const std::string message = message_of([&] { read_documents({folder / "some", folder / "empty"}); });
    CHECK(message == "no text to read in " + (folder / "some").string() + ", " + (folder / "empty").string() +
                         ": of 3 files 1 are no text, and 2 have less than 200 bytes");
    check_has(message_of([&] { read_documents({}); }), "no text to read in no files");
    const fs::path absent = folder / "absent";
    write(folder / "good", prose(1));
    CHECK(message_of([&] {
              read_documents({folder / "good", absent});
          }) == absent.string() + " is neither a file nor a folder");
}

TEST_CASE("corpus: what is held out depends on each text alone") {
    std::vector<document> documents;
    for (std::uint32_t i = 0; i < 2000; ++i) documents.push_back({std::to_string(i), prose(i)});
    const split_corpus all = split(documents, 0.1);
    CHECK(all.learnt.size() + all.held_out.size() == documents.size());
    // Of 2000 draws with a chance of 1 in 10: 200, and six deviations of 13.4 around it.
    CHECK(all.held_out.size() > 120);
    CHECK(all.held_out.size() < 280);
    std::set<std::string> held_out;
    for (const document& d : all.held_out) held_out.insert(d.text);
    for (const document& d : all.learnt) CHECK(held_out.count(d.text) == 0);
    // Fewer documents, of other names and in another order.
    std::vector<document> fewer;
    for (std::uint32_t i = 1000; i > 0; i -= 2) fewer.push_back({"x", prose(i)});
    const split_corpus part = split(fewer, 0.1);
    for (const document& d : part.held_out) CHECK(held_out.count(d.text) == 1);
    for (const document& d : part.learnt) CHECK(held_out.count(d.text) == 0);
    // A larger share holds out what a smaller one does, and more.
    std::size_t kept = 0;
    for (const document& d : split(documents, 0.3).held_out) kept += held_out.count(d.text);
    CHECK(kept == held_out.size());
    CHECK(message_of([&] { split(documents, 0); }) ==
          "of 2000 documents 0 are held out with a share of 0.000000, and 2000 are left to learn from: give "
          "more "
          "text, or another share");
    check_has(message_of([&] { split(documents, 1); }),
              "2000 are held out with a share of 1.000000, and 0 are left");
    // FNV-1a, as published.
    CHECK(fnv1a("") == 0xcbf29ce484222325u);
    CHECK(fnv1a("foobar") == 0x85944171f73967e8u);
}

TEST_CASE("corpus: the usual places are there, and hold no code") {
    for (const fs::path& path : usual_places()) {
        CAPTURE(path.string());
        CHECK((fs::is_directory(path) || path.extension() == ".pod"));
    }
}

}  // namespace train_example_corpus_test
