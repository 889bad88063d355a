// What the engine needs of the place where it runs: a machine of the host, or a device.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/engine/view.hpp>

#include <concepts>
#include <cstddef>

TIFFIN_BEGIN

namespace engine_detail {

// cpu_detail::host<Machine> and cuda_detail::device<Format> are targets. A target has
//
//   call                     what is computed in one go: tokens, ids, what comes beside x, workspace
//   arena                    cuts a workspace into areas, or counts their bytes
//   preparation              what weights are kept by: number formats, uploads to a device
//   activations, buffer      rows that products read; such rows while they are written, with writer(), made for a
//                            width, and where products write and nothing but products reads them, for these
//   destination, put         where complete rows go; a functor that puts a register there
//   tensors                  the tables and vectors of a tree: keep_table, keep_rows, keep_vector,
//                            give(call, view)
//   table_rows, call_view, token
//                            what a view holds of a table, of a call and of a token
//   products<Count>          weights that are multiplied with the same activations
//   router<R>, bank_in, bank_out, mixture<S>
//                            what has kernels of its own
//   numbers<Register>        how registers of tensors are read and combined (see cpu_detail::host_numbers)
//   kept<View>               a view as a functor holds it: by reference, or by value for a kernel
//
// and the functions
//
//   tokens(call)             at most so many are computed
//   lay_out_inputs, inputs   room for, and the rows of, x or the residual as activations
//   rows_in, takes_parts, put_rows, exchange_rows
//                            rows of f32 in the workspace as a destination; whether a destination holds
//                            what is not complete; such rows to where they belong; the same with those
//                            carried over
//   above_group<Outer>       where values are written group by group: a writer that reads rows for each
//   record(call, chosen)     routes that a call wants to know
//   token_at, row_value, ask a token of a view, the value of its row of a table or of the rows it chose, and asking a
//                            cache for them
//   input_at                 where a register of what a source reads begins
//   scale_rows, evaluate_rows, multiply
//                            the norms of a tree's rows; its formula without products; products and formula
template <class T>
concept target = requires(const typename T::call& call, typename T::arena& areas, std::size_t n,
                          float* memory, const typename T::destination& to) {
    typename T::preparation;
    typename T::activations;
    typename T::tensors;
    typename T::token;
    { T::tokens(call) } -> std::same_as<std::size_t>;
    { T::takes_parts(to) } -> std::same_as<bool>;
    { T::rows_in(memory, call, n, n) } -> std::same_as<typename T::destination>;
    T::lay_out_inputs(areas, n, n);
    T::put_rows(call, memory, n, to);
    T::exchange_rows(call, memory, n, to);
    typename T::buffer;
};

}  // namespace engine_detail

TIFFIN_END
