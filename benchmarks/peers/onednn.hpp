// What the peers of oneDNN share, of its releases 2 and 3.
#pragma once

#include "../machine.hpp"
#include "../peers.hpp"

#include <oneapi/dnnl/dnnl.hpp>

#include <cstddef>
#include <unordered_map>

namespace tiffin_bench::onednn {

using dnnl::matmul;
using dnnl::memory;
using arguments = std::unordered_map<int, memory>;

inline memory::desc matrix(std::size_t rows, std::size_t columns, memory::data_type type,
                           memory::format_tag layout = memory::format_tag::ab) {
    const auto dim = [](std::size_t n) { return static_cast<memory::dim>(n); };
    return {{dim(rows), dim(columns)}, type, layout};
}

// A matmul with the layout of its weights (inputs, outputs) left to it, and scratch memory of ours.
inline matmul::primitive_desc product(const dnnl::engine& engine, const memory::desc& in,
                                      memory::data_type weights, const memory::desc& out,
                                      const dnnl::post_ops& after = {}) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_post_ops(after);
    constexpr auto any = memory::format_tag::any;
#if DNNL_VERSION_MAJOR < 3
    return {matmul::desc(in, {{in.dims()[1], out.dims()[1]}, weights, any}, out), attributes, engine};
#else
    return {engine, in, {{in.get_dims()[1], out.get_dims()[1]}, weights, any}, out, attributes};
#endif
}

// silu of a product, times a matrix.
inline dnnl::post_ops silu_times(const memory::desc& factor) {
    dnnl::post_ops made;
#if DNNL_VERSION_MAJOR < 3
    made.append_eltwise(1.0f, dnnl::algorithm::eltwise_swish, 1.0f, 0.0f);
#else
    made.append_eltwise(dnnl::algorithm::eltwise_swish, 1.0f, 0.0f);
#endif
    made.append_binary(dnnl::algorithm::binary_mul, factor);
    return made;
}

// Memory on huge pages for what a descriptor describes, which may be padded.
class matrix_memory {
public:
    matrix_memory() = default;
    matrix_memory(const dnnl::engine& engine, const memory::desc& desc)
        : values_((desc.get_size() + sizeof(float) - 1) / sizeof(float)),
          view_(desc, engine, values_.data()) {}
    [[nodiscard]] const memory& view() const { return view_; }
    template <class Number>
    [[nodiscard]] Number* data() {
        return reinterpret_cast<Number*>(values_.data());
    }
    [[nodiscard]] bool is(const memory::desc& desc) const { return view_ && view_.get_desc() == desc; }

private:
    page_floats values_;
    memory view_;
};

// Brings weights of (outputs, inputs) rows, which to matmul are (inputs, outputs) columns, into the layout
// `desc`; straight from the given memory, so that there are never two copies.
inline void pack(dnnl::stream& stream, matrix_memory& to, const memory::desc& desc, const void* from,
                 memory::data_type type, std::size_t inputs, std::size_t outputs) {
    if (to.is(desc)) return;
    to = matrix_memory();  // frees the old copy before there is a new one
    to = matrix_memory(stream.get_engine(), desc);
    memory given(matrix(inputs, outputs, type, memory::format_tag::ba), stream.get_engine(),
                 const_cast<void*>(from));
    dnnl::reorder(given, to.view()).execute(stream, given, const_cast<memory&>(to.view()));
    stream.wait();
}

dense_peer_kind s8_kind();

}  // namespace tiffin_bench::onednn
