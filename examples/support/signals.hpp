// What signals find: files that are not finished, or not to be kept, are removed before a program ends by one.
#pragma once

#include <filesystem>

// From now on a signal that asks the program to end removes what it has not finished, and then ends it as it would
// have; one that was ignored stays so. A file that grows beyond its limit and a pipe that nobody reads are errors of
// the write, which tell what could not be written; so is, in words, a mapped file that was cut.
void watch_signals();

// A file of this program's own: removed with the object, and by a signal.
class temporary_file {
public:
    explicit temporary_file(std::filesystem::path path);
    temporary_file(const temporary_file&) = delete;
    temporary_file& operator=(const temporary_file&) = delete;
    ~temporary_file();

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
    int place_;
};
