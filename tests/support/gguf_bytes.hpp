// GGUF files for tests, put together byte by byte from the specification.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tiffin_test {

class gguf_bytes {
public:
    template <class T>
    static void put(std::vector<std::byte>& to, const T& number) {
        const auto* const bytes = reinterpret_cast<const std::byte*>(&number);
        to.insert(to.end(), bytes, bytes + sizeof number);
    }
    static void put_text(std::vector<std::byte>& to, std::string_view text) {
        put(to, std::uint64_t{text.size()});
        const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
        to.insert(to.end(), bytes, bytes + text.size());
    }

    std::uint32_t version = 3;
    std::size_t alignment = 32;

    // A pair of metadata: `type` as numbered in files.
    gguf_bytes& key(std::string_view name, std::uint32_t type, const std::vector<std::byte>& value) {
        put_text(pairs_, name);
        put(pairs_, type);
        pairs_.insert(pairs_.end(), value.begin(), value.end());
        ++pair_count_;
        return *this;
    }
    template <class T>
    gguf_bytes& number(std::string_view name, std::uint32_t type, T value) {
        std::vector<std::byte> bytes;
        put(bytes, value);
        return key(name, type, bytes);
    }
    gguf_bytes& whole(std::string_view name, std::uint32_t value) { return number(name, 4, value); }
    gguf_bytes& real(std::string_view name, float value) { return number(name, 6, value); }
    gguf_bytes& text(std::string_view name, std::string_view value) {
        std::vector<std::byte> bytes;
        put_text(bytes, value);
        return key(name, 8, bytes);
    }
    // A tensor: dimensions with the fastest first, the type as numbered in files.
    gguf_bytes& tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                       const void* data, std::size_t bytes) {
        put_text(infos_, name);
        put(infos_, static_cast<std::uint32_t>(dims.size()));
        for (const std::uint64_t d : dims) put(infos_, d);
        put(infos_, type);
        data_.resize((data_.size() + alignment - 1) / alignment * alignment);
        put(infos_, std::uint64_t{data_.size()});
        const auto* const from = static_cast<const std::byte*>(data);
        data_.insert(data_.end(), from, from + bytes);
        ++tensor_count_;
        return *this;
    }
    gguf_bytes& tensor(std::string_view name, const std::vector<std::uint64_t>& dims,
                       const std::vector<float>& numbers) {
        return tensor(name, dims, 0, numbers.data(), numbers.size() * sizeof(float));
    }

    [[nodiscard]] std::vector<std::byte> bytes() const {
        std::vector<std::byte> all;
        for (const char c : {'G', 'G', 'U', 'F'}) all.push_back(static_cast<std::byte>(c));
        put(all, version);
        put(all, tensor_count_);
        put(all, pair_count_);
        all.insert(all.end(), pairs_.begin(), pairs_.end());
        all.insert(all.end(), infos_.begin(), infos_.end());
        if (tensor_count_ != 0) all.resize((all.size() + alignment - 1) / alignment * alignment);
        all.insert(all.end(), data_.begin(), data_.end());
        return all;
    }

private:
    std::vector<std::byte> pairs_, infos_, data_;
    std::uint64_t pair_count_ = 0, tensor_count_ = 0;
};

}  // namespace tiffin_test
