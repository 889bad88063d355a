// The interface to a model's layers, independent of its file format.
#pragma once

#include <tiffin/io/described_layer.hpp>

#include <cstddef>
#include <string>
#include <string_view>

TIFFIN_BEGIN
namespace io::detail {

class model_source {
public:
    virtual ~model_source() = default;
    [[nodiscard]] virtual std::string_view architecture() const noexcept = 0;
    [[nodiscard]] virtual std::size_t layers() const noexcept = 0;
    // The `where` of failures.
    [[nodiscard]] virtual const std::string& label() const noexcept = 0;
    // Precondition: index < layers(). Errors: without the label. `keep`: tensors made for the layer; the files are
    // the caller's to keep.
    [[nodiscard]] virtual result<described_layer> layer(std::size_t index) const = 0;
};

}  // namespace io::detail
TIFFIN_END
