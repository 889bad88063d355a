// Finding a model's tensors and keys in all of its GGUF files.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/gguf.hpp>
#include <tiffin/io/used_tensors.hpp>
#include <tiffin/table/table_location.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

// Keys are read from the first file, and begin with the name of the architecture. The files must outlive this.
class gguf_tensors {
public:
    explicit gguf_tensors(const std::vector<gguf_file>& files)
        : files_(files),
          architecture_(files[0].find<std::string_view>("general.architecture").value_or("")),
          used_("the memory of '" + std::string(architecture_) + "'") {}

    [[nodiscard]] std::string_view architecture() const noexcept { return architecture_; }
    [[nodiscard]] const std::string& label() const noexcept { return files_[0].label(); }
    [[nodiscard]] std::string key(std::string_view name) const {
        return std::string(architecture_).append(".").append(name);
    }
    [[nodiscard]] failure missing_key(std::string_view name) const {
        return failure(errc::option, key(name), "missing in ", label());
    }
    // A whole number up to 2^31 - 1, `least` at least.
    [[nodiscard]] result<std::size_t> number(std::string_view name, std::uint64_t least = 1) const {
        const auto value = files_[0].find<std::uint64_t>(key(name));
        if (!value) return missing_key(name);
        if (*value < least || *value > 0x7FFFFFFF) return failure(errc::option, key(name), "is ", *value);
        return static_cast<std::size_t>(*value);
    }
    // A number from 0 to 1, such as an eps.
    [[nodiscard]] result<float> fraction(std::string_view name) const {
        const auto value = files_[0].find<double>(key(name));
        if (!value) return missing_key(name);
        if (!(*value >= 0 && *value <= 1))
            return failure(errc::option, key(name), "is no number from 0 to 1");
        return static_cast<float>(*value);
    }
    [[nodiscard]] result<std::vector<std::int64_t>> numbers(std::string_view name) const {
        const auto values = files_[0].find<gguf_array>(key(name));
        if (!values) return missing_key(name);
        std::vector<std::int64_t> made;
        for (const gguf_type other :
             {gguf_type::f32, gguf_type::f64, gguf_type::string, gguf_type::boolean, gguf_type::array})
            if (values->type == other) return failure(errc::option, key(name), "holds no whole numbers");
        for (std::size_t i = 0; i < values->size; ++i) made.push_back(values->number<std::int64_t>(i));
        return made;
    }

    // Errors: errc::missing_tensor, dtype.
    [[nodiscard]] result<tensor_view> find(const std::string& name) {
        const auto found = find_in_file(name);
        return found ? result<tensor_view>(found->tensor) : found.failure();
    }
    // The place of a tensor (rows, width) in its file.
    [[nodiscard]] result<table_location> table(const std::string& name) {
        const auto found = find_in_file(name);
        if (!found) return found.failure();
        const tensor_view& t = found->tensor;
        if (t.shape.rank() != 2)
            return failure(errc::shape, name, "has shape ", to_string(t.shape), "; it must be (rows, width)");
        return table_location{
            found->file->label(), found->file->offset_of(t), {t.shape[0], t.shape[1], t.type}};
    }

    // Of all tensors whose names begin so, check_rest() looks for those that have not been found.
    void own(std::string prefix) { used_.own(std::move(prefix)); }
    // Errors: errc::unused_tensor for one that is left, there or beside a tensor that has been found.
    [[nodiscard]] status check_rest() const {
        for (const gguf_file& f : files_) {
            for (const weights::entry& e : f.tensors().entries())
                if (status s = used_.check(e.name); !s) return s;
            for (const unread_tensor& t : f.unread())
                if (status s = used_.check(t.name); !s) return s;
        }
        return {};
    }

private:
    struct found_tensor {
        const gguf_file* file;
        tensor_view tensor;
    };
    [[nodiscard]] result<found_tensor> find_in_file(const std::string& name) {
        used_.add(name);
        for (const gguf_file& f : files_) {
            if (const tensor_view* const t = f.tensors().find(name)) return found_tensor{&f, *t};
            for (const unread_tensor& t : f.unread())
                if (t.name == name)
                    return failure(errc::dtype, name, "is of ggml's type ", t.type, ", which is not read");
        }
        return failure(errc::missing_tensor, name, "missing in ", label());
    }

    const std::vector<gguf_file>& files_;
    std::string_view architecture_;
    used_tensors used_;
};

}  // namespace io::detail
TIFFIN_END
