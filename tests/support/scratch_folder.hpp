// A folder of its own for one test, gone afterwards.
#pragma once

#include "support/doctest.hpp"

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>

namespace tiffin_test {

class scratch_folder {
public:
    scratch_folder() {
        const std::filesystem::path base = std::filesystem::temp_directory_path();
        for (int n = 0; path_.empty(); ++n) {
            const std::filesystem::path candidate = base / ("tiffin_test_" + std::to_string(n));
            std::error_code error;
            if (std::filesystem::create_directory(candidate, error)) path_ = candidate;
            REQUIRE(n < 10000);
        }
    }
    scratch_folder(const scratch_folder&) = delete;
    scratch_folder& operator=(const scratch_folder&) = delete;
    ~scratch_folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::ptrdiff_t files() const {
        return std::distance(std::filesystem::directory_iterator(path_),
                             std::filesystem::directory_iterator());
    }

private:
    std::filesystem::path path_;
};

}  // namespace tiffin_test
